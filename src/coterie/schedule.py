"""Which points each problem takes at which step: all batches of a solve, drawn beforehand.

An epoch's order is a sort of keyed hashes, so it depends on the problem's key and on nothing beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coterie.chance import mix
from coterie.federation import Points
from coterie.training import Training

_LAST = torch.iinfo(torch.int64).max  # sorts behind every key
_PLACE_BITS = 24  # of a sorted number, so that it carries its place with it


@dataclass(frozen=True)
class Schedule:
    """Batches, step axis first. `steps` (problem,) says how many of them are the problem's own."""

    steps: Tensor
    at: Tensor  # (step, problem, batch) the number of a point; any, where there is none
    mask: Tensor  # (step, problem, batch) 1 where there is a point, else 0
    weight: Tensor  # (step, problem, batch) of its loss: 1 over their number, times a_i over its mean


def padded(points: Points, owner: Tensor) -> tuple[Tensor, Tensor]:
    """(client, longest) the numbers of these clients' points, and where there is a point at all."""
    sizes = points.sizes[owner]
    place = torch.arange(int(sizes.max()), device=sizes.device)
    here = place < sizes[:, None]
    return torch.where(here, points.offset[owner][:, None] + place, 0), here


def batches_of(counts: Tensor, batch: int, needs_two: bool) -> Tensor:
    """Batches in an epoch of so many points; a last one of a single point is left out where batch norm needs two."""
    if not needs_two:
        return -(-counts // batch)
    if batch == 1:
        return torch.zeros_like(counts)
    return counts // batch + (counts % batch > 1).long()


def steps_of(training: Training, per_epoch: Tensor) -> Tensor:
    """(problem,) how many steps a problem takes, with so many batches in an epoch of its points."""
    if training.epochs is not None:
        return training.epochs * per_epoch
    return torch.where(per_epoch > 0, training.steps or 0, 0)


def table_bytes(training: Training, batch: int, most_points: int) -> int:
    """Bytes that the batches of a problem of so many points take while they are drawn, more or less."""
    epochs, steps = training.epochs, training.steps or 0
    return 40 * (steps * batch if epochs is None else epochs * most_points)


def draw(
    training: Training,
    batch: int,
    per_epoch: Tensor,
    key: Tensor,
    table: Tensor,
    here: Tensor,
    weight: Tensor,
) -> Schedule:
    """All batches of problems whose points are `table` (problem, place), where `here`, of weight (problem, place)."""
    here = here & (per_epoch > 0)[:, None]
    tables = (steps_of(training, per_epoch), per_epoch, key, table, here, weight)
    if training.epochs is not None:
        return _drawn(training.shuffle, batch, *tables)
    bands = torch.split(torch.arange(len(key), device=key.device), _bands(tables[0], per_epoch))
    return _joined([_drawn(training.shuffle, batch, *(t[some] for t in tables)) for some in bands])


def _bands(steps: Tensor, per_epoch: Tensor) -> list[int]:
    """How many problems to draw at a time: neighbours that go through their points about as often.

    With as many steps for all, a problem of few points has many epochs, in which one of many points need no order.
    """
    epochs = -(-steps // per_epoch.clamp(min=1))
    doublings = torch.log2(epochs.clamp(min=1).double()).long()
    lengths: list[int] = torch.unique_consecutive(doublings, return_counts=True)[1].tolist()
    return lengths


def _joined(parts: list[Schedule]) -> Schedule:
    """Problems side by side."""
    if len(parts) == 1:
        return parts[0]
    length = max(len(part.at) for part in parts)

    def beside(tables: list[Tensor]) -> Tensor:
        return torch.cat([functional.pad(t, (0, 0, 0, 0, 0, length - len(t))) for t in tables], 1)

    return Schedule(
        torch.cat([part.steps for part in parts]),
        beside([part.at for part in parts]),
        beside([part.mask for part in parts]),
        beside([part.weight for part in parts]),
    )


def _drawn(
    shuffle: bool,
    batch: int,
    steps: Tensor,
    per_epoch: Tensor,
    key: Tensor,
    table: Tensor,
    here: Tensor,
    weight: Tensor,
) -> Schedule:
    counts, each, row = here.sum(1), per_epoch.clamp(min=1), torch.arange(len(key), device=here.device)
    places = (here.any(0) * torch.arange(1, here.shape[1] + 1, device=here.device)).max().clamp(min=1)
    length, epochs, longest = torch.stack([steps.max(), (-(-steps // each)).max(), places]).tolist()
    table, here, weight = table[:, :longest], here[:, :longest], weight[:, :longest]
    step = torch.arange(length, device=here.device)[:, None]
    number = (step % each * batch)[:, :, None] + torch.arange(batch, device=here.device)  # within the epoch
    mask = (number < counts[:, None]).to(weight.dtype)
    order = _order(shuffle, key, epochs, here)
    epoch = (step // each).clamp(max=epochs - 1)  # of a problem that is through, any
    place = order.take((epoch * len(key) + row)[:, :, None] * longest + number.clamp(max=longest - 1))
    there = row[:, None] * longest + place
    weight = weight.take(there) * mask / mask.sum(2, keepdim=True).clamp(min=1)
    return Schedule(steps, table.take(there), mask, weight)


def _order(shuffle: bool, key: Tensor, epochs: int, here: Tensor) -> Tensor:
    """(epoch, problem, place) where an epoch's first, second, ... point lies; behind them, what is no point."""
    place = torch.arange(here.shape[1], device=here.device)
    epoch = torch.arange(epochs, device=here.device)[:, None, None]
    low = (1 << _PLACE_BITS) - 1
    keyed = mix(key[:, None], "order", epoch, place) & ~low if shuffle else torch.zeros_like(epoch)
    numbers = torch.where(here, keyed | place, _LAST & ~low | place)
    if numbers.device.type == "cpu":  # numpy sorts short rows many times faster
        return torch.from_numpy(np.sort(numbers.numpy(), axis=2)) & low
    return numbers.sort(dim=2).values & low
