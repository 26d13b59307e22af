"""The same run in a simulation, in loopback, and with one process for each client: everything comes out equal."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pandas.testing import assert_frame_equal

from coterie import ALGORITHMS, IFCA, FedAvg, FedSoft, FedSPD, Graph, Participation, Privacy, Stage, Stages
from coterie.algorithms.initialisation import initialised
from coterie.backends.loopback import loopback
from coterie.backends.simulation import simulate
from coterie.data import regressions
from coterie.data.federation import Federation
from coterie.protocol.coordinator import Coordinator
from coterie.runs.play import play as play_run
from coterie.runs.result import Run
from tests.builders import CASES, CPU, F64, MOMENTUM, PLACES, TRAINING, algorithm, close, finish, linear
from tests.contract.pipes import over_pipes

GRAPH = Graph("erdos-renyi", degree=3.0)
LOSSY = Participation(absent=0.1, stragglers=0.1)


def few() -> Federation:
    return regressions(5, 2, "10:90", sizes=(12, 25), separation=166.0, test_points=5, seed=7)


def together(stages: Stages, data: Federation | None = None) -> Coordinator:
    return simulate(linear, data or few(), stages, seed=3, dtype=F64, device=CPU)


def recorded(run: Coordinator, **more: Any) -> Run:
    return play_run(run, few().description, experiment="", evaluate_every=1, **more)


def compare(one: Run, other: Run) -> None:
    """Centers, importance, personal models, bytes, what is known of clients, and what was recorded of each round."""
    close(one._result, other._result)
    assert one.summary["traffic"] == other.summary["traffic"]
    assert one.summary["personal"] == pytest.approx(other.summary["personal"], abs=1e-9)
    compare_verdicts(one, other)
    assert_frame_equal(one.clients, other.clients, rtol=0, atol=1e-8)
    for mine, theirs in zip(one.records, other.records, strict=True):
        numbers = {n: v for n, v in mine.items() if isinstance(v, float) and not n.startswith("seconds")}
        assert numbers == pytest.approx({n: theirs[n] for n in numbers}, abs=1e-8)


def compare_verdicts(one: Run, other: Run) -> None:
    mine, theirs = one.summary.get("verdict"), other.summary.get("verdict")
    if mine is None or theirs is None:
        assert mine is theirs is None
        return
    assert (mine["good"], mine["findings"]) == (theirs["good"], theirs["findings"])
    numbers = {name: value for name, value in mine["numbers"].items() if isinstance(value, float)}
    assert numbers == pytest.approx({name: theirs["numbers"][name] for name in numbers}, abs=1e-6)


@pytest.mark.parametrize(("name", "place"), CASES)
def test_every_algorithm_with_a_process_for_each_client(name: str, place: str) -> None:
    lossy = Participation(fraction=0.8, absent=0.1, stragglers=0.1)
    plan = Stages((Stage(algorithm(name), 3, MOMENTUM, PLACES[place], lossy),))
    with over_pipes(linear, few(), plan) as run:
        apart = recorded(run)
    compare(apart, recorded(together(plan)))  # loopback is compared by the contracts


PLANS = {
    "until separated": Stage(ALGORITHMS["WeCFL"](2), 6, TRAINING, until="separated").then(
        Stage(FedSPD(2), 2, TRAINING, GRAPH)
    ),
    "over a graph until separated": Stage(FedSoft(2), 6, TRAINING, GRAPH, until="separated").then(
        Stage(FedSPD(2), 2, TRAINING, GRAPH)
    ),
    "n_init": Stage(IFCA(2), 2, MOMENTUM, n_init=3).then(Stage(FedSoft(2), 2, MOMENTUM)),
    "select by loss": Stages(
        (Stage(FedSoft(2), 3, TRAINING, participation=Participation(0.4, select="loss", candidates=4)),)
    ),
    "privacy": Stages((Stage(FedSoft(2), 3, TRAINING, privacy=Privacy(noise=0.5, importance_noise=0.1)),)),
    "privacy over a graph": Stages((Stage(FedSPD(2), 3, TRAINING, GRAPH, privacy=Privacy(noise=0.5)),)),
    "sketches of peers": initialised(
        Stage(FedSPD(2), 8, TRAINING, replace(GRAPH, rewire=0.2, weights="metropolis"), LOSSY), "sketch"
    ),
    "metropolis weights": Stages(
        (Stage(ALGORITHMS["FedEM"](2), 3, TRAINING, replace(GRAPH, weights="metropolis")),)
    ),
    "chosen by each client": Stage(ALGORITHMS["WeCFL"](2), 2, MOMENTUM).then(
        Stage(FedSPD(2), 4, MOMENTUM, personal="auto")
    ),
    "chosen over a graph": Stages((Stage(ALGORITHMS["FedEM"](2), 4, MOMENTUM, GRAPH, personal="auto"),)),
    "chosen of hard clusters": Stages((Stage(ALGORITHMS["WeCFL"](2), 4, MOMENTUM, personal="auto"),)),
    "server, graph, server": Stage(FedSoft(2), 2, TRAINING)
    .then(Stage(FedSPD(2), 2, TRAINING, GRAPH))
    .then(Stage(IFCA(2), 2, TRAINING)),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_stages_attempts_selection_and_privacy(plan: Stages) -> None:
    with over_pipes(linear, few(), plan) as run:
        apart = recorded(run)
    straight = recorded(together(plan))
    compare(apart, straight)
    compare(recorded(loopback(linear, few(), plan, seed=3)), straight)


@pytest.mark.parametrize(
    "stages",
    [PLANS["n_init"], PLANS["server, graph, server"], PLANS["chosen by each client"]],
    ids=["attempts", "stages", "chosen"],
)
@pytest.mark.parametrize("at", [1, 3, 5])
def test_resumed_from_a_checkpoint_and_from_the_clients_own_disks(
    stages: Stages, at: int, tmp_path: Path
) -> None:
    """Of the run's folder and of the clients' folders nothing else is known to the second run."""
    straight = recorded(together(stages))
    for folder, resume in ((tmp_path / "run", False), (tmp_path / "run", True)):
        with over_pipes(linear, few(), stages, folder=tmp_path / "clients") as run:

            def stop(record: dict[str, Any], rounds: int, resume: bool = resume) -> None:
                if record["round"] + 1 == at and not resume:
                    raise KeyboardInterrupt

            try:
                ended = recorded(run, out=folder, resume=resume, checkpoint_every=1, watch=stop)
            except KeyboardInterrupt:
                assert not resume
    compare(ended, straight)


def test_loopback_is_resumed_in_another_order(tmp_path: Path) -> None:
    plan, order = PLANS["server, graph, server"], [3, 0, 4, 1, 2]
    first, again = (
        loopback(linear, few(), plan, seed=3),
        loopback(linear, few().permuted(order), plan, seed=3),
    )
    for _ in range(3):
        first.step()
    again.load(*first.save())
    straight, resumed = finish(first).finish(), finish(again).finish()
    torch.testing.assert_close(resumed.importance, straight.importance[order], rtol=0, atol=1e-8)
    torch.testing.assert_close(resumed.personal.rows, straight.personal.rows[order], rtol=0, atol=1e-8)


@pytest.mark.parametrize("place", ["server", "graph"])
def test_a_client_that_falls_silent_is_absent_from_then_on(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process ends in the second round; the others go on without it."""
    plan = Stages(
        (Stage(FedAvg(), 4, TRAINING, Graph("complete") if place == "graph" else PLACES["server"]),)
    )
    silent = few().ids[1]

    def spoil(id: str, asked: int, answer: bytes) -> bytes | None:
        return None if id == silent and asked >= 2 else answer  # begin, train: then it is gone

    with caplog.at_level(logging.WARNING, "coterie"), over_pipes(linear, few(), plan, spoil=spoil) as run:
        sent = [run.step().clients.tolist() for _ in range(4)]
        centers = run.state.centers
    assert f"client '{silent}' does not answer 'train' and is left out" in caplog.text
    assert sent[0] == [0, 1, 2, 3, 4]
    assert all(1 not in who for who in sent[1:])
    assert centers.isfinite().all()
    # by hand: from the second round on, the mean of the four that are left, weighted by size
    by_hand, keep, sizes = together(plan), torch.tensor([0, 2, 3, 4]), few().train.sizes.double()
    by_hand.step()
    for _ in range(3):
        before, messages = by_hand.state, by_hand.step()
        mean = (sizes[keep, None] * messages.row[keep]).sum(0) / sizes[keep].sum()
        after = before.centers.clone()
        after[keep if place == "graph" else 0] = mean
        by_hand.state = replace(by_hand.state, centers=after)
    live = keep if place == "graph" else torch.tensor([0])
    torch.testing.assert_close(centers[live], by_hand.state.centers[live], rtol=0, atol=1e-10)
