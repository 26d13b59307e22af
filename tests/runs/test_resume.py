"""Interrupted runs, resumed, end in the same bits; what cannot be written is said and spoils nothing."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import toml
from coterie.cli.main import main
from coterie.engine.compile import policy
from coterie.engine.compile.policy import Compiler
from coterie.engine.compile.step import CompiledStep
from coterie.experiment.experiment import parse
from coterie.report.progress import Watcher
from coterie.runs.folder import RunFolder

KILLS = 20


def _experiment(rounds: int, checkpoint_every: int = 2) -> dict[str, Any]:
    """FedSoft whose clients start at their own last rows, then FedSPD, over a graph, some clients absent."""
    return {
        "name": "small",
        "threads": 1,
        "checkpoint_every": checkpoint_every,
        "evaluate_every": 3,
        "data": {"source": "regressions", "clients": 12, "sizes": [5, 9], "dimension": 4},
        "model": {"name": "linear"},
        "training": {"learning_rate": 0.01, "momentum": 0.5, "keep_optimizer": True},
        "topology": {"kind": "erdos-renyi", "degree": 4, "rewire": 0.1},
        "participation": {"absent": 0.2, "stragglers": 0.1},
        "stage": [
            {"rounds": rounds, "algorithm": {"name": "FedSoft", "n_clusters": 2, "start": "own"}},
            {"rounds": rounds, "algorithm": {"name": "FedSPD", "n_clusters": 2}},
        ],
    }


def _outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run leaves, but for how long it took."""
    names = ["experiment.toml", "result.safetensors", "checkpoint.safetensors", "summary.json"]
    names += ["importance.csv", "clients.csv"]
    names += sorted(f"clients/{path.name}" for path in (folder / "clients").iterdir())
    outcome: dict[str, Any] = {name: (folder / name).read_bytes() for name in names}
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    outcome["rounds"] = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]
    return outcome


class Stop(Exception):
    """As sudden as a crash between two rounds can be."""


def _stopping_at(round: int, problem: BaseException) -> Callable[[dict[str, Any], int], None]:
    def watch(record: dict[str, Any], _rounds: int) -> None:
        if record["round"] == round:
            raise problem

    return watch


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("straight") / "run"
    prepared = parse(_experiment(4, 3)).prepare()
    prepared.play(prepared.experiment.methods[0], folder)
    return _outcome(folder)


@pytest.mark.slow  # it compiles
def test_a_resumed_run_compiles_what_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSPD's first round is twice as long: here it alone is worth compiling, and what follows is not."""
    weighed: list[float] = []
    used: list[int] = []
    weigh, use = Compiler._plain_seconds, CompiledStep.run

    def weighing(*given: Any) -> float:
        weighed.append(weigh(*given))
        return weighed[-1]

    def using(step: CompiledStep, *given: Any) -> None:
        used.append(step.slots)
        use(step, *given)

    monkeypatch.setattr(Compiler, "_plain_seconds", weighing)
    monkeypatch.setattr(CompiledStep, "run", using)
    monkeypatch.setattr(Compiler, "_worth", lambda *_: policy.OPERATIONS)
    settings = {
        "threads": 1,
        "checkpoint_every": 2,
        "rounds": 4,
        "data": {"source": "regressions", "clients": 12, "dimension": 4},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"learning_rate": 0.01, "epochs": 3},
        "algorithm": {"name": "FedSPD", "n_clusters": 2, "final_epochs": 3},
        "init": "random",
        "topology": {"kind": "erdos-renyi", "degree": 4},
    }

    def play(name: str, **more: Any) -> None:
        prepared = parse(settings).prepare()
        prepared.play(prepared.experiment.methods[0], tmp_path / name, **more)

    play("to weigh")
    assert not used
    first, *others = weighed[:4]
    assert first > 1.5 * max(others)
    monkeypatch.setitem(policy.PAYS, "cpu", 4 * (first + max(others)) / 2)
    play("straight")
    assert used
    with pytest.raises(Stop):
        play("stopped", watch=_stopping_at(2, Stop()))
    play("stopped", resume=True)
    assert _outcome(tmp_path / "stopped") == _outcome(tmp_path / "straight")


@pytest.mark.parametrize("problem", [Stop(), KeyboardInterrupt()], ids=["crash", "interrupt"])
@pytest.mark.parametrize("after", range(8))
def test_stopped_after_any_round(
    after: int, problem: BaseException, straight: dict[str, Any], tmp_path: Path
) -> None:
    prepared = parse(_experiment(4, 3)).prepare()
    method = prepared.experiment.methods[0]
    with pytest.raises(type(problem)):
        prepared.play(method, tmp_path / "run", watch=_stopping_at(after, problem))
    saved = RunFolder(tmp_path / "run").checkpoint()
    if isinstance(problem, KeyboardInterrupt):  # which leaves a checkpoint of the last whole round
        assert saved is not None
        assert saved[1]["stage"] * 4 + saved[1]["round"] == after + 1
    elif after < 2:
        assert saved is None
    prepared.play(method, tmp_path / "run", resume=True)
    assert _outcome(tmp_path / "run") == straight


