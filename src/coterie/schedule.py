"""Which points each problem takes at which step: all batches of a solve, drawn beforehand.

An epoch's order is a sort of keyed hashes, so it depends on the problem's key and on nothing beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
    steps, counts = steps_of(training, per_epoch), here.sum(1)
    length = int(steps.max()) if len(steps) else 0
    device, each = table.device, per_epoch.clamp(min=1)
    step = torch.arange(length, device=device)[:, None]
    epoch = step // each  # (step, problem)
    first = step % each * batch
    place = torch.empty(length, len(table), batch, dtype=torch.long, device=device)
    in_batch = torch.arange(batch, device=device)
    shortest, longest = (int(each.min()), int(each.max())) if len(each) else (1, 1)
    for number in range(-(-length // shortest)):
        span = slice(number * shortest, min(length, (number + 1) * longest))
        order = _order(training.shuffle, key, number, here)
        wanted = (first[span, :, None] + in_batch).clamp(max=order.shape[1] - 1)
        found = order.expand(len(wanted), -1, -1).gather(2, wanted)
        if shortest == longest:
            place[span] = found
        else:
            place[span] = torch.where((epoch[span] == number)[:, :, None], found, place[span])
    mask = (first[:, :, None] + in_batch < counts[:, None]).to(weight.dtype)
    weight = _taken(weight, place) * mask / mask.sum(2, keepdim=True).clamp(min=1)
    return Schedule(steps, _taken(table, place), mask, weight)


def _taken(values: Tensor, place: Tensor) -> Tensor:
    """(step, problem, batch) of values (problem, place)."""
    return values.expand(len(place), -1, -1).gather(2, place)


def _order(shuffle: bool, key: Tensor, epoch: int, here: Tensor) -> Tensor:
    """(problem, place) where the first, the second, ... point of this epoch lies; behind them, what is no point."""
    place = torch.arange(here.shape[1], device=here.device)
    low = (1 << _PLACE_BITS) - 1
    keyed = (
        mix(key[:, None], "order", epoch, place) & ~low
        if shuffle
        else torch.zeros_like(here, dtype=torch.long)
    )
    numbers = torch.where(here, keyed | place, _LAST & ~low | place)
    if numbers.device.type == "cpu":  # numpy sorts short rows many times faster
        return torch.from_numpy(np.sort(numbers.numpy(), axis=1)) & low
    return numbers.sort(dim=1).values & low
