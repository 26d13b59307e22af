"""Experiments: from TOML to objects and back."""

from __future__ import annotations

import inspect
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import FedAvg, FedSoft, FedSPD, Graph, Participation, Server, Training, toml
from coterie.errors import CoterieError
from coterie.experiment.data_section import SOURCES
from coterie.experiment.experiment import Experiment, load, parse
from coterie.protocol.stages import Stage
from tests.builders import ROOT

SMALL: dict[str, Any] = {
    "data": {"source": "regressions", "clients": 6, "sizes": [4, 6], "dimension": 3},
    "model": {"name": "linear"},
}
AVERAGE = {"name": "FedAvg"}
SOFT = {"name": "fedsoft", "n_clusters": 2}
SPD = {"name": "FEDSPD", "n_clusters": 2}
SPELLED: dict[str, dict[str, Any]] = {
    "one algorithm": {**SMALL, "algorithm": SOFT},
    "many settings": {
        **SMALL,
        "name": "all",
        "seed": 3,
        "dtype": "float64",
        "device": "cpu",
        "threads": 1,
        "rounds": 7,
        "data": {**SMALL["data"], "separation": 4, "seed": 9},
        "model": {"name": "mlp", "hidden": [4, 3], "init": "xavier-normal"},
        "training": {"optimizer": "adam", "betas": [0.5, 0.75], "batch_size": "none", "steps": 4},
        "topology": {"kind": "erdos-renyi", "degree": 3},
        "participation": {"fraction": 0.5},
        "algorithm": {"name": "FedProx", "pull": 2},
    },
    "stages": {**SMALL, "stage": [{"algorithm": SOFT, "rounds": 2}, {"algorithm": SPD}]},
    "methods": {
        **SMALL,
        "method": [
            {"algorithm": AVERAGE},
            {"label": "two", "stage": [{"algorithm": SOFT}, {"algorithm": SPD}]},
        ],
    },
    "own model": {
        **SMALL,
        "model": {"name": "somewhere:make", "widths": [3, 4], "deep": {"a": 1.5}},
        "algorithm": SOFT,
    },
    "gaussians": {**SMALL, "data": {"source": "gaussians", "mixture": "pure"}, "algorithm": AVERAGE},
    "folder": {**SMALL, "data": {"source": "folder", "path": "own", "split": "none"}, "algorithm": AVERAGE},
    "table": {**SMALL, "data": {"source": "table", "table": "own.csv"}, "algorithm": AVERAGE},
}


@pytest.mark.parametrize("name", SPELLED)
def test_the_resolved_text_loads_as_the_same_experiment(name: str, tmp_path: Path) -> None:
    first = parse(SPELLED[name], folder=tmp_path)
    again = parse(tomllib.loads(first.resolved()), name="another", folder="/elsewhere")
    assert again == first
    assert again.resolved() == first.resolved()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_loads_and_is_checked_and_resolves(path: Path) -> None:
    found = load(path)
    found.prepare()
    assert parse(tomllib.loads(found.resolved())) == found


def test_every_default_is_spelled_out() -> None:
    table = tomllib.loads(parse(SPELLED["one algorithm"]).resolved())
    assert table["training"]["learning_rate"] == Training().learning_rate
    assert table["training"].keys() == set(vars(Training())) - {"steps"}  # None is left out
    assert table["algorithm"]["refresh"] == 2
    assert table["topology"] == {"kind": "server"}
    assert table["rounds"] == 50
    defaults = inspect.signature(SOURCES["regressions"]).parameters
    assert table["data"]["noise"] == defaults["noise"].default
    assert "seed" not in table["data"]  # it follows the experiment's, whatever that will be


def _stage(found: Experiment, method: int = 0, stage: int = 0) -> Stage:
    return found.methods[method].stages[stage]


def test_tables_become_the_objects_of_the_library() -> None:
    found = parse(SPELLED["many settings"])
    stage = _stage(found)
    assert stage.rounds == 7
    assert stage.training == Training("adam", betas=(0.5, 0.75), batch_size=None, epochs=None, steps=4)
    assert stage.topology == Graph("erdos-renyi", degree=3)
    assert stage.participation == Participation(fraction=0.5)
    assert (stage.algorithm.title(), stage.algorithm.settings()["pull"]) == ("FedProx", 2.0)
    assert found.methods[0].label == "FedProx"


