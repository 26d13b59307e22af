"""One thread a test process: `make test` runs one process per core."""

import torch

torch.set_num_threads(1)
