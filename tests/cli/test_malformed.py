"""Malformed experiments: each gives one line that names the key and what is allowed, and nothing is written."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coterie import toml
from coterie.cli.main import main

GOOD: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "regressions", "clients": 6, "sizes": [4, 6], "dimension": 3},
    "model": {"name": "linear"},
    "training": {"learning_rate": 0.05},
    "algorithm": {"name": "FedSoft", "n_clusters": 2},
}
GONE = "this key is to go"
OWN = {"source": "folder", "path": "own"}
STAGED = {"algorithm": {"name": "FedSPD", "n_clusters": 2}}


@dataclass(frozen=True)
class Case:
    name: str
    change: dict[str, Any]  # by full name
    says: tuple[str, ...]  # all of them in the one line
    files: dict[str, str] = field(default_factory=dict)  # beside the experiment


CASES = [
    # types
    Case("text for a count", {"rounds": "3"}, ("rounds is '3'", "a whole number")),
    Case("fraction for a count", {"rounds": 2.5}, ("rounds is 2.5", "a whole number")),
    Case(
        "true for a number", {"training.learning_rate": True}, ("training.learning_rate is True", "a number")
    ),
    Case(
        "text for a number",
        {"training.learning_rate": "0.1"},
        ("training.learning_rate is '0.1'", "a number"),
    ),
    Case("number for true", {"training.shuffle": 1}, ("training.shuffle is 1", "true or false")),
    Case("not finite", {"training.weight_decay": float("inf")}, ("training.weight_decay is inf", "a number")),
    Case("list too short", {"training.betas": [0.9]}, ("training.betas is [0.9]", "a list of 2 numbers")),
    Case("value for a table", {"training": 3}, ("training is 3", "a table")),
    Case("name for a table", {"algorithm": "FedAvg"}, ("algorithm is 'FedAvg'", "a table")),
    Case("count in data", {"data.clients": 6.0}, ("data.clients is 6.0", "a whole number")),
    Case("setting of a model", {"model.bias": 0}, ("model.bias is 0", "true or false")),
    # ranges
    Case("negative rounds", {"rounds": -1}, ("rounds is -1", "from 0")),
    Case("negative seed", {"seed": -3}, ("seed is -3", "from 0")),
    Case("huge seed", {"seed": 2**63}, ("seed is 9223372036854775808", "below 9223372036854775808")),
    Case("no checkpoints", {"checkpoint_every": 0}, ("checkpoint_every is 0", "from 1")),
    Case("negative evaluation", {"evaluate_every": -1}, ("evaluate_every is -1", "from 0", "'auto'")),
    Case(
        "evaluation in words", {"evaluate_every": "often"}, ("evaluate_every is 'often'", "from 0", "'auto'")
    ),
    Case("rate 0", {"training.learning_rate": 0}, ("training.learning_rate is 0", "above 0")),
    Case("batch 0", {"training.batch_size": 0}, ("training.batch_size is 0", "1 or more")),
    Case("least batch 0", {"training.min_batch": 0}, ("training.min_batch is 0", "from 1")),
    Case(
        "least batch above the batch",
        {"training.min_batch": 9, "training.batch_size": 8},
        ("training.min_batch is 9", "from 1 to batch_size, which is 8"),
    ),
    Case("momentum 1", {"training.momentum": 1}, ("training.momentum is 1", "below 1")),
    Case(
        "two lengths",
        {"training.epochs": 1, "training.steps": 5},
        ("training.epochs and steps are both set", "set one"),
    ),
    Case(
        "nesterov",
        {"training.nesterov": True},
        ("training.nesterov is true but momentum is 0", "momentum above 0"),
    ),
    Case("fraction", {"participation.fraction": 1.5}, ("participation.fraction is 1.5", "at most 1")),
    Case("absent", {"participation.absent": -0.1}, ("participation.absent is -0.1", "from 0 to below 1")),
    Case("no clients", {"data.clients": 0}, ("data.clients is 0", "from 1")),
    Case("negative points", {"data.test_points": -1}, ("data.test_points is -1", "from 0")),
    Case("mixture", {"data.mixture": "10:80"}, ("data.mixture is '10:80'", "add up to 100")),
    Case("3 of 2", {"data.clusters": 3}, ("data.mixture is '10:90'", "'random', 'iid' and 'pure'")),
    Case("pull", {"algorithm.pull": -1}, ("algorithm.pull is -1", "0 or more")),
    Case("no cluster", {"algorithm.n_clusters": 0}, ("algorithm.n_clusters is 0", "1 or more")),
    Case("K above N", {"algorithm.draws": 7}, ("algorithm.draws is 7", "1 to 6")),
    Case("width", {"model": {"name": "mlp", "hidden": [0]}}, ("model.hidden is", "whole numbers from 1")),
    # names
    Case("key", {"rouns": 3}, ("rouns", "nearest is 'rounds'", "allowed is")),
    Case(
        "key of training",
        {"training.learn_rate": 3},
        ("training.learn_rate", "nearest is 'learning_rate'", "optimizer"),
    ),
    Case("old key of training", {"training.rate": 3}, ("training.rate is now called learning_rate",)),
    Case(
        "old key of the data",
        {"data.pattern": "pure"},
        ("data.pattern is now called mixture; write data.mixture",),
    ),
    Case(
        "old key of a data set",
        {"data": {"source": "digits", "pattern": "pure"}},
        ("data.pattern is now called mixture",),
    ),
    Case(
        "several old keys",
        {"training.rate": 3, "training.batch": 5, "data.pattern": "pure", "start": "random"},
        (
            "data.pattern is now called mixture, start is now called init, training.rate is now called learning_rate, "
            "training.batch is now called batch_size; write data.mixture, init, training.learning_rate, "
            "training.batch_size",
        ),
    ),
    Case(
        "old keys of a method's stage",
        {
            "algorithm": GONE,
            "method": [{"tries": 2, "stage": [{"training": {"rate": 1}, "algorithm": {"name": "IFCA"}}]}],
        },
        (
            "method.0.tries is now called n_init, method.0.stage.0.training.rate is now called learning_rate; "
            "write method.0.n_init, method.0.stage.0.training.learning_rate",
        ),
    ),
    Case(
        "lr in training",
        {"training.lr": 0.1},
        ("training.lr: the learning rate is called learning_rate; write training.learning_rate",),
    ),
    Case(
        "lr of the file",
        {"lr": 0.1},
        ("lr: the learning rate is called learning_rate; write training.learning_rate",),
    ),
    Case(
        "lr of an algorithm",
        {"algorithm.lr": 0.1},
        ("algorithm.lr: the learning rate is called learning_rate; write training.learning_rate",),
    ),
    Case(
        "settings of training in the file",
        {"batch_size": 5, "epochs": 3, "rate": 1},
        (
            "batch_size is a setting of training, epochs is a setting of training, rate is a setting of training; "
            "write training.batch_size, training.epochs, training.learning_rate",
        ),
    ),
    Case("old key of the file", {"tries": 3}, ("tries is now called n_init; write n_init",)),
    Case("key of the algorithm", {"algorithm.pul": 3}, ("algorithm.pul", "nearest is 'pull'", "refresh")),
    Case("key of the data", {"data.client": 3}, ("data.client ", "nearest is 'clients'", "mixture")),
    Case("key of the model", {"model.bais": True}, ("model.bais", "nearest is 'bias'", "init")),
    Case(
        "key of a server",
        {"topology.degree": 3},
        ("topology.degree is 3", "topology.kind is 'server'", "erdos-renyi"),
    ),
    Case(
        "algorithm",
        {"algorithm.name": "FedSfot"},
        ("algorithm.name", "nearest is 'FedSoft'", "Local, FedAvg"),
    ),
    Case(
        "source", {"data.source": "digit"}, ("data.source is 'digit'", "nearest is 'digits'", "regressions")
    ),
    Case("model", {"model.name": "liner"}, ("model.name is 'liner'", "nearest is 'linear'", "mlp")),
    Case(
        "own model",
        {"model": {"name": "nowhere.at_all:make"}},
        ("model.name is 'nowhere.at_all:make'", "cannot be imported", "mlp"),
    ),
    Case(
        "key of an own model",
        {"model": {"name": "mine_for_a_test:make", "widht": 3}},
        ("model.widht", "nearest is 'width'"),
        {
            "mine_for_a_test.py": "from torch.nn import Linear\n"
            "def make(width=3) -> Linear:\n    return Linear(width, 1)\n"
        },
    ),
    Case(
        "optimizer", {"training.optimizer": "sdg"}, ("training.optimizer is 'sdg'", "'sgd', 'adam', 'adamw'")
    ),
    Case(
        "kind", {"topology.kind": "erdos"}, ("topology.kind", "nearest is 'erdos-renyi'", "barabasi-albert")
    ),
    Case("dtype", {"dtype": "float16"}, ("dtype is 'float16'", "'float32', 'float64'")),
    Case("device", {"device": "gpu"}, ("device is 'gpu'", "'cuda'")),
    Case("init", {"model.init": "xavier"}, ("model.init is 'xavier'", "'xavier-normal'")),
    Case("task", {"data": {**OWN, "task": "regress"}}, ("data.task is 'regress'", "'regression'")),
    # what is there and what is not
    Case("no data", {"data": GONE}, ("data is missing", "a table")),
    Case("no source", {"data.source": GONE}, ("data.source is missing", "digits")),
    Case("no model", {"model.name": GONE}, ("model.name is missing", "linear")),
    Case("no algorithm", {"algorithm": GONE}, ("none of algorithm, stage, method", "exactly one")),
    Case(
        "no clusters", {"algorithm.n_clusters": GONE}, ("algorithm.n_clusters is missing", "a whole number")
    ),
    Case(
        "both",
        {"stage": [STAGED]},
        ("algorithm and stage of algorithm, stage, method is given", "exactly one"),
    ),
    Case("stage without", {"algorithm": GONE, "stage": [{"rounds": 3}]}, ("stage.0.algorithm", "a table")),
    Case(
        "staged mismatch",
        {"algorithm": GONE, "stage": [STAGED, {"algorithm": {"name": "FedAvg"}}]},
        ("stage.1.algorithm.n_clusters", "must agree"),
    ),
    Case(
        "inner key",
        {"algorithm": GONE, "method": [STAGED, {"stage": [{**STAGED, "training": {"learning_rate": -1}}]}]},
        ("method.1.stage.0.training.learning_rate is -1", "above 0"),
    ),
    Case(
        "outer key",
        {
            "algorithm": GONE,
            "training.learning_rate": -1,
            "method": [{"stage": [{**STAGED, "training": {"epochs": 2}}]}],
        },
        ("coterie: training.learning_rate is -1", "above 0"),
    ),
    Case(
        "label",
        {"algorithm": GONE, "method": [{**STAGED, "label": "a/b"}]},
        ("method.0.label is 'a/b'", "letters"),
    ),
    Case("label up", {"label": ".."}, ("label is '..'", "letters")),
    Case("name", {"name": "a:b"}, ("name is 'a:b'", "letters")),
    Case(
        "labels twice",
        {"algorithm": GONE, "method": [STAGED, STAGED]},
        ("method.1.label is 'FedSPD'", "other than that of method.0"),
    ),
    # graphs
    Case(
        "draws over a graph",
        {"topology.kind": "complete", "algorithm.draws": 2},
        ("algorithm.draws", "leave it"),
    ),
    Case(
        "no degree",
        {"topology.kind": "erdos-renyi"},
        ("topology.kind is 'erdos-renyi' with none of degree, probability", "exactly one"),
    ),
    Case(
        "degree above N",
        {"topology": {"kind": "erdos-renyi", "degree": 6}},
        ("topology.degree is 6", "above 0 and at most 5"),
    ),
    Case(
        "too sparse",
        {"topology": {"kind": "erdos-renyi", "degree": 0.01}},
        ("topology.degree is 0.01", "no connected", "a larger degree"),
    ),
    Case(
        "rewire",
        {"topology": {"kind": "complete", "rewire": 0.5}},
        ("topology.rewire is 0.5", "at most 0"),
    ),
    Case(
        "no edges",
        {"topology": {"kind": "file", "path": "no.txt"}},
        ("topology.path is ", "no.txt', which cannot be read", "text"),
    ),
    Case(
        "stranger",
        {"topology": {"kind": "file", "path": "edges.txt"}},
        ("topology.path is ", "edges.txt', whose line 2 names '99', which is no client", "the ids"),
        {"edges.txt": "0 1\n1 99\n"},
    ),
    # data
    Case(
        "no folder",
        {"data": {"source": "folder", "path": "nowhere"}},
        ("data.path is ", "nowhere', not a folder", "needed"),
    ),
    Case("no path", {"data": {"source": "folder"}}, ("data.path is missing", "a text")),
    Case(
        "no table",
        {"data": {"source": "table", "table": "t.csv"}},
        ("data.table is ", "t.csv', not a file", "needed"),
    ),
    Case(
        "NaN",
        {"data": OWN},
        ("data.path cannot be used: ", "a.csv, point 1", "NaN and infinity are not allowed"),
        {"own/a.csv": "x,y\n1,0\nnan,1\n"},
    ),
    Case(
        "NaN in a table",
        {"data": {"source": "table", "table": "t.csv"}},
        ("data.table cannot be used: ", "t.csv, client 'a', point 1", "NaN and infinity are not allowed"),
        {"t.csv": "client,x,y\na,1,0\na,nan,1\n"},
    ),
    Case(
        "empty client",
        {"data": OWN},
        ("data: client 'b' has no training points", "at least one is needed"),
        {"own/a.csv": "x,y\n1,0\n", "own/b.csv": "x,y\n"},
    ),
    Case(
        "label below 0",
        {"data": OWN},
        ("data: client 'a', point 1: label -1", "whole numbers from 0"),
        {"own/a.csv": "x,y\n1,0\n2,-1\n3,1\n"},
    ),
    Case(
        "model too small for the labels",
        {"data": OWN, "model": {"name": "narrow_for_a_test:make"}},
        ("model: the model puts out 3 numbers for a point, but labels go up to 7", "it needs 8 outputs"),
        {
            "own/a.csv": "x,y\n1,7\n2,0\n3,1\n4,2\n5,3\n",
            "own/b.csv": "x,y\n1,7\n2,0\n",
            "narrow_for_a_test.py": "import torch\ndef make() -> torch.nn.Module:\n    return torch.nn.Linear(1, 3)\n",
        },
    ),
    Case(
        "flat images",
        {"data": {"source": "digits"}, "model": {"name": "cnn"}},
        ("model: the shape", "(channel,"),
    ),
    Case(
        "too many images",
        {"data": {"source": "digits", "train_points": 5000}},
        ("data.train_points is 5000", "of"),
    ),
]


def _edit(table: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for key in path:
        table = table.setdefault(key, {})
    if value == GONE:
        del table[last]
    else:
        table[last] = value


def _write(case: Case, folder: Path) -> Path:
    table = copy.deepcopy(GOOD)
    for name, value in case.change.items():
        _edit(table, name, copy.deepcopy(value))
    for name, text in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    path = folder / "case.toml"
    path.write_text(toml.write(table))
    return path


def _everything(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in str(path)}


def _is_refused(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Exit code 2, one line, nothing written; the line."""
    before = _everything(folder)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("coterie: ")
    assert printed.err.count("\n") == 1
    assert _everything(folder) == before
    return printed.err


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_clear_line(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(case, tmp_path)
    line = _is_refused(["run", str(path), "--out", str(tmp_path / "out")], tmp_path, capsys)
    for part in case.says:
        assert part in line


def test_there_are_enough_cases_and_the_good_one_runs(tmp_path: Path) -> None:
    assert len(CASES) >= 45
    assert main(["run", str(_write(Case("good", {}, ()), tmp_path)), "--out", str(tmp_path / "out")]) == 0


RAW = {
    "not TOML": (b"rounds = \n", "is not TOML"),
    "twice": (b"seed = 1\nseed = 2\n", "is not TOML"),
    "not text": (b"\xff\xfe\x00", "not UTF-8"),
    "empty": (b"", "data is missing"),
}


@pytest.mark.parametrize("name", RAW)
def test_files_that_are_no_experiment(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, says = RAW[name]
    (tmp_path / "case.toml").write_bytes(content)
    assert says in _is_refused(["run", "case.toml"], tmp_path, capsys)


COMMANDS = {
    "no such file": (["run", "absent.toml"], ("absent.toml", "No such file")),
    "a folder": (["run", "."], ("cannot be read", "TOML file")),
    "unknown key": (["run", "case.toml", "--set", "algorithm.pul=1"], ("algorithm.pul", "nearest is 'pull'")),
    "wrong type": (
        ["run", "case.toml", "--set", "algorithm.pull=much"],
        ("algorithm.pull is 'much'", "a number"),
    ),
    "no value": (["run", "case.toml", "--set", "algorithm.pull"], ("--set is 'algorithm.pull'", "key=value")),
    "into a value": (["run", "case.toml", "--set", "rounds.x=1"], ("--set rounds.x", "a table or a list")),
    "no such entry": (["run", "case.toml", "--set", "data.sizes.7=1"], ("data.sizes.7", "0 to 1")),
    "seed": (["run", "case.toml", "--seed", "-1"], ("seed is -1", "from 0")),
    "no number": (["run", "case.toml", "--seed", "x"], ("--seed", "integer")),
    "no experiment": (["run"], ("experiment",)),
    "no such option": (["run", "case.toml", "--sed", "1"], ("--sed",)),
    "no such command": (["rnu"], ("rnu",)),
    "below a file": (
        ["run", "case.toml", "--out", "case.toml/out"],
        ("cannot make the folder", "Not a directory"),
    ),
    "nothing to resume": (["resume", "."], ("experiment.toml", "allowed is the folder of a run")),
    "nothing to compare": (["compare", "."], ("no finished run", "`coterie run`")),
    "no folder to compare": (["compare", "absent"], ("absent is not a folder", "allowed are folders")),
    "unknown algorithm": (["algorithms", "fedsot"], ("algorithm is 'fedsot'", "nearest is 'FedSoft'")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_cannot_be_meant(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = COMMANDS[name]
    _write(Case("good", {}, ()), tmp_path)
    line = _is_refused(arguments, tmp_path, capsys)
    for part in says:
        assert part in line


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(_write(Case("good", {}, ()), tmp_path)), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    capsys.readouterr()
    assert "--again" in _is_refused(arguments, tmp_path, capsys)
    assert main([*arguments, "--again"]) == 0


def test_remains_without_an_experiment_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text("mine")
    arguments = ["run", str(_write(Case("good", {}, ()), tmp_path)), "--out", str(tmp_path / "out")]
    assert "already holds a run" in _is_refused(arguments, tmp_path, capsys)
    assert (tmp_path / "out" / "summary.json").read_text() == "mine"


@pytest.mark.parametrize("name", ["rate 0", "too sparse", "algorithm"])
def test_as_a_process(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    before = _everything(tmp_path) | {_write(case, tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "run", "case.toml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("coterie: ")
    assert done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in case.says)
    assert _everything(tmp_path) == before
