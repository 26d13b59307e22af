"""The task, read into torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .pipe import Named, Task

Clients = list[tuple[Tensor, Tensor]]


def set_up(task: Task) -> None:
    """Threads and precision, alike for all."""
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    torch.backends.cuda.matmul.allow_tf32 = task["tf32"]
    torch.backends.cudnn.allow_tf32 = task["tf32"]


def models(task: Task) -> list[nn.Module]:
    """The initial models, one for each cluster."""
    found: list[nn.Module] = torch.load(task.folder / "models.pt", weights_only=False)
    return [model.to(task["device"]).train() for model in found]


def clients(task: Task) -> Clients:
    return [client(task, i) for i in range(task["clients"])]


def client(task: Task, i: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.as_tensor(np.array(task.array(name)[i])) for name in ("x", "y"))
    return x.to(task["device"]), y.to(task["device"])


def loss(output: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(output, y) if y.is_floating_point() else functional.cross_entropy(output, y)


def named(models: Sequence[nn.Module]) -> list[Named]:
    return [{name: t.detach().cpu().numpy() for name, t in model.state_dict().items()} for model in models]