@pytest.mark.parametrize("torn", [b'{"round": 5, "sta', b"{", b"\xff\x00\x00", b""], ids=repr)
def test_a_torn_last_line(torn: bytes, straight: dict[str, Any], tmp_path: Path) -> None:
    prepared = parse(_experiment(4, 3)).prepare()
    method = prepared.experiment.methods[0]
    with pytest.raises(Stop):
        prepared.play(method, tmp_path / "run", watch=_stopping_at(4, Stop()))
    with (tmp_path / "run" / "rounds.jsonl").open("ab") as file:
        file.write(torn)
    assert len(RunFolder(tmp_path / "run").records()) == 5
    prepared.play(method, tmp_path / "run", resume=True)
    assert _outcome(tmp_path / "run") == straight


def test_what_a_kill_can_leave_before_the_first_checkpoint(straight: dict[str, Any], tmp_path: Path) -> None:
    store = RunFolder(tmp_path / "run")
    prepared = parse(_experiment(4, 3)).prepare()
    method = prepared.experiment.methods[0]
    store.create(prepared.experiment.only(method).resolved())
    (store.folder / "clients" / "000000.safetensors").write_bytes(b"half")
    (store.folder / "checkpoint.safetensors.part").write_bytes(b"half")
    (store.folder / "rounds.jsonl").write_text('{"round": 0')
    prepared.play(method, store.folder, resume=True)
    assert _outcome(store.folder) == straight
    assert not list(store.folder.glob("*.part"))


def test_interrupted_at_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.toml").write_text(toml.write(_experiment(3)))
    with monkeypatch.context() as patched:
        patched.setattr(Watcher, "method", lambda *_: _stopping_at(2, KeyboardInterrupt()))
        assert main(["run", "e.toml", "--out", "out"]) == 130
    assert capsys.readouterr().err == "coterie: interrupted; go on with `coterie resume out`\n"
    assert main(["resume", "out"]) == 0
    assert main(["run", "e.toml", "--out", "straight"]) == 0
    assert _outcome(Path("out")) == _outcome(Path("straight"))


