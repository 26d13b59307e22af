"""Two processes under torchrun do what one does; one that is killed ends the run, which goes on from there."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coterie import toml
from coterie.backends.sharded import divided
from coterie.cli.main import main
from coterie.runs.folder import RunFolder
from tests.backends.process_runs import all_plays, play, plays
from tests.builders import ROOT

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
MEANS = (
    "FedAvg",
    "FedProx",
    "FedAvg+",
    "FedProx+",
    "IFCA",
    "HypCluster",
    "FedEM",
    "pFedMe",
    "FedSoft",
    "FedSPD",
)


def test_clients_are_divided_by_work() -> None:
    # the largest first, to who has least: 9 | 7 | 6 | 4 (9 against 13) | 3 (13 each: to the first) | 1
    assert divided(torch.tensor([3, 9, 1, 7, 6, 4]), 2).tolist() == [0, 0, 1, 1, 1, 0]
    assert divided(torch.tensor([5, 5, 5, 5]), 2).tolist() == [0, 1, 0, 1]
    assert divided(torch.tensor([5, 5, 5]), 1).tolist() == [0, 0, 0]


# the engine


def _played(folder: Path, which: str) -> Path:
    """What two processes make of these plays."""
    command = [*TORCHRUN, "tests.backends.process_runs", str(folder), which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _played(tmp_path_factory.mktemp("some"), "some")


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _played(tmp_path_factory.mktemp("every"), "every")


def _as_one(name: str, plan: Any, folder: Path) -> None:
    """Tensors and numbers, to 1e-8: results, scores, metrics, what is saved, bytes."""
    tensors, said = play(plan)
    theirs, sent = (
        load_file(folder / f"{name}.safetensors"),
        json.loads((folder / f"{name}.json").read_text()),
    )
    assert theirs.keys() == tensors.keys()
    for field, expected in tensors.items():
        torch.testing.assert_close(theirs[field], expected, rtol=1e-8, atol=1e-8, equal_nan=True)
    assert _alike({n: sent[n] for n in said}, said)


def _alike(one: Any, other: Any) -> bool:
    """The same, numbers to 1e-8."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-8, abs_tol=1e-8) or (one != one and other != other)
    return bool(one == other)


@pytest.mark.parametrize("name", list(plays()))
def test_two_processes_are_as_one(name: str, some: Path) -> None:
    _as_one(name, plays()[name], some)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(all_plays()))
def test_two_processes_are_as_one_everywhere(name: str, every: Path) -> None:
    _as_one(name, all_plays()[name], every)


def _counted(folder: Path, name: str) -> tuple[int, int]:
    sent = json.loads((folder / f"{name}.json").read_text())
    return sent["fetched"], sent["added"]


@pytest.mark.parametrize("name", ["FedAvg of one client", "IFCA", "FedEM", "FedSoft", "pFedMe"])
def test_a_mean_at_a_server_is_one_sum_and_fetches_no_row(name: str, some: Path) -> None:
    assert _counted(some, name) == (0, 1)


@pytest.mark.parametrize("name", ["WeCFL", "OneShot", "FedSPD"])
def test_rows_are_fetched_once_where_they_are_needed(name: str, some: Path) -> None:
    assert _counted(some, name)[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MEANS)
def test_every_mean_at_a_server_is_one_sum(name: str, every: Path) -> None:
    assert _counted(every, f"{name} server all") == (0, 1)


# the command line


def _experiment(rounds: int) -> dict[str, Any]:
    """FedSoft whose clients start at their own last rows, then FedSPD over a graph, some clients absent."""
    return {
        "name": "small",
        "threads": 1,
        "dtype": "float64",
        "checkpoint_every": 2,
        "evaluate_every": 3,
        "data": {"source": "regressions", "clients": 13, "sizes": [5, 9], "dimension": 4},
        "model": {"name": "linear"},
        "training": {"learning_rate": 0.01, "momentum": 0.5, "keep_optimizer": True},
        "participation": {"absent": 0.2, "stragglers": 0.1},
        "stage": [
            {"rounds": rounds, "algorithm": {"name": "FedSoft", "n_clusters": 2, "start": "own"}},
            {
                "rounds": 4,
                "algorithm": {"name": "FedSPD", "n_clusters": 2},
                "topology": {"kind": "erdos-renyi", "degree": 4},
            },
        ],
    }


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def torchrun(start_process: Start) -> Start:
    """coterie in two processes, in a folder of its own."""
    return lambda *words: start_process([*TORCHRUN, "coterie", *words])


