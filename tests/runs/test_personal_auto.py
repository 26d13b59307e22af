"""Runs whose clients choose their models: what they leave, loaded, resumed, and with newcomers."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from coterie import ALGORITHMS, Algorithm, CoterieError, FedSPD, Run, Stage, WeCFL, toml
from coterie.cli.main import main
from coterie.data import regressions
from coterie.experiment.experiment import parse
from coterie.protocol.personalise import WAYS
from coterie.protocol.stages import has_clusters
from coterie.runs.models import Mixture
from tests.builders import TRAINING, algorithm, linear

DATA = regressions(clients=12, sizes=(20, 40), mixture="10:90", separation=166.0, test_points=5, seed=1)


def chosen(method: Algorithm | None = None, rounds: int = 8, **more: Any) -> Run:
    return coterie.run(
        linear, DATA, method or FedSPD(2), rounds=rounds, training=TRAINING, personal="auto", **more
    )


def newcomer(n: int = 30) -> tuple[Tensor, Tensor]:
    own = slice(int(DATA.train.offset[3]), int(DATA.train.offset[4]))
    x, y = DATA.train.x[DATA.train.at[own]], DATA.train.y[own]
    return x[:n], y[:n]


def test_a_personal_model_is_the_one_that_its_client_chose() -> None:
    """A module by itself, or a mixture of all centers: its predictions have the score that the client reported."""
    run = chosen(algorithm("FedEM"))
    test = DATA.test
    assert test is not None
    kinds = set()
    for i, name in enumerate(DATA.ids):
        own = slice(int(test.offset[i]), int(test.offset[i + 1]))
        x, y = test.x[test.at[own]], test.y[own]
        model = run.personal[name]
        kinds.add(type(model.module))
        loss = float((model.predict(x) - y).square().mean())
        assert loss == pytest.approx(run.clients.loss.iloc[i], rel=1e-4)
        assert run.clients.way.iloc[i].startswith("mixture") == isinstance(model.module, Mixture)
    assert kinds <= {Mixture, torch.nn.Linear}


def test_what_clients_chose_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = chosen(out=tmp_path / "run")
    assert set(run.clients.way) <= set(WAYS)
    chose = run._result.personal.way
    assert chose is not None
    assert list(run.clients.way) == [WAYS[int(number)] for number in chose]
    loaded = coterie.load(tmp_path / "run", linear)
    assert list(loaded.clients.way) == list(run.clients.way)
    with open(tmp_path / "run" / "clients.csv") as file:
        assert [line["way"] for line in csv.DictReader(file)] == list(run.clients.way)
    assert main(["show", str(tmp_path / "run")]) == 0
    assert "way" in capsys.readouterr().out
    with_one_way = coterie.run(linear, DATA, FedSPD(2), rounds=2, training=TRAINING)
    assert "way" not in with_one_way.clients


def test_a_single_model_among_mixtures_is_no_mixture() -> None:
    run = chosen()
    rows, weights = run._result.personal.rows, run._result.personal.weights
    assert rows.shape[1] == 2
    for i, name in enumerate(DATA.ids):
        single = bool((rows[i, 0] == rows[i, 1]).all())
        assert isinstance(run.personal[name].module, Mixture) != single
        assert len(run.personal[name].state_dicts()) == (1 if single else 2)
        assert weights[i].tolist() == [1, 0] or not single


def test_records_score_the_algorithms_own_model_and_the_summary_the_chosen_one() -> None:
    """Until they choose, clients have nothing else; choosing in every evaluation would take longer than training."""
    own = coterie.run(linear, DATA, WeCFL(2), rounds=3, training=TRAINING, personal="mean", evaluate_every=1)
    test = own.history["test_loss"].iloc[-1]
    assert own.summary["personal"]["loss"] != pytest.approx(test)
    means = own._result.centers.mean(0)
    torch.testing.assert_close(own._result.personal.rows[:, 0], means.expand(12, -1))


# kept in a folder


def test_loaded_it_is_the_same_and_takes_in_clients_as_it_did(tmp_path: Path) -> None:
    run = chosen(out=tmp_path / "run")
    how = {"algorithm": FedSPD(2), "training": TRAINING}
    again = coterie.load(tmp_path / "run", linear, **how, personal="auto")
    x, y = newcomer()
    for name in DATA.ids:
        assert torch.equal(run.personal[name](x), again.personal[name](x))
    one, two = (r.onboard(x, y) for r in (run, again))
    assert torch.equal(one.personal.rows, two.personal.rows)
    for wrong in ({}, {"personal": "mixture"}):
        with pytest.raises(CoterieError, match=r"personal is '(own|mixture)', but the run in"):
            coterie.load(tmp_path / "run", linear, **how, **wrong)


def test_a_run_of_its_own_way_is_not_loaded_with_another(tmp_path: Path) -> None:
    coterie.run(linear, DATA, FedSPD(2), rounds=1, training=TRAINING, out=tmp_path / "run")
    with pytest.raises(CoterieError, match="personal is 'auto', but"):
        coterie.load(tmp_path / "run", linear, algorithm=FedSPD(2), training=TRAINING, personal="auto")


@pytest.mark.parametrize("at", [2, 6, 7])
def test_resumed_it_ends_in_the_same_bits(tmp_path: Path, at: int) -> None:
    """Before clients choose, when they have, and when they train on all points again."""
    straight = chosen(checkpoint_every=1, out=tmp_path / "straight")

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] + 1 == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chosen(checkpoint_every=1, out=tmp_path / "run", watch=stop)
    resumed = chosen(checkpoint_every=1, out=tmp_path / "run", resume=True)
    for name in ("centers", "importance", "common", "prior"):
        assert torch.equal(getattr(resumed._result, name), getattr(straight._result, name))
    assert torch.equal(resumed._result.personal.rows, straight._result.personal.rows)
    assert resumed.summary["traffic"] == straight.summary["traffic"]


# newcomers


@pytest.mark.parametrize("name", [n for n, kind in ALGORITHMS.items() if has_clusters(kind)])
def test_a_newcomer_chooses_too(name: str) -> None:
    run = chosen(algorithm(name), 4)
    x, y = newcomer(20)
    new = run.onboard(x, y)
    assert new.personal.rows.shape[1:] == run._result.personal.rows.shape[1:]
    assert sum(new.importance) == pytest.approx(1, abs=1e-5)
    assert new.model(x).isfinite().all()
    assert run.onboard(x[:1], y[:1]).model(x).isfinite().all()


def test_a_newcomer_is_offered_the_common_model() -> None:
    """And told what the others found: that the common model, the third of the ways, is the best by far."""
    run = chosen(WeCFL(2))
    common, prior = run._result.common, run._result.prior
    assert common is not None
    assert prior is not None
    x, y = newcomer()
    assert not torch.equal(run.onboard(x, y).personal.rows[0, 0], common)
    better = torch.full_like(prior, 1e3).index_fill(0, torch.tensor([2]), 0)
    run._result = replace(run._result, prior=better)
    assert torch.equal(run.onboard(x, y).personal.rows[0, 0], common)


# what it costs


def test_what_is_sent_beside_the_algorithm_is_counted() -> None:
    """The common model to and from each client in each round, losses once, and all centers twice in place of one."""
    row, clients, rounds = 10 * 4, 12, 8
    own, auto = (
        coterie.run(linear, DATA, WeCFL(2), rounds=rounds, training=TRAINING, personal=personal).summary[
            "traffic"
        ]
        for personal in ("own", "auto")
    )
    ways, member, size = 7, 8, 8
    assert auto["up"] - own["up"] == clients * (rounds * (row + size) + ways * 8)
    offers = [
        row + member + 3 * row,
        row + member + 3 * row + ways * 8,
    ]  # center, member, centers, common; prior
    assert auto["down"] - own["down"] == clients * (rounds * row + sum(offers) - (row + member))


# in a file


FILE: dict[str, Any] = {
    "rounds": 4,
    "personal": "auto",
    "data": {"source": "regressions", "clients": 6, "sizes": [8, 12], "dimension": 4},
    "model": "linear",
    "training": {"learning_rate": 0.01},
}


def test_in_a_file_it_is_for_the_methods_that_have_clusters() -> None:
    methods = [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "FedSPD", "n_clusters": 2}}]
    read = parse({**FILE, "method": methods})
    assert [method.stages[-1].personal for method in read.methods] == ["own", "auto"]
    methods[0]["personal"] = "auto"
    with pytest.raises(CoterieError, match=r"method.0.personal is 'auto'; allowed is 'own' for FedAvg"):
        parse({**FILE, "method": methods})
    with pytest.raises(CoterieError, match="personal"):
        parse({**FILE, "personal": "automatic", "algorithm": {"name": "FedSPD", "n_clusters": 2}})


def test_a_file_is_run_shown_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.toml"
    file.write_text(toml.write({**FILE, "algorithm": {"name": "IFCA", "n_clusters": 2}}))
    assert main(["run", str(file), "--out", str(tmp_path / "run")]) == 0
    assert tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())["personal"] == "auto"
    run = coterie.load(tmp_path / "run")
    assert run._result.common is not None
    assert run.onboard(torch.randn(9, 4), torch.randn(9)).personal.rows.isfinite().all()


@pytest.mark.parametrize("init", ["warm-up", "several", "clients"])
def test_what_is_played_first_has_nothing_to_choose(init: str) -> None:
    """Clients hold points out in it too, and train the common model."""
    run = coterie.run(linear, DATA, FedSPD(2), rounds=8, training=TRAINING, personal="auto", init=init)
    assert run._result.prior is not None
    assert run._result.common is not None
    file = {**FILE, "init": init, "algorithm": {"name": "FedSPD", "n_clusters": 2}}
    assert parse(file).methods[0].stages[-1].personal == "auto"


def test_stages_say_it_themselves() -> None:
    last = Stage(FedSPD(2), 2, TRAINING, personal="mixture")
    run = coterie.run(linear, DATA, Stage(WeCFL(2), 2, TRAINING).then(last))
    assert torch.equal(run._result.personal.rows[0], run._result.centers)
    with pytest.raises(CoterieError, match="personal is given beside stages"):
        coterie.run(linear, DATA, last, personal="auto")
