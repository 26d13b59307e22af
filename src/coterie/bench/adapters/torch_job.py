"""The job as those players read it that have torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .pipe import Job, Named

Clients = list[tuple[Tensor, Tensor]]


def set_up(job: Job) -> None:
    """Threads and precision, alike for all."""
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    torch.backends.cuda.matmul.allow_tf32 = job["tf32"]
    torch.backends.cudnn.allow_tf32 = job["tf32"]


def models(job: Job) -> list[nn.Module]:
    """Where everybody starts: one model for each cluster."""
    found: list[nn.Module] = torch.load(job.folder / "models.pt", weights_only=False)
    return [model.to(job["device"]).train() for model in found]


def clients(job: Job) -> Clients:
    return [client(job, i) for i in range(job["clients"])]


def client(job: Job, i: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.as_tensor(np.array(job.array(name)[i])) for name in ("x", "y"))
    return x.to(job["device"]), y.to(job["device"])


def loss(output: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(output, y) if y.is_floating_point() else functional.cross_entropy(output, y)


def named(models: Sequence[nn.Module]) -> list[Named]:
    return [{name: t.detach().cpu().numpy() for name, t in model.state_dict().items()} for model in models]
