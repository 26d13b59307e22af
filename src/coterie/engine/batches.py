"""Which points each problem takes at which step: all batches of a solve, drawn beforehand.

An epoch's order is a sort of keyed hashes, so it depends on the problem's key and on nothing beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Points
from coterie.engine.training import Training
from coterie.prng import mix

log = logging.getLogger("coterie")

FEW = 4  # points, of which batch norm makes no good mean and variance
_LAST = torch.iinfo(torch.int64).max  # sorts behind every key
_PLACE_BITS = 24  # of a sorted number, so that it carries its place with it


@dataclass(frozen=True)
class Schedule:
    """Batches, step axis first, not to be written to. `steps` (problem,) says how many are the problem's own."""

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


def batches_of(counts: Tensor, batch: int, min_batch: int, needs_two: bool) -> Tensor:
    """(problem,) batches in an epoch of so many points.

    A last one of fewer than `min_batch` points is left out, unless it is the only one; where batch norm needs two
    points, one of a single point is left out even then.
    """
    whole, last = counts // batch, counts % batch
    taken = (last >= min_batch) | (last > 0) & (whole == 0)
    if not needs_two:
        return whole + taken.long()
    if batch == 1:
        return torch.zeros_like(counts)
    return whole + (taken & (last > 1)).long()


def warn_of_small_batches(trainings: Iterable[Training], points: Points) -> None:
    """Said before clients train, once for all runs that cut these points alike, where batch norm needs two of them."""
    cuts = tuple(dict.fromkeys((training.batch_size, training.min_batch) for training in trainings))

    def say() -> None:
        least = torch.stack([_least_batch(points.sizes, *cut) for cut in cuts]).min(0).values
        few = int((least < FEW).sum())
        if few:
            log.warning(
                "batch norm sees fewer than %d points in a batch of %d of %d clients (%d at the least), and one such "
                "step can throw a model far off; training.min_batch = %d leaves small last batches out, another "
                "batch_size may make none, and group norm does not mind them",
                *(FEW, few, len(least), int(least.min()), FEW),
            )

    points.remembered("small batches", cuts, say)


def _least_batch(sizes: Tensor, batch_size: int | None, min_batch: int) -> Tensor:
    """(client,) points in the smallest batch of an epoch; of a client too small for any, all of its points."""
    batch = batch_size or int(sizes.max())
    whole, last = sizes // batch, sizes % batch
    last_is_taken = batches_of(sizes, batch, min_batch, needs_two=True) > whole
    return torch.where(last_is_taken, last, torch.where(whole > 0, batch, sizes))


def steps_of(training: Training, per_epoch: Tensor) -> Tensor:
    """(problem,) how many steps a problem takes, with so many batches in an epoch of its points."""
    if training.epochs is not None:
        return training.epochs * per_epoch
    return torch.where(per_epoch > 0, training.steps or 0, 0)


def table_bytes(training: Training, batch: int, most_points: int) -> int:
    """Bytes that the batches of a problem of so many points take while they are drawn, more or less."""
    epochs, steps = training.epochs, training.steps or 0
    return 40 * (steps * batch if epochs is None else epochs * most_points)


@dataclass(frozen=True)
class EpochPlan:
    """What batches of some problems are drawn from: all of it that is not random."""

    table: Tensor  # (problem, place) the number of a point
    here: Tensor  # (problem, place) is there one?
    steps: Tensor  # (problem,)
    epochs: int  # the most that any of them takes
    number: Tensor  # (step, problem, batch) where a point is found in all epochs' orders; any, where there is none
    mask: Tensor  # (step, problem, batch) 1 where there is a point, else 0
    share: Tensor  # (step, problem, batch) the mask over the number of points in the batch

    @staticmethod
    def of(
        batch: int, dtype: torch.dtype, table: Tensor, here: Tensor, per_epoch: Tensor, steps: Tensor
    ) -> EpochPlan:
        each = per_epoch.clamp(min=1)
        place = torch.arange(1, here.shape[1] + 1, device=here.device)
        last = (here.any(0) * place).max().clamp(min=1)  # behind it nobody has a point
        found = torch.stack([steps.max(), (-(-steps // each)).max(), last])
        most_steps, epochs, longest = found.tolist()
        table, here = table[:, :longest].contiguous(), here[:, :longest].contiguous()
        row, beside = torch.arange(len(each), device=here.device), torch.arange(batch, device=here.device)
        step = torch.arange(most_steps, device=here.device)[:, None]
        first = step % each * batch  # (step, problem) which of the epoch's points a batch begins with
        left = here.sum(1) - first
        mask = (beside < left[:, :, None]).to(dtype)
        epoch = (step // each).clamp(max=epochs - 1)  # of a problem that is through, any
        begin = (epoch * len(each) + row) * longest + first
        number = (begin[:, :, None] + beside).clamp_(max=epochs * here.numel() - 1)
        share = mask / left.clamp(1, batch)[:, :, None]
        return EpochPlan(table, here, steps, epochs, number, mask, share)


def epoch_plans(
    training: Training, batch: int, dtype: torch.dtype, per_epoch: Tensor, table: Tensor, here: Tensor
) -> list[EpochPlan]:
    """Of problems whose points are `table` (problem, place), where `here`; neighbours that are alike together."""
    here, steps = here & (per_epoch > 0)[:, None], steps_of(training, per_epoch)
    if training.epochs is not None:
        return [EpochPlan.of(batch, dtype, table, here, per_epoch, steps)]
    bands = _bands(steps, per_epoch)
    tables = (torch.split(t, bands) for t in (table, here, per_epoch, steps))
    return [EpochPlan.of(batch, dtype, *some) for some in zip(*tables, strict=True)]


def draw(shuffle: bool, plans: list[EpochPlan], key: Tensor, weight: Tensor | None) -> Schedule:
    """All batches of the problems with these keys, whose points have weights (problem, place), or count alike."""
    sizes = [len(plan.steps) for plan in plans]
    weights = [None] * len(plans) if weight is None else torch.split(weight, sizes)
    return _joined(
        [_drawn(shuffle, *each) for each in zip(plans, torch.split(key, sizes), weights, strict=True)]
    )


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


def _drawn(shuffle: bool, plan: EpochPlan, key: Tensor, weight: Tensor | None) -> Schedule:
    """The host reads nothing back, so that a GPU can record it."""
    problems, longest = plan.here.shape
    begin = torch.arange(0, problems * longest, longest, device=key.device)[:, None]
    there = _order(shuffle, key, plan.epochs, plan.here).take(plan.number).add_(begin)
    share = plan.share
    if weight is not None:
        points = plan.mask.sum(2, keepdim=True).clamp(min=1)
        share = weight[:, :longest].take(there) * plan.mask / points
    return Schedule(plan.steps, plan.table.take(there), plan.mask, share)


def _order(shuffle: bool, key: Tensor, epochs: int, here: Tensor) -> Tensor:
    """(epoch, problem, place) where an epoch's first, second, ... point lies; behind them, what is no point."""
    place = torch.arange(here.shape[1], device=here.device)
    epoch = torch.arange(epochs, device=here.device)[:, None, None]
    low = (1 << _PLACE_BITS) - 1
    keyed = mix(key[:, None], "order", epoch, place) if shuffle else torch.zeros_like(epoch)
    numbers = torch.where(here, keyed, _LAST).bitwise_and_(~low).bitwise_or_(place)
    if numbers.device.type == "cpu":  # numpy sorts short rows many times faster
        numbers.numpy().sort(axis=2)
        return numbers.bitwise_and_(low)
    return numbers.sort(dim=2).values.bitwise_and_(low)
