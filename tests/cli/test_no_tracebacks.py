"""What users met as a traceback is said in a sentence."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import toml
from coterie.cli.main import main
from coterie.runs.tensor_file import read_tensors, write_tensors

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "gaussians", "clients": 6, "sizes": [4, 6], "dimension": 3, "distribution_points": 20},
    "model": "linear",
    "algorithm": {"name": "FedSoft", "n_clusters": 2},
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("coterie: ")
    assert said.count("\n") == 1
    return said


def written(change: dict[str, Any], name: str = "e.toml") -> str:
    Path(name).write_text(toml.write({**SMALL, **change}))
    return name


# experiments

BEYOND = {
    "clients": ({"data": {**SMALL["data"], "clients": 2**40}}, "data: the points of all clients would take"),
    "classes": ({"data": {**SMALL["data"], "classes": 2**45}}, "data: the points of all clients would take"),
    "dimension": (
        {"data": {**SMALL["data"], "dimension": 2**40}},
        "data: the points of all clients would take",
    ),
    "images": (
        {"data": {"source": "digits", "clients": 5, "train_points": 2**62, "draw": "replace"}},
        "data: the points of all clients would take more than a million TiB of memory or more",
    ),
    "distributions": (
        {"data": {"source": "digits", "clients": 5, "distributions": "relabel", "clusters": 2**50}},
        "data: the images of all distributions would take",
    ),
    "model": (
        {"model": {"name": "mlp", "hidden": [2**30, 2**30]}},
        "the model 'mlp' with these settings would take",
    ),
    "model that cannot be counted": ({"model": {"name": "mlp", "hidden": [2**62, 2**62]}}, "the model 'mlp'"),
    "clusters": (
        {"algorithm": {"name": "FedEM", "n_clusters": 2**40}, "init": "random"},
        "centers of 20 numbers would take",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_cannot_fit_is_said_before_it_is_tried(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, says = BEYOND[name]
    said = refused(capsys, "run", written(change))
    assert says in said
    assert "this machine has" in said
    assert not Path("runs").exists()


def test_memory_that_runs_out_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for problem in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")):

        def fail(*_: object, problem: Exception = problem, **__: object) -> None:
            raise problem

        monkeypatch.setattr("coterie.experiment.experiment.Experiment.federation", fail)
        assert "there is not enough memory" in refused(capsys, "run", written({}))


NUMBERS = {
    "30 digits": ("9" * 30, "rounds is beyond what a machine counts to"),
    "5000 digits": ("9" * 5000, "is not TOML: Exceeds the limit"),
    "in a list": ("[" * 3000 + "]" * 3000, "nested too deep"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_lists_that_are_too_long(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, says = NUMBERS[name]
    Path("e.toml").write_text(toml.write(SMALL).replace("rounds = 2", f"rounds = {value}"))
    assert says in refused(capsys, "run", "e.toml")
    written({})
    refused(capsys, "run", "e.toml", "--set", f"rounds={value}")


def test_more_threads_than_a_machine_could_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert "threads is 100000" in refused(capsys, "run", written({"threads": 100_000}))


# folders


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["run", written({}), "--out", "r"]) == 0
    return Path("r")


@pytest.mark.parametrize("content", ["[]", "null", "{}", "3", "", "[" * 3000, '{"algorithm": "x"}'])
@pytest.mark.parametrize("command", ["show", "compare"])
def test_an_odd_summary(run: Path, content: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "summary.json").write_text(content)
    assert "summary" in refused(capsys, command, "r")


def test_a_summary_that_was_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    summary["personal"] = None
    (run / "summary.json").write_text(json.dumps(summary))
    assert "is damaged: it is not as it was written" in refused(capsys, "show", "r")


@pytest.mark.parametrize("command", ["show", "compare", "cite", "resume"])
def test_settings_that_are_no_text(run: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "experiment.toml").write_bytes(b"\xff\xfe" + (run / "experiment.toml").read_bytes())
    assert "it is not UTF-8 text" in refused(capsys, command, "r")


def test_notes_that_are_missing_or_odd(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "result.safetensors"
    tensors, _ = read_tensors(path)
    for notes in ({}, {"ids": "null"}, {"ids": "[1]"}, {"ids": "["}):
        write_tensors(path, tensors, notes)
        assert "result.safetensors" in refused(capsys, "show", "r")


# data


def npz(path: str, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return Path(path)


def claiming(rows: int) -> bytes:
    """A .npy header of so many rows, and no rows."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 3), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def archive(member: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as out:
        for name in ("x.npy", "y.npy"):
            out.writestr(name, member)
    return made.getvalue()


