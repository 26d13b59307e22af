"""How many clusters: the rule by hand, points held out, choices kept and resumed, the command line."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import coterie
from coterie import ALGORITHMS, Choosing, FedEM, Graph, Stage, Stages, Training, WeCFL, toml
from coterie.algorithms import Algorithm
from coterie.backends.simulation import Simulation
from coterie.cli.main import main
from coterie.data import from_arrays, regressions
from coterie.data.federation import Federation
from coterie.errors import CoterieError
from coterie.experiment.experiment import parse
from coterie.model_selection.choice import Choice, compare
from coterie.model_selection.search import (
    _scored,
    choose_clusters,
    client_losses,
    hold_out,
    is_clustered,
    smoothed,
)
from coterie.model_selection.tried import Tried

# the rule


def _choice(losses: list[list[float]], gain: float = 0.05) -> Choice:
    tried = [Tried(s + 1, tuple(each), 0.0, 0, 0.0) for s, each in enumerate(losses)]
    return Choice.among(tried, gain)


def _chosen(losses: list[list[float]], gain: float = 0.05) -> int:
    return _choice(losses, gain).n_clusters


def test_the_elbow() -> None:
    assert _chosen([[9, 9, 9], [4, 4, 4], [1, 1, 1], [1, 1, 1], [1, 1, 1]]) == 3


def test_no_gain_at_all() -> None:
    assert _chosen([[1, 1, 1], [1, 1, 1]]) == 1


def test_too_many_clusters_do_harm() -> None:
    assert _chosen([[5, 5, 5], [1, 1, 1], [2, 2, 2]]) == 2


def test_chance_by_hand() -> None:
    # differences 0, 0.2, 0.1, 0.1: mean 0.1, deviation √(0.02/3) = 0.0816, error 0.0408, and 1.645 of these 0.0672
    losses = torch.tensor([[1.0, 1.2, 1.1, 1.1], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    found = compare(losses, 0.05)
    assert found.excess.tolist() == pytest.approx([0.1, 0.0])
    assert found.error.tolist() == pytest.approx([0.0408248, 0.0])
    assert found.allowed.tolist() == pytest.approx([0.0671568, 0.05])
    assert _chosen(losses.tolist()) == 2
    assert _chosen(losses.tolist(), gain=0.11) == 1


def test_clients_are_compared_with_themselves() -> None:
    """Their losses differ much from each other, but each has 1.2 less with two clusters."""
    two = [float(k) for k in range(1, 10)]
    assert _chosen([[loss + 1.2 for loss in two], two]) == 2


def test_one_client_that_fares_badly_is_chance_and_three_are_not() -> None:
    good = [1.0] * 20
    assert _chosen([[50.0] * 20, [60.0, *good[1:]], good]) == 2
    assert _chosen([[50.0] * 20, [60.0] * 3 + good[3:], good]) == 3


def test_a_number_that_diverged_is_not_chosen() -> None:
    assert _chosen([[5.0, 5.0], [1.0, math.inf], [2.0, 2.0]]) == 3
    with pytest.raises(CoterieError, match="diverged; a smaller training rate"):
        _chosen([[math.inf, 1.0], [1.0, math.inf]])


Table = st.integers(2, 5).flatmap(
    lambda clients: st.lists(
        st.lists(st.integers(1, 50).map(float), min_size=clients, max_size=clients), min_size=1, max_size=5
    )
)


@given(Table, st.sampled_from([0.25, 2.0, 1024.0]))
def test_scale_and_order_of_clients_change_nothing_and_the_best_bounds_the_choice(
    losses: list[list[float]], scale: float
) -> None:
    chosen = _chosen(losses)
    assert _chosen([[scale * one for one in each] for each in losses]) == chosen
    assert _chosen([each[::-1] for each in losses]) == chosen
    means = [sum(each) / len(each) for each in losses]
    assert chosen <= means.index(min(means)) + 1


def test_the_sentence_and_the_warning() -> None:
    best = _choice([[9, 9], [1, 1], [2, 2]])
    assert (
        best.why()
        == "2 clusters are chosen: the held-out loss, 1, is the least, and with fewer it is 9 or more"
    )
    assert best.warning() is None
    near = _choice([[1.04, 1.04], [1, 1]])
    assert near.why() == (
        "1 cluster is chosen: the fewest whose held-out loss, 1.04, is within 0.05 of the least, 1 with 2"
    )
    assert (
        _choice([[9, 9], [1, 1]]).warning()
        == "2 clusters are the most that were tried; more may be better still"
    )


# points held out


def _federation(sizes: list[int]) -> Federation:
    """Every point is a number of its own; test points are negative."""
    clients: dict[str, Any] = {}
    start = 0
    for i, size in enumerate(sizes):
        x = torch.arange(start, start + size).float()
        clients[f"client {i}"] = (x, x, -1 - x[:1], x[:1])
        start += size
    return from_arrays(clients, task="regression")


def _points(data: Federation, part: str) -> dict[str, list[float]]:
    points = getattr(data, part)
    own = {}
    for i, name in enumerate(data.ids):
        at = points.at[points.offset[i] : points.offset[i + 1]]
        own[name] = points.x[at].flatten().tolist()
    return own


def test_a_share_of_each_clients_own_training_points_is_held_out() -> None:
    data = _federation([1, 2, 4, 10, 40])
    apart = hold_out(data, 0.25, seed=3)
    kept, held = _points(apart, "train"), _points(apart, "test")
    assert [len(each) for each in held.values()] == [
        0,
        1,
        1,
        3,
        10,
    ]  # a half is rounded up; one point is kept
    for name, every in _points(data, "train").items():
        assert sorted(kept[name] + held[name]) == every  # no test point, none twice, none of others
    assert apart.train.y.flatten().tolist() == [one for each in kept.values() for one in each]
    assert apart.distributions is None


def test_who_else_takes_part_does_not_change_what_is_held_out() -> None:
    data = _federation([6, 9, 12])
    held = _points(hold_out(data, 0.3, 0), "test")
    assert _points(hold_out(data.permuted([2, 0, 1]), 0.3, 0), "test") == held
    assert _points(hold_out(data.permuted([1]), 0.3, 0), "test") == {"client 1": held["client 1"]}
    assert _points(hold_out(data, 0.3, 1), "test") != held


def test_a_client_always_keeps_a_point_to_train_on() -> None:
    apart = hold_out(_federation([1, 2, 10]), 0.99, 0)
    assert apart.train.sizes.tolist() == [1, 1, 1]


def test_nothing_to_hold_out_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"held_out is 0.25, which holds out no point"):
        hold_out(_federation([1, 1]), 0.25, 0)


# scores

TRAINING = Training(learning_rate=0.2, batch_size=None, epochs=4)  # whole batches: quick, and nearly exact


def _lines(clusters: int, pattern: str = "pure", clients: int = 16, seed: int = 0) -> Federation:
    return regressions(
        clients, clusters, pattern, sizes=(30, 40), dimension=4, distribution_points=10, seed=seed
    )


def linear() -> nn.Module:
    return nn.Linear(4, 1)


def _played(data: Federation, *stages: Stage) -> Simulation:
    simulation = Simulation(linear, hold_out(data, 0.25, 0), Stages(stages))
    while not simulation.done:
        simulation.step()
    return simulation


def _errors(simulation: Simulation, center: torch.Tensor, client: int) -> torch.Tensor:
    """Squared errors of one center on the points that a client holds out."""
    assert simulation.test is not None
    own = simulation.test.take(torch.tensor([client]))
    x, y = own.x[own.at], own.y
    return ((x @ center[:4] + center[4]) - y[:, 0]) ** 2


def test_what_has_one_cluster_per_client_is_scored_by_its_loss() -> None:
    simulation = _played(_lines(2), Stage(WeCFL(2), 3, TRAINING))
    found = client_losses(simulation, simulation.test)
    for client, member in enumerate(simulation.state.member.tolist()):
        errors = _errors(simulation, simulation.state.centers[0, member], client)
        assert found[client].item() == pytest.approx(errors.mean().item(), rel=1e-5)


def test_what_has_one_cluster_per_point_is_scored_by_its_likelihood() -> None:
    simulation = _played(_lines(2, "10:90"), Stage(WeCFL(2), 2, TRAINING), Stage(FedEM(2), 2, TRAINING))
    found = client_losses(simulation, simulation.test)
    share = smoothed(simulation.result().importance, simulation.clients.cohort.sizes)
    for client in range(len(simulation.data)):
        errors = [_errors(simulation, center, client) for center in simulation.state.centers[0]]
        likely = sum(u * torch.exp(-e.double()) for u, e in zip(share[client], errors, strict=True))
        assert found[client].item() == pytest.approx(-torch.log(likely).mean().item(), rel=1e-4)


@pytest.mark.parametrize("wild", [1e30, math.nan])
def test_a_loss_that_is_not_finite_is_told_as_infinite(wild: float) -> None:
    """Were it only very large, one such client would be taken for chance."""
    simulation = _played(_lines(2), Stage(WeCFL(2), 1, TRAINING))
    simulation.state.centers[0, simulation.state.member[0]] = wild
    assert _scored(simulation).losses[0] == math.inf


def test_shares_are_smoothed_by_one_point() -> None:
    share = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert smoothed(share, torch.tensor([3, 4])).tolist() == [[3.5 / 4, 0.5 / 4], [0.5, 0.5]]


def test_what_is_told_is_counted() -> None:
    data, stage = _lines(2), Stage(WeCFL(1), 2, TRAINING)
    choice = choose_clusters(linear, data, stage, choosing=Choosing(most=2, n_init=1))
    simulation = _played(data, Stage(WeCFL(2), 2, TRAINING))
    simulation.result(final=True)
    sent = 2 * 4 * len(data)  # two float32 numbers of each client
    assert choice.lines[1].megabytes == (simulation.traffic.total() + sent) / 1e6


# choosing

STAGE = Stage(WeCFL(1), 4, TRAINING)
FEW = Choosing(most=4, n_init=1)


@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_the_true_number_is_found(clusters: int) -> None:
    assert choose_clusters(linear, _lines(clusters), STAGE, choosing=FEW).n_clusters == clusters


def test_order_of_clients_and_test_points_change_nothing() -> None:
    data = _lines(2)
    found = choose_clusters(linear, data, STAGE, choosing=FEW, dtype=torch.float64)
    other = replace(data.permuted(list(range(16))[::-1]), test=None)
    again = choose_clusters(linear, other, STAGE, choosing=FEW, dtype=torch.float64)
    for one, two in zip(found.lines, again.lines, strict=True):
        assert two.held_out_loss == pytest.approx(one.held_out_loss, rel=1e-9)
        assert two.excess_error == pytest.approx(one.excess_error, rel=1e-6, abs=1e-12)


def test_more_starts_never_have_a_higher_held_out_loss() -> None:
    few = Choosing(least=2, most=4, n_init=1)
    stage = Stage(coterie.IFCA(1), 3, TRAINING)
    one = choose_clusters(linear, _lines(3), stage, choosing=few)
    three = choose_clusters(linear, _lines(3), stage, choosing=replace(few, n_init=3))
    pairs = [(a.held_out_loss, b.held_out_loss) for a, b in zip(one.lines, three.lines, strict=True)]
    assert all(b <= a for a, b in pairs)
    assert any(b < a for a, b in pairs)


def test_always_fewer_clusters_than_clients() -> None:
    choice = choose_clusters(linear, _lines(1, clients=4), Stage(FedEM(1), 1), choosing=Choosing(n_init=1))
    assert [line.n_clusters for line in choice.lines] == [1, 2, 3]
    assert Choosing().numbers(1) == range(1, 2)


CLUSTERED = [kind for kind in ALGORITHMS.values() if is_clustered(kind)]


@pytest.mark.parametrize("kind", CLUSTERED, ids=lambda kind: kind.title())
@pytest.mark.parametrize("place", ["server", "graph"])
def test_every_clustered_algorithm_can_be_asked(kind: type[Algorithm], place: str) -> None:
    if kind.needs_server and place == "graph":
        pytest.skip("needs a server")
    topology = coterie.Server() if place == "server" else Graph("complete")
    stage = Stage(kind(n_clusters=5), 2, TRAINING, topology)  # type: ignore[call-arg]
    choice = choose_clusters(linear, _lines(2, clients=6), stage, choosing=Choosing(most=3, n_init=1))
    assert [line.n_clusters for line in choice.lines] == [1, 2, 3]
    assert [line.parameters for line in choice.lines] == [5, 10, 15]
    assert all(math.isfinite(line.held_out_loss) for line in choice.lines)


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        (coterie.FedAvg(), "FedAvg has no number of clusters; allowed is an algorithm with n_clusters"),
        (coterie.CFL(), "CFL finds the number of clusters itself; run it without one"),
    ],
)
def test_what_has_no_number_is_refused(algorithm: Algorithm, says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        choose_clusters(linear, _lines(2), algorithm)


# kept, interrupted, resumed


class Counter:
    """Counts rounds by number of clusters, and stops at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.rounds: dict[int, int] = {}
        self.stop = stop

    def __call__(self, clusters: int, record: dict[str, Any], rounds: int) -> None:
        assert rounds == 8
        assert record["round"] == self.rounds.get(clusters, 0)
        self.rounds[clusters] = self.rounds.get(clusters, 0) + 1
        if clusters == self.stop and record["round"] == 5:
            raise KeyboardInterrupt


