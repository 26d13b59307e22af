"""`python -m coterie` is the command line."""

import os
import sys

from coterie.backends.torchrun import launched
from coterie.cli.main import main

code = main()
if launched():  # all is written and said; the threads of torch.distributed may abort a process that tidies up
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
