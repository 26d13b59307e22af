"""All batches of a solve, drawn beforehand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie import Training
from coterie.engine import batches
from coterie.engine.batches import Schedule, batches_of, draw, epoch_plans

COUNTS = torch.tensor([200, 60, 9, 2, 1])
STEPS = Training(batch_size=4, epochs=None, steps=50)
EPOCHS = Training(batch_size=4, epochs=3)
LARGE = Training(batch_size=4, min_batch=3, epochs=3)
KINDS = pytest.mark.parametrize("training", [STEPS, EPOCHS, LARGE], ids=["steps", "epochs", "min_batch"])


def drawn(training: Training, some: slice, needs_two: bool = False, weighted: bool = True) -> Schedule:
    """Of those problems; place p of problem i is point 1000 i + p, and every fifth place is no point."""
    places = torch.arange(int(COUNTS.max()) * 5 // 4 + 2)
    here = (places % 5 != 0) & (places - places // 5 - 1 < COUNTS[:, None])
    assert torch.equal(here.sum(1), COUNTS)
    table = torch.arange(len(COUNTS))[:, None] * 1000 + places
    key, weight = torch.arange(len(COUNTS)) * 77, here.double()
    per_epoch = batches_of(COUNTS, 4, training.min_batch, needs_two)
    from_these = epoch_plans(training, 4, weight.dtype, *(t[some] for t in (per_epoch, table, here)))
    return draw(training.shuffle, from_these, key[some], weight[some] if weighted else None)


@KINDS
@pytest.mark.parametrize("needs_two", [False, True])
def test_a_problem_is_drawn_as_if_alone(training: Training, needs_two: bool) -> None:
    whole = drawn(training, slice(None), needs_two)
    for i in range(len(COUNTS)):
        alone = drawn(training, slice(i, i + 1), needs_two)
        n = int(alone.steps)
        assert n == int(whole.steps[i])
        there = alone.mask[:n, 0].bool()
        assert torch.equal(whole.mask[:n, i], alone.mask[:n, 0])
        assert torch.equal(whole.weight[:n, i], alone.weight[:n, 0])
        assert torch.equal(whole.at[:n, i][there], alone.at[:n, 0][there])


@KINDS
def test_without_weights_all_points_count_alike(training: Training) -> None:
    weighted, alike = (drawn(training, slice(None), weighted=given) for given in (True, False))
    for name in ("steps", "at", "mask", "weight"):
        assert torch.equal(getattr(weighted, name), getattr(alike, name))


def test_an_epoch_has_every_point_once() -> None:
    whole = drawn(STEPS, slice(None))
    for i, count in enumerate(COUNTS.tolist()):
        each = int(batches_of(COUNTS, 4, 1, needs_two=False)[i])
        for begin in range(0, 50 - each + 1, each):
            epoch = slice(begin, begin + each)
            seen = whole.at[epoch, i][whole.mask[epoch, i].bool()]
            assert len(seen.unique()) == len(seen) == count
            assert bool((seen // 1000 == i).all())


@pytest.mark.parametrize(
    ("min_batch", "per_epoch"), [(1, [3, 3, 2, 1, 1]), (3, [3, 2, 2, 1, 1]), (4, [3, 2, 1, 1, 1])]
)
def test_a_last_batch_smaller_than_the_least_is_left_out(min_batch: int, per_epoch: list[int]) -> None:
    """Of 12, 10, 7, 3 and 1 points; a client that has fewer points takes all of them as one batch."""
    counts = torch.tensor([12, 10, 7, 3, 1])
    assert batches_of(counts, 4, min_batch, needs_two=False).tolist() == per_epoch
    assert batches_of(counts, 4, min_batch, needs_two=True).tolist() == [*per_epoch[:4], 0]


def test_an_epoch_without_its_last_batch_has_other_points_each_time() -> None:
    """Which points are left out is drawn anew; every one is trained with."""
    whole = drawn(Training(batch_size=4, min_batch=4, epochs=20), slice(2, 3))
    assert whole.steps.tolist() == [2 * 20]  # of 9 points
    assert bool(whole.mask.all())
    assert len(whole.at.unique()) == 9


def test_few_points_of_one_make_no_orders_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of one point has 50 epochs; that of 200 points has one."""
    sorted_numbers: list[int] = []
    order = batches._order

    def counted(shuffle: bool, key: Tensor, epochs: int, here: Tensor) -> Tensor:
        sorted_numbers.append(epochs * here.numel())
        return order(shuffle, key, epochs, here)

    monkeypatch.setattr(batches, "_order", counted)
    drawn(STEPS, slice(None))
    assert sum(sorted_numbers) < 5 * 50 * 4 * 2  # problems, steps, batch: what they take, and as much again