def test_an_interrupted_choice_goes_on_at_the_number_it_was_at(tmp_path: Path) -> None:
    choosing, data = Choosing(most=4, n_init=2), _lines(2)
    with pytest.raises(KeyboardInterrupt):
        choose_clusters(linear, data, STAGE, choosing=choosing, out=tmp_path, watch=Counter(stop=3))
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["1.json", "2.json"]
    rest = Counter()
    resumed = choose_clusters(linear, data, STAGE, choosing=choosing, out=tmp_path, watch=rest)
    assert rest.rounds == {3: 8, 4: 8}
    assert resumed == choose_clusters(linear, data, STAGE, choosing=choosing)


def test_what_was_tried_with_other_settings_is_not_taken(tmp_path: Path) -> None:
    few = Choosing(most=1, n_init=1)
    choose_clusters(linear, _lines(2), STAGE, choosing=few, out=tmp_path)
    for changed in (
        {"algorithm": replace(STAGE, rounds=9)},
        {"data": _lines(2, seed=1)},
        {"choosing": replace(few, held_out=0.4)},
        {"choosing": replace(few, n_init=2)},
        {"experiment": "another model"},
    ):
        given = {"model": linear, "data": _lines(2), "algorithm": STAGE, "choosing": few, **changed}
        with pytest.raises(CoterieError, match=r"1\.json was tried with other settings"):
            choose_clusters(**given, out=tmp_path)


