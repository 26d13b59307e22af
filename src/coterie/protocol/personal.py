"""Personal models, and rows that are chosen or mixed from centers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Personal:
    """Personal models: several rows whose predictions are averaged by weight, or just one."""

    rows: Tensor  # (client, part, width)
    weights: Tensor  # (client, part)
    way: Tensor | None = None  # (client,) where each chose how its model is made: which of `personalise.WAYS`

    @staticmethod
    def single(rows: Tensor) -> Personal:
        return Personal(rows[:, None], rows.new_ones(len(rows), 1))

    @staticmethod
    def largest(centers: Tensor, importance: Tensor) -> Personal:
        """Each client's center of largest importance."""
        return Personal.single(chosen(centers, importance.argmax(1)))


def is_shared(rows: Tensor) -> bool:
    """Is this one row, shown to every client? (An expanded tensor has stride 0.)"""
    return len(rows) == 1 or rows.stride(0) == 0


def chosen(centers: Tensor, choice: Tensor) -> Tensor:
    """(client, width) of each client's centers (client, cluster, width) the one that it chose (client,)."""
    if is_shared(centers):
        return centers[0].index_select(0, choice)  # of wide rows many times faster
    return centers[torch.arange(len(centers), device=choice.device), choice]


def mix_rows(weights: Tensor, centers: Tensor) -> Tensor:
    """Σ_s weight·center / Σ_s weight: (client, cluster) and (client, cluster, width) to (client, width)."""
    weights = (weights / weights.sum(-1, keepdim=True)).to(centers.dtype)
    # not as a product of matrices, for which a server's centers would be copied
    mixed = weights[:, :1] * centers[:, 0]
    for s in range(1, centers.shape[1]):
        mixed.addcmul_(weights[:, s, None], centers[:, s])
    return mixed