def _outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run leaves, but for how long it took."""
    store = RunFolder(folder)
    records = [{k: v for k, v in record.items() if not k.startswith("seconds")} for record in store.records()]
    tensors = {
        **store.result()[0],
        **{f"saved.{n}": t for n, t in (store.checkpoint() or ({}, {}))[0].items()},
    }
    for number in range(len(records)):
        tensors |= {f"{number}.{n}": t for n, t in store.columns(number).items()}
    numbers = {n: t.double().flatten().tolist() for n, t in tensors.items()}
    return {"records": records, "summary": store.summary(), "numbers": numbers}


def _lines(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("coterie:")]


def test_a_run_in_two_processes_leaves_what_one_leaves(
    tmp_path: Path, torchrun: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(toml.write(_experiment(6)))
    process = torchrun("run", "e.toml", "--out", "two")
    assert main(["run", "e.toml", "--out", "one"]) == 0
    said, errors = process.communicate(timeout=120)
    alone = capsys.readouterr()
    assert (process.returncode, _lines(errors)) == (0, _lines(alone.err))
    assert said.count("The run is in two") == 1
    assert said.splitlines()[-7:-2] == alone.out.splitlines()[-7:-2]  # the table
    assert _alike(_outcome(tmp_path / "two"), _outcome(tmp_path / "one"))


ONLY = "coterie: under torchrun only run and resume are allowed"
FEW = "coterie: 1 clients cannot be divided among 2 processes"
TAKEN = "coterie: --out is 'taken', which already holds a run"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "e.toml", "--out", "taken"), TAKEN),
        pytest.param(("run", "e.toml", "--set", "data.clients=1"), FEW, marks=pytest.mark.slow),
        pytest.param(("algorithms",), ONLY, marks=pytest.mark.slow),
    ],
    ids=["taken", "few", "only"],
)
def test_what_is_wrong_is_said_once(
    words: tuple[str, ...], says: str, tmp_path: Path, torchrun: Start
) -> None:
    (tmp_path / "e.toml").write_text(toml.write(_experiment(6)))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "rounds.jsonl").touch()
    process = torchrun(*words)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    (line,) = _lines(errors)
    assert line.startswith(says)


def _wait_for_rounds(folder: Path, rounds: int, process: subprocess.Popen[str], seconds: float = 120) -> None:
    until = time.perf_counter() + seconds
    while len(RunFolder(folder).records()) < rounds and time.perf_counter() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def _worker(torchrun: subprocess.Popen[str], rank: int) -> int:
    """The process of this rank that torchrun started."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    (worker,) = [c for c in children if f"\0RANK={rank}\0" in Path(f"/proc/{c}/environ").read_text()]
    return int(worker)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_ends_the_run_which_goes_on(
    killed: int, tmp_path: Path, torchrun: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, and again in two."""
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(toml.write(_experiment(300)))
    process = torchrun("run", "e.toml", "--out", "out")
    _wait_for_rounds(tmp_path / "out", 20, process)
    other = _worker(process, 1 - killed)
    os.kill(_worker(process, killed), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert not Path(f"/proc/{other}").exists()
    (line,) = _lines(errors)
    assert line.startswith("coterie: another process of this run is gone")
    assert line.endswith("; go on with `coterie resume out`")
    assert 0 < len(RunFolder(tmp_path / "out").records()) < 304
    if killed == 0:
        assert main(["resume", "out"]) == 0
    else:
        process = torchrun("resume", "out")
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, _lines(errors)) == (0, [])
    assert main(["run", "e.toml", "--out", "straight"]) == 0
    assert _alike(_outcome(tmp_path / "out"), _outcome(tmp_path / "straight"))


@pytest.mark.slow
def test_ctrl_c_stops_all_after_the_same_round(
    tmp_path: Path, torchrun: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(toml.write({**_experiment(300), "checkpoint_every": 1000}))
    process = torchrun("run", "e.toml", "--out", "out")
    _wait_for_rounds(tmp_path / "out", 20, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    stopping, stopped = _lines(errors)
    assert stopping.startswith("coterie: stopping when this round is done")
    assert stopped == "coterie: interrupted; go on with `coterie resume out`"
    saved = RunFolder(tmp_path / "out").checkpoint()
    assert saved is not None
    assert saved[1]["round"] == len(RunFolder(tmp_path / "out").records()) < 304
    assert main(["resume", "out"]) == 0
    assert main(["run", "e.toml", "--out", "straight"]) == 0
    assert _alike(_outcome(tmp_path / "out"), _outcome(tmp_path / "straight"))