def test_a_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    few = Choosing(most=1, n_init=1)
    choose_clusters(linear, _lines(2), STAGE, choosing=few, out=tmp_path)
    (tmp_path / "tried" / "1.json").write_text("[1")
    with pytest.raises(CoterieError, match=r"1\.json holds nothing that was tried; allowed is to start over"):
        choose_clusters(linear, _lines(2), STAGE, choosing=few, out=tmp_path)


def test_a_number_that_diverged_is_kept_as_such(tmp_path: Path) -> None:
    tried = Tried(2, (1.0, math.inf), math.inf, 3, 0.5)
    tried.save(tmp_path / "2.json", "this")
    assert Tried.load(tmp_path / "2.json", "this") == tried
    assert "Infinity" not in (tmp_path / "2.json").read_text()


# the command line

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "threads": 1,
    "data": {
        "source": "regressions",
        "clients": 16,
        "clusters": 3,
        "pattern": "pure",
        "sizes": [30, 40],
        "dimension": 4,
        "distribution_points": 10,
    },
    "model": {"name": "linear"},
    "training": {"learning_rate": 0.2, "batch_size": "none", "epochs": 4},
    "choosing": {"most": 4, "n_init": 1},
}
AUTO = {**SMALL, "algorithm": {"name": "WeCFL", "n_clusters": "auto"}}


