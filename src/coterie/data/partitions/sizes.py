"""What the training side and the test side of a federation need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.data.partitions import assign
from coterie.data.partitions.distributions import Distributions
from coterie.data.partitions.mixtures import mixes_two, mixtures, structured
from coterie.data.partitions.settings import Partition
from coterie.data.partitions.transforms import Pool
from coterie.prng import numpy_generator


class Side(NamedTuple):
    """What one side needs: points, each from a cell (a part, a class, an owner) of the images."""

    pool: Pool
    cell: Tensor  # (point,)
    component: Tensor  # (point,) the distribution
    offset: Tensor  # (client + 1,)
    stocks: Sequence[Tensor]  # the images of each cell


def mixture_of(settings: Partition, distributions: Distributions, clients: int, seed: int) -> Tensor:
    """(client, distribution). '10:90' and the like mix the two of the first name, and the rest evenly."""
    n = len(distributions.train.parts)
    if settings.mixture == "structured":
        return structured(clients, n, settings.per_client or 1, settings.m0, seed)
    if len(distributions.factors) > 1 and mixes_two(settings.mixture):
        first = mixtures(settings.mixture, clients, distributions.factors[0], seed)
        rest = n // distributions.factors[0]
        return first.repeat_interleave(rest, 1) / rest
    return mixtures(settings.mixture, clients, n, seed)


def sizes_of(settings: Partition, weight: Tensor, ratio: float, seed: int) -> list[Tensor | None]:
    """(client,) points of each side; None: all that there is. There may be no test side."""
    train: Tensor | None = None
    if isinstance(settings.train_points, tuple):
        drawn = numpy_generator(seed, "sizes").integers(
            *settings.train_points, endpoint=True, size=len(weight)
        )
        train = torch.from_numpy(drawn)
    elif settings.train_points is not None:
        train = (weight * settings.train_points).round().long().clamp(min=1)
    if settings.test_points == 0:
        return [train]
    if settings.test_points is not None:
        return [train, torch.full((len(weight),), settings.test_points)]
    return [train, None if train is None else (train * ratio).round().long().clamp(min=1)]


def weight_of(settings: Partition, clients: int, seed: int) -> Tensor:
    return assign.weights(clients, settings.imbalance, settings.power_law, numpy_generator(seed, "weights"))
