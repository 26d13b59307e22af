"""What the training side and the test side of a federation need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from coterie.data.draws import generator
from coterie.data.partition import assign
from coterie.data.partition.distributions import Hidden
from coterie.data.partition.mixtures import mixes_two, mixtures, structured
from coterie.data.partition.transforms import Pool

if TYPE_CHECKING:
    from coterie.data.partition.settings import Deal


class Side(NamedTuple):
    """What one side needs: points, each from a cell (a part, a class, an owner) of the images."""

    pool: Pool
    cell: Tensor  # (point,)
    component: Tensor  # (point,) the distribution
    offset: Tensor  # (client + 1,)
    stocks: Sequence[Tensor]  # the images of each cell


def mixture_of(deal: Deal, hidden: Hidden, clients: int, seed: int) -> Tensor:
    """(client, distribution). A pattern of two mixes the two of the first name, and the rest evenly."""
    n = len(hidden.train.parts)
    if deal.pattern == "structured":
        return structured(clients, n, deal.per_client or 1, deal.m0, seed)
    if len(hidden.factors) > 1 and mixes_two(deal.pattern):
        first = mixtures(deal.pattern, clients, hidden.factors[0], seed)
        rest = n // hidden.factors[0]
        return first.repeat_interleave(rest, 1) / rest
    return mixtures(deal.pattern, clients, n, seed)


def sizes_of(deal: Deal, weight: Tensor, ratio: float, seed: int) -> list[Tensor | None]:
    """(client,) points of each side; None: all that there is. There may be no test side."""
    train: Tensor | None = None
    if isinstance(deal.train_points, tuple):
        drawn = generator(seed, "sizes").integers(*deal.train_points, endpoint=True, size=len(weight))
        train = torch.from_numpy(drawn)
    elif deal.train_points is not None:
        train = (weight * deal.train_points).round().long().clamp(min=1)
    if deal.test_points == 0:
        return [train]
    if deal.test_points is not None:
        return [train, torch.full((len(weight),), deal.test_points)]
    return [train, None if train is None else (train * ratio).round().long().clamp(min=1)]


def weight_of(deal: Deal, clients: int, seed: int) -> Tensor:
    return assign.weights(clients, deal.imbalance, deal.power_law, generator(seed, "weights"))