def _write(table: dict[str, Any], name: str = "small.toml") -> str:
    Path(name).write_text(toml.write(table))
    return name


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("clusters", [2, 3])
def test_choose_clusters_finds_prints_and_writes(clusters: int, capsys: pytest.CaptureFixture[str]) -> None:
    file = _write({**SMALL, "algorithm": {"name": "WeCFL", "n_clusters": 7}})
    arguments = [
        "choose-clusters",
        file,
        "--set",
        f"data.clusters={clusters}",
        "--least",
        "1",
        "--out",
        "found",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"WeCFL: {clusters} clusters are chosen: the held-out loss" in printed.out
    choice = json.loads(Path("found/choice.json").read_text())
    assert choice["n_clusters"] == clusters
    assert [line["n_clusters"] for line in choice["tried"] if line["chosen"]] == [clusters]
    rows = list(csv.DictReader(Path("found/choice.csv").read_text().splitlines()))
    assert [float(row["held_out_loss"]) for row in rows] == [
        line["held_out_loss"] for line in choice["tried"]
    ]
    assert Path("found/choice.png").read_bytes().startswith(b"\x89PNG")
    assert 'n_clusters = "auto"' in Path("found/choice.toml").read_text()
    assert main([*arguments, "--most", "2"]) == 0  # what was tried before is read, not computed
    assert "round" not in capsys.readouterr().out


def test_a_run_chooses_and_is_then_as_if_the_number_had_been_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", _write(AUTO), "--out", "auto"]) == 0
    assert "WeCFL: 3 clusters are chosen" in capsys.readouterr().out
    numbered = {**AUTO, "algorithm": {"name": "WeCFL", "n_clusters": 3}}
    assert main(["run", _write(numbered), "--out", "three"]) == 0
    for name in ("experiment.toml", "result.safetensors", "summary.json"):
        assert Path("auto", name).read_bytes() == Path("three", name).read_bytes()
    assert json.loads(Path("auto/choice.json").read_text())["n_clusters"] == 3
    assert coterie.load("auto").summary["algorithm"] == "WeCFL"


def test_one_key_for_all_stages_and_methods() -> None:
    stages = [{"rounds": 2, "algorithm": {"name": "WeCFL"}}, {"rounds": 2, "algorithm": {"name": "FedEM"}}]
    methods = [
        {"algorithm": {"name": "FedAvg"}},
        {"label": "soft", "stage": stages},
        {"algorithm": {"name": "IFCA", "n_clusters": 2}},
    ]
    asked = parse({**SMALL, "clusters": "auto", "method": methods})
    assert [method.auto for method in asked.methods] == [False, True, False]
    assert parse(toml.read(asked.resolved(), "")) == asked
    settled = asked.methods[1].with_clusters(3)
    assert [stage.algorithm.clusters() for stage in settled.stages] == [3, 3]
    numbered = parse({**SMALL, "clusters": 3, "method": methods})
    assert numbered.methods[1] == settled


@pytest.mark.parametrize("clusters", [1, 3])
def test_a_number_chosen_for_a_lone_algorithm_makes_the_stages_that_are_read_again(clusters: int) -> None:
    asked = parse({**SMALL, "algorithm": {"name": "IFCA", "n_clusters": "auto"}})
    settled = replace(asked, methods=(asked.methods[0].with_clusters(clusters),))
    assert parse(toml.read(settled.resolved(), "")).methods[0] == settled.methods[0]
    assert len(settled.methods[0].stages) == (1 if clusters == 1 else 2)


def test_several_methods_each_with_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [{"rounds": 3, "algorithm": {"name": "WeCFL"}}, {"rounds": 2, "algorithm": {"name": "FedEM"}}]
    methods = [{"algorithm": {"name": "FedAvg"}}, {"label": "soft", "stage": stages}]
    assert main(["run", _write({**SMALL, "clusters": "auto", "method": methods}), "--out", "both"]) == 0
    assert "soft: 3 clusters are chosen" in capsys.readouterr().out
    assert json.loads(Path("both/soft/choice.json").read_text())["n_clusters"] == 3
    kept = toml.read(Path("both/experiment.toml").read_text(), "")
    assert [stage["algorithm"]["n_clusters"] for stage in kept["method"][1]["stage"]] == [3, 3]
    assert not Path("both/FedAvg/choice.json").exists()


def test_a_run_interrupted_while_choosing_is_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _write(AUTO), "--out", "straight"]) == 0
    prepared = parse(AUTO).prepare()
    folder = Path("stopped")
    folder.mkdir()
    (folder / "experiment.toml").write_text(prepared.experiment.resolved())

    def stop(clusters: int, record: dict[str, Any], rounds: int) -> None:
        if clusters == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared.choose(prepared.experiment.methods[0], folder, stop)
    capsys.readouterr()
    assert main(["resume", "stopped"]) == 0
    printed = capsys.readouterr().out
    assert "n_clusters = 2" not in printed
    assert "n_clusters = 3" in printed
    for name in ("experiment.toml", "result.safetensors", "summary.json", "choice.json"):
        assert Path("straight", name).read_bytes() == (folder / name).read_bytes()


