"""When the centers are separated, as clients measure it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from coterie import Training
from coterie.data import from_arrays
from coterie.engine.model import LOSSES, FunctionalModel
from coterie.prng import id_keys
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Messages
from coterie.protocol.separation import likeliest_importance, measure, mixture_loss, separated
from tests.builders import F64


def scalar_cohort(points: list[list[float]]) -> Cohort:
    """Clients whose only input is 1 and whose model is one number w: its loss on a point y is (w − y)²."""
    data = from_arrays(
        [(torch.ones(len(y), 1), torch.tensor(y)[:, None]) for y in points],
        test_fraction=0.0,
        task="regression",
    )
    model = FunctionalModel(
        lambda: nn.Linear(1, 1, bias=False),
        LOSSES["regression"],
        device=torch.device("cpu"),
        dtype=F64,
        seed=0,
    )
    return Cohort.whole(model, Training(), data.train, id_keys(data.ids), data.task, 0)


def shown(*centers: float, clients: int) -> Messages:
    rows = torch.tensor(centers, dtype=F64)[None, :, None].expand(clients, -1, -1)
    return Messages(torch.arange(clients), {"centers": rows})


def test_importance_is_that_of_a_mixture() -> None:
    """Far from the other center a point is surely of its own: importance counts points, and the loss is its entropy."""
    cohort = scalar_cohort([[0.0, 0.0, 0.0, 100.0], [100.0, 100.0]])
    losses = cohort.losses(shown(0.0, 100.0, clients=2).centers)
    importance = likeliest_importance(cohort, losses)
    torch.testing.assert_close(importance, torch.tensor([[0.75, 0.25], [0.0, 1.0]], dtype=F64))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(
        mixture_loss(cohort, losses, importance), torch.tensor([entropy, 0.0], dtype=F64)
    )


def test_margin_is_one_for_pure_clients_and_nought_where_centers_are_alike_or_distinguish_no_client() -> None:
    pure = measure(scalar_cohort([[0.0, 0.0], [100.0, 100.0]]), shown(0.0, 100.0, clients=2))
    torch.testing.assert_close(pure["margin"], torch.ones(2, dtype=F64))
    torch.testing.assert_close(pure["loss"], torch.zeros(2, dtype=F64))
    alike = measure(scalar_cohort([[0.0, 3.0], [3.0, 3.0]]), shown(1.0, 1.0, clients=2))
    torch.testing.assert_close(alike["margin"], torch.zeros(2, dtype=F64), rtol=0, atol=1e-12)
    halves = measure(scalar_cohort([[0.0, 100.0], [100.0, 0.0]]), shown(0.0, 100.0, clients=2))
    torch.testing.assert_close(halves["margin"], torch.zeros(2, dtype=F64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5])
def test_the_margin_of_a_pure_client_is_one_with_any_number_of_clusters(clusters: int) -> None:
    """And 0 with a single one, which nothing can differ from."""
    margin = measure(scalar_cohort([[0.0, 0.0]]), shown(*(100.0 * s for s in range(clusters)), clients=1))[
        "margin"
    ]
    assert float(margin) == pytest.approx(float(clusters > 1))


def test_a_client_remembers_what_it_saw() -> None:
    cohort = scalar_cohort([[0.0, 0.0], [100.0, 100.0]])
    measure(cohort, shown(0.0, 100.0, clients=2))
    again = measure(cohort, shown(0.0, 100.0, clients=2))
    assert again["moved"].abs().max() < 1e-12
    assert again["grown"].abs().max() < 1e-12
    turned = measure(cohort, shown(100.0, 0.0, clients=2))
    torch.testing.assert_close(turned["moved"], torch.ones(2, dtype=F64))


@pytest.mark.parametrize(
    ("margin", "moved", "grown", "expected"),
    [(0.5, 0.0, 0.0, True), (0.05, 0.0, 0.0, False), (0.5, 0.2, 0.0, False), (0.5, 0.0, 0.1, False)],
)
def test_separated_asks_for_a_margin_that_no_longer_grows_and_steady_importance(
    margin: float, moved: float, grown: float, expected: bool
) -> None:
    sent = {n: torch.full((3,), v) for n, v in {"margin": margin, "moved": moved, "grown": grown}.items()}
    assert separated(Messages(torch.arange(3), sent)) is expected
    assert not separated(Messages(torch.arange(0), {}))
