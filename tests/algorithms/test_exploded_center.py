"""A center that exploded but is still finite: nobody's choice, and nothing that is not finite is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie import Stage, Stages
from coterie.protocol.coordinator import Coordinator
from tests.builders import CASES, PLACES, TRAINING, algorithm, clients, simulation

CLUSTERED = [
    (name, place)
    for name, place in CASES
    if name in ("FedSoft", "FedSPD", "FedEM", "IFCA", "HypCluster", "WeCFL", "FeSEM")
]
AND_ONE_SHOT = [*CLUSTERED, ("OneShot", "server")]  # whose clients stay in their cluster


def exploded(run: Coordinator, *which: int) -> None:
    """1e308 times an input of either sign: sums of infinities that are no number."""
    centers = run.state.centers.clone()
    centers[:, list(which)] = 1e308
    run.state = replace(run.state, centers=centers)


def kept(run: Coordinator) -> dict[str, torch.Tensor]:
    found = {n: t for n, t in run.clients.cohort.client_state.values.items() if n != "loss"}
    return {**found, **run.state.fields, "centers": run.state.centers}


@pytest.mark.parametrize(("name", "place"), CLUSTERED)
def test_an_exploded_center_is_nobodys_choice(name: str, place: str) -> None:
    run = simulation(Stages((Stage(algorithm(name, 3), 8, TRAINING, PLACES[place]),)), clients())
    for _ in range(2):
        run.step()
    exploded(run, 1)
    before = run.state.centers.clone()
    for _ in range(4):
        run.step()
    snapshot = run.evaluate()
    assert bool((snapshot.importance[:, 1] == 0).all())
    torch.testing.assert_close(snapshot.importance.sum(1), torch.ones(12, dtype=torch.float64))
    assert all(bool(t.isfinite().all()) for t in kept(run).values() if t.is_floating_point())
    others = run.state.centers[:, [0, 2]]
    assert not torch.equal(others, before[:, [0, 2]])  # the others are trained
    assert float(others.abs().max()) < 1e3
    finished = run.finish()
    assert bool(torch.isfinite(finished.personal.rows).all())
    assert finished.scores is not None
    assert bool(finished.scores.loss.isfinite().all())


def test_members_of_an_exploded_center_that_cannot_leave_it_train_it_anew() -> None:
    """From the mean of the others, as does who has no cluster yet."""
    run = simulation(Stages((Stage(algorithm("OneShot", 3), 8, TRAINING),)), clients())
    run.step()
    newcomer = int((run.state.member == 0).nonzero()[0])
    known = torch.ones(12, dtype=torch.bool)
    known[newcomer] = False
    run.state = run.state.update(clustered=known)
    exploded(run, 1)
    others = run.state.centers[0, [0, 2]].mean(0)
    offer = run.stage.algorithm.final_offer(run.state.for_everyone())
    torch.testing.assert_close(offer.center[newcomer], others)
    members = (run.state.member == 1) & known
    assert bool(members.any())
    torch.testing.assert_close(offer.center[members], others.expand(int(members.sum()), -1))
    for _ in range(2):
        run.step()
    assert float(run.state.centers.abs().max()) < 1e3
    assert run.state.member[newcomer] != 1


@pytest.mark.parametrize(("name", "place"), AND_ONE_SHOT)
def test_nothing_of_it_is_kept_where_every_center_exploded(name: str, place: str) -> None:
    run = simulation(Stages((Stage(algorithm(name), 6, TRAINING, PLACES[place]),)), clients())
    run.step()
    exploded(run, 0, 1)
    for _ in range(3):
        run.step()
    assert all(bool(t.isfinite().all()) for t in kept(run).values() if t.is_floating_point())
    assert bool(run.evaluate().importance.isfinite().all())


def test_who_diverged_keeps_the_optimizer_state_it_had() -> None:
    momentum = replace(TRAINING, optimizer="adam", keep_optimizer=True)
    run = simulation(Stages((Stage(algorithm("FedAvg"), 6, momentum),)), clients())
    run.step()
    good = run.state.centers.clone()
    exploded(run, 0)
    run.step()
    run.state = replace(run.state, centers=good)
    run.step()
    assert all(bool(t.isfinite().all()) for t in kept(run).values() if t.is_floating_point())
    assert not torch.equal(run.state.centers, good)