def test_a_run_started_over_forgets_its_choice() -> None:
    assert main(["run", _write(AUTO), "--out", "run"]) == 0
    assert main(["run", _write(AUTO), "--out", "run"]) == 2
    assert (
        main(
            [
                "run",
                _write({**AUTO, "algorithm": {"name": "WeCFL", "n_clusters": 2}}),
                "--out",
                "run",
                "--again",
            ]
        )
        == 0
    )
    assert not Path("run/choice.json").exists()
    assert not Path("run/tried").exists()


def test_without_matplotlib_one_sentence_and_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["choose-clusters", _write(AUTO), "--most", "1", "--out", "found"]) == 0
    printed = capsys.readouterr()
    assert (
        printed.err
        == "coterie: the plot needs matplotlib, which is not installed: pip install 'coterie[plot]'\n"
    )
    assert Path("found/choice.json").exists()
    assert not Path("found/choice.png").exists()


def test_what_cannot_be_played_is_not_played() -> None:
    prepared = parse(AUTO).prepare()
    with pytest.raises(CoterieError, match="'auto'; choose a number first"):
        prepared.play(prepared.experiment.methods[0], Path("run"))


STAGED = [
    {"rounds": 1, "algorithm": {"name": "WeCFL", "n_clusters": "auto"}},
    {"rounds": 1, "algorithm": {"name": "FedEM", "n_clusters": 2}},
]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            {"algorithm": {"name": "WeCFL", "n_clusters": "many"}},
            "algorithm.n_clusters is 'many'; allowed is a whole",
        ),
        ({"algorithm": {"name": "WeCFL", "n_clusters": "many"}}, "or 'auto'"),
        (
            {"clusters": 0, "algorithm": {"name": "WeCFL"}},
            "clusters is 0; allowed is a whole number from 1 or 'auto'",
        ),
        ({"clusters": "auto", "algorithm": {"name": "FedAvg"}}, "FedAvg has no number of clusters"),
        ({"algorithm": {"name": "CFL", "n_clusters": "auto"}}, "CFL finds the number of clusters itself"),
        ({"stage": STAGED}, "stage.1.algorithm.n_clusters is 2; allowed is 'auto', as another stage"),
        ({**AUTO, "choosing": {"most": 0}}, "choosing.most is 0; allowed is 1 (least) or more"),
        (
            {**AUTO, "choosing": {"held_out": 1.0}},
            "choosing.held_out is 1.0; allowed is a number above 0 and below 1",
        ),
        ({**AUTO, "choosing": {"least": 17, "most": 20}}, "choosing.least is 17; allowed is 1 to 15, fewer"),
        ({**AUTO, "choosing": {"trials": 3}}, "choosing.trials is not a known key"),
    ],
)
def test_malformed_experiments(table: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _write({**SMALL, **table}), "--out", "run"]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("algorithm", "arguments", "says"),
    [
        ("FedAvg", [], "FedAvg has no number of clusters"),
        ("CFL", [], "CFL finds the number of clusters itself"),
        ("WeCFL", ["--least", "0"], "--least is 0; allowed is 1 or more"),
        ("WeCFL", ["--least", "3", "--most", "2"], "--most is 2; allowed is 3 (least) or more"),
    ],
)
def test_malformed_commands(
    algorithm: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters = {"n_clusters": 2} if algorithm == "WeCFL" else {}
    file = _write({**SMALL, "algorithm": {"name": algorithm, **clusters}})
    assert main(["choose-clusters", file, "--out", "found", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not Path("found").exists()


def test_a_folder_that_holds_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _write(AUTO), "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["choose-clusters", _write(AUTO), "--out", "run"]) == 2
    assert (
        capsys.readouterr().err == "coterie: --out is 'run', which holds a run; allowed is another folder\n"
    )
