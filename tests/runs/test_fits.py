"""Whether a newcomer fits: digits under several labelings or rotations, and newcomers that are of none of them."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from coterie import ALGORITHMS, Run, Stage, Stages, Training, WeCFL
from coterie.backends.loopback import loopback
from coterie.data import digits
from coterie.data.partitions.transforms import turn
from coterie.data.sources.digits import read
from coterie.data.synthetic import coefficients
from coterie.models import build
from coterie.runs.play import play
from coterie.testing.small import nothing_left_out
from tests.builders import TRAINING, algorithm, clients, linear, simulation

SEED, CLUSTERS, SHIFT = 1, 3, 3
DIGITS = Training(learning_rate=0.2, batch_size=20, epochs=5)
NEWCOMERS = range(4)


@cache
def run_of(name: str, distributions: str) -> Run:
    more: dict[str, Any] = {"shift": SHIFT} if distributions == "relabel" else {}
    more["mixture"] = "random" if ALGORITHMS[name].soft else "pure"
    data = digits(SEED, clients=30, distributions=distributions, clusters=CLUSTERS, **more)
    model = build("mlp", (64,), 10, hidden=(32,))
    return coterie.run(
        model, data, algorithm(name, CLUSTERS), rounds=15, training=DIGITS, seed=SEED, evaluate_every=0
    )


def images(number: int, points: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Of those that nobody trains on."""
    source, chance = read(SEED), torch.Generator().manual_seed(number)
    which = torch.randperm(len(source.x_test), generator=chance)[:points]
    return source.x_test[which], source.y_test[which], chance


def fits(name: str, distributions: str, x: Tensor, y: Tensor) -> bool | None:
    return run_of(name, distributions).onboard(x.flatten(1), y).fits


@pytest.mark.parametrize("number", NEWCOMERS)
@pytest.mark.parametrize("name", ["FedSoft", "IFCA"])
def test_a_labeling_that_a_cluster_has(name: str, number: int) -> None:
    x, y, chance = images(number, 60)
    assert fits(name, "relabel", x, (y + number % CLUSTERS * SHIFT) % 10)
    if name == "FedSoft":
        of = torch.randint(CLUSTERS, (len(y),), generator=chance)
        assert fits(name, "relabel", x, (y + of * SHIFT) % 10)


@pytest.mark.parametrize("number", NEWCOMERS)
@pytest.mark.parametrize("name", ["FedSoft", "IFCA"])
def test_labels_that_no_cluster_has(name: str, number: int) -> None:
    """The best center of each point makes many labels likely, and so it does for the run's own clients."""
    x, y, chance = images(number, 60)
    assert fits(name, "relabel", x, torch.randint(10, (len(y),), generator=chance)) is False
    assert fits(name, "relabel", x, torch.randperm(10, generator=chance)[y]) is False


@pytest.mark.parametrize("number", NEWCOMERS)
@pytest.mark.parametrize("name", ["FedSoft", "WeCFL"])
def test_a_rotation_that_a_cluster_has_and_one_halfway(name: str, number: int) -> None:
    x, y, _ = images(number, 60)
    assert fits(name, "rotate", turn(x, 90 * (number % CLUSTERS)), y)
    assert fits(name, "rotate", turn(x, 45), y) is False


# where the run has put its own clients


def small_and_large() -> dict[str, tuple[Tensor, Tensor]]:
    """Two regressions, on clients of 5, 30 or 500 points."""
    theta = torch.tensor(coefficients(2, 10, 10.0, 40.0, SEED)).float()
    chance, found = torch.Generator().manual_seed(SEED), {}
    for i, points in enumerate((30, 5, 5, 500) * 4):
        x = torch.randn(points, 10, generator=chance)
        found[f"clinic {i}"] = x, x @ theta[i // 2 % 2] + torch.randn(points, generator=chance)
    return found


def test_clients_that_onboarding_would_put_elsewhere_are_named(caplog: pytest.LogCaptureFixture) -> None:
    given = small_and_large()
    data = coterie.data.from_arrays(given, test_fraction=0.0)
    with caplog.at_level(logging.WARNING, "coterie"):
        run = coterie.run(linear, data, WeCFL(2), rounds=6, training=Training(learning_rate=0.02), seed=SEED)
    main = run.importance.to_numpy().argmax(1)
    again = [run.onboard(*points, id=id).importance.index(1) for id, points in given.items()]
    elsewhere = [id for id, here, there in zip(given, main, again, strict=True) if here != there]
    assert elsewhere
    assert run.summary["placed_elsewhere"] == {"clients": len(elsewhere), "first": elsewhere[:5]}
    said = [record.getMessage() for record in caplog.records if "another cluster" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"{len(elsewhere)} of 16 clients")
    assert repr(elsewhere[0]) in said[0]


@pytest.mark.parametrize("name", ["FedSoft", "FedSPD", "FedEM", "IFCA", "FedAvg+"])
def test_who_chooses_by_loss_is_where_onboarding_puts_it(name: str, caplog: pytest.LogCaptureFixture) -> None:
    run = coterie.run(linear, small_and_large(), algorithm(name), rounds=4)
    assert run.summary["placed_elsewhere"] == {"clients": 0, "first": []}
    assert "another cluster" not in caplog.text


def test_with_one_model_there_is_no_other_place() -> None:
    assert (
        "placed_elsewhere" not in coterie.run(linear, small_and_large(), coterie.FedAvg(), rounds=1).summary
    )


# wherever clients are


@pytest.mark.parametrize("name", ["FedSPD", "WeCFL", "CFL", "FedAvg"])
def test_clients_far_away_say_the_same(name: str) -> None:
    plan, data = Stages((Stage(algorithm(name), 3, TRAINING),)), clients()
    with nothing_left_out():
        apart, together = (
            play(run, data.description, experiment="", evaluate_every=0)
            for run in (loopback(linear, data, plan, seed=SEED), simulation(plan, data, seed=SEED))
        )
    one, two = apart._result.fit, together._result.fit
    assert one is not None
    assert two is not None
    torch.testing.assert_close(
        one.losses, two.losses.to(one.losses.dtype), equal_nan=True, rtol=1e-3, atol=1e-4
    )
    assert torch.equal(one.points.double(), two.points.double())
    assert apart.summary.get("placed_elsewhere") == together.summary.get("placed_elsewhere")


def test_sizes_that_are_withheld_are_nowhere_in_the_result() -> None:
    data = {str(i): (torch.randn(25 + 7 * i, 4), torch.randint(0, 2, (25 + 7 * i,))) for i in range(6)}
    clients = coterie.data.from_arrays(data, test_fraction=0.0)
    privacy = coterie.Privacy(noise=0.1)
    run = coterie.run(torch.nn.Linear(4, 2), clients, coterie.FedEM(2), rounds=2, privacy=privacy)
    fit = run._result.fit
    assert fit is not None
    assert float(fit.points.max()) <= 20
    assert run.clients.points.isna().all()