@pytest.mark.parametrize("side", ["x", "y", "x_test", "y_test"])
def test_a_run_is_not_resumed_with_other_data(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One number of one point, held out or not."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    x, y = np.arange(24.0).reshape(8, 3) / 24, np.arange(8) % 2
    for name in "abc":
        np.savez(f"data/{name}.npz", x=x, y=y, x_test=x, y_test=y)
    data = {"source": "folder", "path": "data"}
    experiment = {"rounds": 3, "data": data, "model": "linear", "algorithm": {"name": "FedAvg"}}
    Path("e.toml").write_text(toml.write(experiment))
    with monkeypatch.context() as patched:
        patched.setattr(Watcher, "method", lambda *_: _stopping_at(1, KeyboardInterrupt()))
        assert main(["run", "e.toml", "--out", "out"]) == 130
    arrays = dict(np.load("data/b.npz"))
    arrays[side].flat[5] += 1
    np.savez("data/b.npz", **arrays)
    capsys.readouterr()
    assert main(["resume", "out"]) == 2
    assert (
        "the data of the clients is not what it was when the run in out was begun" in capsys.readouterr().err
    )


# real processes


@pytest.fixture
def processes(start_process: Callable[..., subprocess.Popen[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts `coterie`."""

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return start_process([sys.executable, "-m", "coterie", *arguments], env=environment, **options)

    return start


def _rounds(folder: Path) -> int:
    return len(RunFolder(folder).records())


def _wait_for_rounds(folder: Path, rounds: int, process: subprocess.Popen[str], seconds: float = 60) -> None:
    until = time.perf_counter() + seconds
    while _rounds(folder) < rounds and process.poll() is None and time.perf_counter() < until:
        time.sleep(0.001)


def _finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_killed_at_random_times(tmp_path: Path, processes: Callable[..., subprocess.Popen[str]]) -> None:
    rounds, chance = 300, random.Random(0)
    (tmp_path / "e.toml").write_text(toml.write(_experiment(rounds // 2)))
    began = time.perf_counter()
    process = processes("run", "e.toml", "--out", "straight")
    _wait_for_rounds(tmp_path / "straight", 1, process)
    started = time.perf_counter() - began  # most of it is spent on imports
    _finish(process)

    kills, within, folders = 0, 0, [tmp_path / "killed-0"]
    while kills < KILLS:
        if RunFolder(folders[-1]).finished:  # sooner than it was killed often enough: another one
            folders.append(tmp_path / f"killed-{len(folders)}")
        folder = folders[-1]
        begun = RunFolder(folder).experiment.exists()
        process = processes(*(("resume", folder.name) if begun else ("run", "e.toml", "--out", folder.name)))
        if (
            chance.random() < 0.2
        ):  # while it starts, if it takes as long as the first one; else a little later
            _wait_for_rounds(folder, _rounds(folder) + 10, process, started * chance.uniform(0.3, 1))
        else:  # so many rounds on, somewhere in that round
            _wait_for_rounds(folder, _rounds(folder) + chance.randint(1, 12), process)
            time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        within += 0 < _rounds(folder) < rounds
    assert within >= 10
    for folder in folders:
        if not RunFolder(folder).finished:
            _finish(processes("resume", folder.name))
        assert _outcome(folder) == _outcome(tmp_path / "straight")


SIGNALLED = """
import os, sys
from coterie.__main__ import start
from coterie.runs.recorder import Recorder

number, play = int(sys.argv.pop(1)), Recorder.play

def signalled(self):
    if len(self.records) == 5:
        os.kill(os.getpid(), number)
    return play(self)

Recorder.play = signalled
sys.exit(start())
"""  # the signal comes as the sixth round begins


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_waits_for_the_round_and_says_how_to_go_on(
    number: signal.Signals,
    tmp_path: Path,
    start_process: Callable[..., subprocess.Popen[str]],
    processes: Callable[..., subprocess.Popen[str]],
) -> None:
    (tmp_path / "e.toml").write_text(toml.write(_experiment(10, 1000)))
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), "run", "e.toml", "--out", "out"]
    process = start_process(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "coterie: interrupted; go on with `coterie resume out`"
    saved = RunFolder(tmp_path / "out").checkpoint()
    assert saved is not None
    assert saved[1]["stage"] * 10 + saved[1]["round"] == len(RunFolder(tmp_path / "out").records()) == 6
    _finish(processes("resume", "out"))
    _finish(processes("run", "e.toml", "--out", "straight"))
    assert _outcome(tmp_path / "out") == _outcome(tmp_path / "straight")


@pytest.mark.slow
def test_a_run_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(toml.write(_experiment(20)))
    run = f"{sys.executable} -m coterie run e.toml --out out"
    done = subprocess.run(f"({run}; echo $? > code) | head -1", shell=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "code").read_text().strip() == "0"
    assert RunFolder(tmp_path / "out").finished
    assert b"Traceback" not in done.stderr
    assert b"pipe" not in done.stderr


@pytest.mark.slow
def test_a_finished_run_without_its_result_is_finished_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(toml.write(_experiment(3)))
    assert main(["run", "e.toml", "--out", "out"]) == 0
    before = _outcome(tmp_path / "out")
    (tmp_path / "out" / "result.safetensors").unlink()
    assert main(["resume", "out"]) == 0
    assert _outcome(tmp_path / "out") == before


def _fails_and_recovers(
    start: Callable[..., subprocess.Popen[str]],
    folder: Path,
    reason: str,
    make_space: Callable[[], None],
    **options: Any,
) -> None:
    """One sentence, the last good checkpoint, and the same bits once there is space."""
    (folder / "e.toml").write_text(toml.write(_experiment(40, 4)))
    process = start("run", "e.toml", "--out", "disk/out", **options)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("coterie: cannot write disk/out/")
    assert errors.count("\n") == 1
    assert reason in errors
    saved = RunFolder(folder / "disk" / "out").checkpoint()
    assert saved is not None
    assert 4 <= saved[1]["stage"] * 40 + saved[1]["round"] < 80
    assert not list((folder / "disk" / "out").glob("*.part"))
    make_space()
    _finish(start("resume", "disk/out"))
    _finish(start("run", "e.toml", "--out", "straight"))
    assert _outcome(folder / "disk" / "out") == _outcome(folder / "straight")


@pytest.mark.slow
def test_a_file_that_may_grow_no_further(
    tmp_path: Path, processes: Callable[..., subprocess.Popen[str]]
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    _fails_and_recovers(processes, tmp_path, "File too large", lambda: None, preexec_fn=limit)


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path, processes: Callable[..., subprocess.Popen[str]]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no small disk could be mounted here; a limit on file sizes is tested instead")

    def make_space() -> None:
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)

    try:
        _fails_and_recovers(processes, tmp_path, "No space left on device", make_space)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