def test_inner_tables_go_over_outer_ones() -> None:
    table = {
        **SMALL,
        "rounds": 9,
        "training": {"learning_rate": 0.5, "epochs": 3},
        "topology": {"kind": "erdos-renyi", "degree": 3},
        "method": [
            {"algorithm": AVERAGE},
            {
                "training": {"learning_rate": 0.25},
                "rounds": 4,
                "stage": [
                    {"algorithm": SOFT, "training": {"steps": 5}, "topology": {"degree": 4}},
                    {"algorithm": SPD, "rounds": 2, "topology": {"kind": "complete"}},
                    {"algorithm": SPD, "topology": {"kind": "server"}},
                ],
            },
        ],
    }
    found = parse(table)
    assert _stage(found) == Stage(
        FedAvg(), 9, Training(learning_rate=0.5, epochs=3), Graph("erdos-renyi", degree=3), Participation()
    )
    assert _stage(found, 1, 0) == Stage(
        FedSoft(2), 4, Training(learning_rate=0.25, epochs=None, steps=5), Graph(degree=4), Participation()
    )
    assert _stage(found, 1, 1) == Stage(
        FedSPD(2), 2, Training(learning_rate=0.25, epochs=3), Graph("complete")
    )
    assert _stage(found, 1, 2).topology == Server()
    assert [method.label for method in found.methods] == ["FedAvg", "FedSoft+FedSPD+FedSPD"]


def test_a_change_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(toml.write(SPELLED["methods"]))
    changes = [
        "method.1.stage.0.algorithm.pull=0.5",
        "training.batch_size=none",
        "data.mixture=30:70",
        'name="other"',
        "data.sizes=[5, 6]",
        "participation.absent=0.25",
    ]
    found = load(tmp_path / "e.toml", changes, seed=8)
    assert _stage(found, 1).algorithm == FedSoft(2, pull=0.5)
    assert _stage(found).training.batch_size is None
    assert _stage(found).participation.absent == 0.25
    assert (found.name, found.seed) == ("other", 8)
    assert (found.data["mixture"], found.data["sizes"]) == ("30:70", (5, 6))


def test_the_name_comes_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "my first (try).toml").write_text(toml.write(SPELLED["one algorithm"]))
    assert load(tmp_path / "my first (try).toml").name == "my-first-try"


def test_the_seed_moves_the_data_unless_that_has_its_own() -> None:
    def x(**change: Any) -> torch.Tensor:
        data = {**SMALL["data"], **change.pop("data", {})}
        return parse({**SMALL, "algorithm": AVERAGE, "data": data, **change}).federation().train.x

    assert not torch.equal(x(seed=1), x(seed=2))
    assert torch.equal(x(seed=1, data={"seed": 5}), x(seed=2, data={"seed": 5}))
    assert torch.equal(x(seed=5), x(seed=2, data={"seed": 5}))


def test_paths_are_those_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub" / "own").mkdir(parents=True)
    for name in "ab":
        (tmp_path / "sub" / "own" / f"{name}.csv").write_text("x,y\n1,0.5\n2,1.5\n3,2.5\n")
    (tmp_path / "sub" / "edges.txt").write_text("a b\n")
    (tmp_path / "sub" / "mine_in_sub.py").write_text(
        "import torch\ndef make(scale) -> torch.nn.Module:\n    return torch.nn.Linear(scale, 1)\n"
    )
    table = {
        "rounds": 1,
        "data": {"source": "folder", "path": "own"},
        "model": {"name": "mine_in_sub:make", "scale": 1},
        "topology": {"kind": "file", "path": "edges.txt"},
        "algorithm": AVERAGE,
    }
    (tmp_path / "sub" / "e.toml").write_text(toml.write(table))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = load("sub/e.toml")
    (tmp_path / "copy.toml").write_text(found.resolved())
    for one in (found, load("copy.toml")):
        prepared = one.prepare()
        assert prepared.federation.ids == ("a", "b")
        assert prepared.simulation.model.build().in_features == 1


def test_a_name_that_is_wrong_only_in_its_capitals_is_understood() -> None:
    table = {**SMALL, "algorithm": {"name": "FEDavg"}, "model": {"name": "Linear"}}
    assert parse({**table, "topology": {"kind": "Complete"}}).model["name"] == "linear"


def test_a_model_by_its_name_alone():
    table = {**SMALL, "algorithm": {"name": "FedAvg"}}
    assert parse({**table, "model": "mlp"}) == parse({**table, "model": {"name": "mlp"}})
    assert parse({**table, "model": "mine:make"}).model["name"] == "mine:make"
    with pytest.raises(CoterieError, match=r"model\.name is 'mpl', the nearest is 'mlp'"):
        parse({**table, "model": "mpl"})
    with pytest.raises(CoterieError, match="model is 3; allowed is a table or a text in quotes"):
        parse({**table, "model": 3})
