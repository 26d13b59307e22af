"""How well centers fit clients, as clients measure it, and how a newcomer is judged by it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coterie import FedSPD, WeCFL
from coterie.data.federation import Points
from coterie.protocol.fit import LEAST, LIKE_THEM, QUANTILES, RIVALS, SURE, Fit, measure
from coterie.protocol.message import Messages
from tests.builders import F64, one_number_cohort

CENTERS = torch.tensor([[[0.0], [10.0]]], dtype=F64)  # for x = 1, the loss of a point y is y² or (10 − y)²


def offered(clients: int) -> Messages:
    return Messages(torch.arange(clients), {"centers": CENTERS.expand(clients, -1, -1)})


def ones(*y: float) -> tuple[list[float], list[float]]:
    return [1.0] * len(y), list(y)


# at the client


def test_a_point_has_its_own_center_or_that_of_its_client() -> None:
    cohort = one_number_cohort(ones(1.0, 2.0, 9.0), ones(12.0))
    soft, hard = (measure(kind(2), cohort, offered(2)) for kind in (FedSPD, WeCFL))
    assert soft["points"].tolist() == [[2, 1], [0, 1]]
    assert soft["losses"][0].tolist() == [[1.0] * 10 + [4.0] * 10, [1.0] * 20]
    assert soft["importance"].tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3)], [0, 1]]
    assert hard["points"].tolist() == [[3, 0], [0, 1]]
    assert sorted(set(hard["losses"][0, 0].tolist())) == [1, 4, 81]
    assert hard["losses"][0, 1].isnan().all()
    assert hard["importance"].tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("kind", [FedSPD, WeCFL])
def test_held_out_points_count_where_there_are_any(kind: type) -> None:
    test = Points.of([(torch.ones(2, 1, dtype=F64), torch.tensor([3.0, 3.0], dtype=F64))])
    test = replace(test, offset=torch.tensor([0, 2, 2]))  # of the first client
    cohort = replace(one_number_cohort(ones(1.0), ones(12.0)), test=test)
    found = measure(kind(2), cohort, offered(2))
    assert found["points"].tolist() == [[2, 0], [0, 1]]
    assert found["losses"][0, 0].tolist() == [9.0] * QUANTILES
    assert found["losses"][1, 1].tolist() == [4.0] * QUANTILES
    assert found["importance"].tolist() == [[1, 0], [0, 1]]


def test_a_center_that_diverged_is_nobodys() -> None:
    cohort = one_number_cohort(ones(1.0, 9.0))
    centers = torch.tensor([[[math.nan], [10.0]]], dtype=F64)
    found = measure(FedSPD(2), cohort, Messages(torch.arange(1), {"centers": centers}))
    assert found["points"].tolist() == [[0, 2]]


# of all clients


def even(low: float = 0.0, high: float = 1.0) -> Tensor:
    """(quantile,) losses that lie evenly."""
    return low + (high - low) * (torch.arange(QUANTILES, dtype=F64) + 0.5) / QUANTILES


def answered(losses: list[list[Tensor]], points: list[list[float]]) -> Messages:
    table = torch.stack([torch.stack(row) for row in losses])
    return Messages(torch.arange(len(losses)), {"losses": table, "points": torch.tensor(points, dtype=F64)})


def fit_of(*each: Tensor, points: float = 50.0) -> Fit:
    return Fit.of(answered([[one] for one in each], [[points]] * len(each)))


def at(center: int, points: int) -> Tensor:
    return torch.full((points,), center)


def test_it_is_compared_with_points_of_the_same_center() -> None:
    fit = Fit.of(answered([[even(), even(100, 101)]] * 3, [[50.0, 50.0]] * 3))
    like_them = even(0, 1).repeat(5)
    expected = pytest.approx(LIKE_THEM, abs=0.005)
    assert fit.worse(like_them, at(0, 100)) == expected
    assert fit.worse(like_them + 100, at(1, 100)) == expected
    assert fit.worse(like_them + 100, at(0, 100)) == 1
    assert fit.worse(like_them, at(1, 100)) == 0
    assert fit.worse(torch.full((10,), 0.5, dtype=F64), at(0, 10)) == pytest.approx(0.5**RIVALS)


def test_a_center_that_few_have_borrows_the_points_of_the_others() -> None:
    fit = Fit.of(answered([[even(), even(100, 101)]] * 3, [[50.0, 5.0]] * 3))
    assert fit.worse(even(0, 1).repeat(5), at(1, 100)) == pytest.approx(
        LIKE_THEM * (60 / 75) ** RIVALS, abs=0.01
    )


def test_the_limit_by_hand() -> None:
    """Alike clients, so only the points of both sides are drawn; no client counts for more than its quantiles."""
    fit, variance = fit_of(*[even()] * 10), 1 / (2 * RIVALS + 1) - LIKE_THEM**2
    for points in (30, 1000):
        spread = LEAST**2 + variance * (1 / points + 1 / (10 * QUANTILES))
        assert fit.limit(points) == pytest.approx(LIKE_THEM + SURE * math.sqrt(spread))


def test_clients_that_differ_allow_for_more() -> None:
    alike = fit_of(*[even()] * 10)
    unlike = fit_of(*[even(0.2 * i, 0.2 * i + 1) for i in range(10)], points=1000)
    assert unlike.limit(100) > alike.limit(100) + 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clients_that_diverged_do_not_count(bad: float) -> None:
    good, diverged = [even()] * 4, torch.full((QUANTILES,), bad, dtype=F64)
    assert fit_of(*good, diverged).limit(30) == fit_of(*good).limit(30)
    assert not fit_of(diverged, diverged).known


def test_one_badly_fitted_client_hides_no_stranger() -> None:
    good = [even()] * 19
    fit = fit_of(*good, even(1000, 2000))
    assert fit.worse(torch.full((50,), 3.0, dtype=F64), at(0, 50)) > fit.limit(50)
    assert fit.worse(even().repeat(5), at(0, 100)) < fit.limit(100)


@pytest.mark.parametrize("points", [1.0, 5.0])
def test_one_client_with_few_points_is_enough_to_judge_by(points: float) -> None:
    fit = fit_of(even(), points=points)
    assert fit.worse(even(), at(0, QUANTILES)) < fit.limit(30)
    assert math.isfinite(fit.limit(30))