def encrypted(content: bytes) -> bytes:
    """The flag of an encrypted member, in the headers of both members and in the directory."""
    found = bytearray(content)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = found.find(mark)
        while place >= 0:
            found[place + at] |= 1
            place = found.find(mark, place + 1)
    return bytes(found)


def compressed_by(content: bytes, method: int) -> bytes:
    found = bytearray(content)
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = found.find(mark)
        while place >= 0:
            found[place + at : place + at + 2] = struct.pack("<H", method)
            place = found.find(mark, place + 1)
    return bytes(found)


PLAIN = archive(claiming(0))
ARCHIVES = {
    "encrypted": encrypted(PLAIN),
    "compressed oddly": compressed_by(PLAIN, 97),
    "compressed by LZMA, it says": compressed_by(PLAIN, 14),
    "10^13 rows": archive(claiming(10**13)),
    "10^30 rows": archive(claiming(10**30)),
    "no array": archive(claiming(3)[:40]),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_cannot_be_read(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    Path("data/a.npz").write_bytes(ARCHIVES[name])
    experiment = written({"data": {"source": "folder", "path": "data"}}, "own.toml")
    assert "a.npz could not be read" in refused(capsys, "run", experiment)
    assert "a.npz could not be read" in refused(capsys, "cluster", "data", "--out", "labels.csv")
    assert "a.npz could not be read" in refused(capsys, "onboard", "r", "data/a.npz")


def test_a_table_that_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    Path("data/a.csv").write_bytes(b"\xff\xfe\xfa,y\n1,2\n")
    experiment = written({"data": {"source": "folder", "path": "data"}}, "own.toml")
    assert "a.csv could not be read" in refused(capsys, "run", experiment)


@pytest.mark.parametrize("clusters", ["2", "auto"])
@pytest.mark.parametrize("value", [1e300, -1.7e308])
def test_clusters_of_huge_numbers(clusters: str, value: float, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    for name in "ab":
        npz(f"data/{name}.npz", x=np.array([[value, 1.0], [0.0, 2.0], [-value, 3.0], [1.0, 1.0]]))
    said = refused(capsys, "cluster", "data", "--clusters", clusters, "--out", "labels.csv")
    assert "a.npz, point 0" in said
    assert "too large" in said


# the terminal

CODE = """
import os, sys
from coterie.__main__ import start

def begun(really=os.getcwd):  # `start` asks for the folder before it loads anything
    os.getcwd = really
    os.write(1, b"begun\\n")
    return really()

os.getcwd = begun
sys.exit(start())
"""


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coterie", *arguments], capture_output=True, text=True, **options
    )


def test_the_current_folder_is_gone(tmp_path: Path) -> None:
    command = f"mkdir gone; cd gone; rmdir ../gone; {sys.executable} -m coterie run e.toml"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.stderr == "coterie: the current folder is gone; go to another one\n"
    assert done.returncode == 2


def test_a_terminal_that_knows_ascii_alone(run: Path) -> None:
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    for command in (["show", "r"], ["compare", "r"], ["algorithms"], ["algorithms", "FedSPD"], ["cite", "r"]):
        done = process(*command, env=ascii_alone)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
    done = process("run", "é.toml", env=ascii_alone)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


LEAVING = """
import atexit, sys, time
from coterie.__main__ import start
atexit.register(lambda: (print("leaving", flush=True), time.sleep(60)))
sys.exit(start())
"""


def test_ctrl_c_while_python_tidies_up() -> None:
    command = [sys.executable, "-c", LEAVING, "--version"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert other.stdout is not None
    while other.stdout.readline() not in ("leaving\n", ""):
        pass
    other.send_signal(signal.SIGINT)
    _, said = other.communicate(timeout=30)
    assert said == ""


@pytest.mark.slow
def test_ctrl_c_during_the_imports() -> None:
    """At whatever time it comes once Python itself has begun."""
    for wait in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        command = [sys.executable, "-c", CODE, "run", "nowhere.toml"]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        time.sleep(wait)
        other.send_signal(signal.SIGINT)
        _, said = other.communicate()
        assert "Traceback" not in said, f"after {wait} s: {said}"
        assert other.returncode in (130, 2, -signal.SIGINT)  # the last: all was said, and Python tidied up
