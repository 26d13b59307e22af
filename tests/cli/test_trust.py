"""A folder from somebody else runs no code until it is trusted; a second writer is refused; labels are no paths."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import toml
from coterie.cli.main import main

DATA = {"source": "gaussians", "clients": 6, "sizes": [6, 8], "dimension": 3, "distribution_points": 20}
OWN: dict[str, Any] = {
    "name": "own",
    "rounds": 2,
    "data": DATA,
    "model": {"name": "net_of_theirs:Net"},
    "algorithm": {"name": "FedAvg"},
}
CODE = """
from pathlib import Path
from torch import nn

(Path(__file__).parent / "was-run").touch()

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 10)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("theirs").mkdir()
    Path("theirs/net_of_theirs.py").write_text(CODE)
    Path("theirs/own.toml").write_text(toml.write(OWN))
    Path("new.csv").write_text("a,b,c,y\n" + "0.1,0.2,0.3,1\n0.3,0.2,0.1,0\n" * 3)


def forget_modules() -> None:
    sys.modules.pop("net_of_theirs", None)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    forget_modules()
    Path("theirs/was-run").unlink(missing_ok=True)
    capsys.readouterr()
    assert main(arguments) == 2
    assert not Path("theirs/was-run").exists()
    return capsys.readouterr().err


def test_a_folder_whose_model_is_code_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_modules()
    assert main(["run", "theirs/own.toml", "--out", "r"]) == 0
    assert Path("theirs/was-run").exists()
    forget_modules()
    assert main(["onboard", "r", "new.csv"]) == 0  # this user ran it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of another"))
    for command in (["onboard", "r", "new.csv"], ["resume", "r"]):
        said = refused(capsys, *command)
        assert "is code, net_of_theirs:Net from" in said
        assert "net_of_theirs.py, that you have not run before as it is now" in said
        assert "--trust" in said
    with pytest.raises(coterie.CoterieError, match="trust=True in Python"):
        coterie.load("r")
    assert main(["onboard", "r", "new.csv", "--trust"]) == 0
    forget_modules()
    assert main(["onboard", "r", "new.csv"]) == 0  # and it is known from now on
    Path("theirs/net_of_theirs.py").write_text(CODE + "\n# changed\n")
    assert "as it is now" in refused(capsys, "onboard", "r", "new.csv")
    forget_modules()
    assert coterie.load("r", trust=True).summary["rounds"] == 2


def test_what_the_code_imports_from_beside_it_needs_trust_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody's folder has a module that this user knows, and another one beside it that is not as it was."""
    Path("theirs/net_of_theirs.py").write_text("import sizes_of_theirs\n" + CODE)
    Path("theirs/sizes_of_theirs.py").write_text("SIZE = 3\n")
    forget_modules()
    assert main(["run", "theirs/own.toml", "--out", "r"]) == 0
    Path("theirs/sizes_of_theirs.py").write_text("SIZE = 4\n")
    for command in (["onboard", "r", "new.csv"], ["resume", "r"]):
        assert "net_of_theirs.py (with sizes_of_theirs.py beside it), that" in refused(capsys, *command)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("os:system", "of Python itself"),
        ("no_such_module:Net", "nowhere to be found"),
        ("a b:Net", "'module:Net'"),
    ],
)
def test_trust_is_not_asked_for_in_vain(name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget_modules()
    assert main(["run", "theirs/own.toml", "--out", "r"]) == 0
    path = Path("r/experiment.toml")
    path.write_text(toml.unsealed(path.read_text()).replace("net_of_theirs:Net", name))
    for command in (["onboard", "r", "new.csv"], ["resume", "r"]):
        said = refused(capsys, *command)
        assert why in said
        assert "--trust" not in said


@pytest.mark.parametrize("command", ["compare", "show", "cite"])
def test_what_only_reads_a_folder_runs_no_code(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget_modules()
    assert main(["run", "theirs/own.toml", "--out", "r"]) == 0
    forget_modules()
    Path("theirs/was-run").unlink()
    assert main([command, "r"]) == 0
    assert not Path("theirs/was-run").exists()


def test_again_clears_nothing_while_a_method_of_the_folder_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    several = {**{k: v for k, v in OWN.items() if k != "algorithm"}, "model": "linear"}
    methods = [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "Local"}}]
    Path("several.toml").write_text(toml.write({**several, "method": methods}))
    assert main(["run", "several.toml", "--out", "r"]) == 0
    before = sorted(map(str, Path("r").rglob("*")))
    hold = "import sys, time; from pathlib import Path; from coterie.runs.lock import locked\n"
    hold += "with locked(Path('r/Local')): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert f"process {other.pid}" in refused(capsys, "run", "several.toml", "--out", "r", "--again")
        assert sorted(map(str, Path("r").rglob("*"))) == before
    finally:
        other.kill()
        other.wait()


def test_an_experiment_cannot_name_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = {"name": "os:system", "command": "touch theirs/was-run"}
    Path("evil.toml").write_text(toml.write({**OWN, "model": command}))
    assert "model.name names the module 'os' of Python itself" in refused(capsys, "run", "evil.toml")


def test_a_library_is_not_taken_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("torch", "rich", "typer", "matplotlib"):
        Path(f"{name}.py").write_text("raise SystemExit('it was run')")
    done = subprocess.run([sys.executable, "-m", "coterie", "--version"], capture_output=True, text=True)
    assert done.stdout == f"coterie {coterie.__version__}\n"


def test_nor_in_a_process_that_a_command_starts() -> None:
    """`python -c`, by which Python starts processes, looks there first of all."""
    Path("plain.toml").write_text(toml.write({**OWN, "model": "linear", "rounds": 1}))
    Path("multiprocessing.py").write_text("raise SystemExit('it was run')")
    command = [sys.executable, "-m", "coterie", "run", "plain.toml", "--out", "r", "--seeds", "0-1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_label_is_never_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder's experiment.toml says that a method lies above it: --again leaves that alone."""
    plain = {**OWN, "model": "linear"}
    Path("plain.toml").write_text(toml.write(plain))
    assert main(["run", "plain.toml", "--out", "above"]) == 0
    before = sorted(path.name for path in Path("above").iterdir())
    Path("above/run").mkdir()
    listed = {k: v for k, v in plain.items() if k != "algorithm"}
    methods = [{"label": "..", "algorithm": {"name": "FedAvg"}}]
    Path("above/run/experiment.toml").write_text(toml.write({**listed, "method": methods}))
    assert main(["run", "plain.toml", "--out", "above/run", "--again"]) == 0
    assert sorted(path.name for path in Path("above").iterdir() if path.name != "run") == before
    several = toml.write({**listed, "method": methods})
    Path("several.toml").write_text(several)
    assert "label is '..'" in refused(capsys, "run", "several.toml")


def test_again_follows_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    several = {**{k: v for k, v in OWN.items() if k != "algorithm"}, "model": "linear"}
    methods = [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "Local"}}]
    Path("several.toml").write_text(toml.write({**several, "method": methods}))
    assert main(["run", "several.toml", "--out", "r"]) == 0
    shutil.move("r/Local", "elsewhere")
    Path("r/Local").symlink_to(Path("elsewhere").absolute())
    before = {path: path.read_bytes() for path in Path("elsewhere").rglob("*") if path.is_file()}
    said = refused(capsys, "run", "several.toml", "--out", "r", "--again", "--set", "rounds=3")
    assert "r/Local is a link; a run writes through none: remove it" in said
    assert {path: path.read_bytes() for path in Path("elsewhere").rglob("*") if path.is_file()} == before
    assert Path("r/FedAvg/summary.json").exists()  # nothing is cleared for a run that cannot begin


def test_nor_does_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    Path("plain.toml").write_text(toml.write({**OWN, "model": "linear"}))
    Path("elsewhere").mkdir()
    Path("r").mkdir()
    Path("r/seed-1").symlink_to(Path("elsewhere").absolute())
    said = refused(capsys, "run", "plain.toml", "--out", "r", "--seeds", "0-1")
    assert "r/seed-1 is a link; a run writes through none: remove it" in said
    assert not list(Path("elsewhere").iterdir())
    assert not Path("r/experiment.toml").exists()


SWEEP = ["--sweep", "training.learning_rate=0.1,0.2"]


@pytest.mark.parametrize(
    ("link", "how"),
    [
        ("seed-1", ["--seeds", "0-1"]),
        ("seed-0/Local", ["--seeds", "0"]),
        ("Local", ["--jobs", "1"]),
        ("tuning", SWEEP),
        ("tuning/seed-3", [*SWEEP, "--sweep-seeds", "3"]),
        ("tuning/Local learning_rate 0.2", SWEEP),
    ],
)
def test_a_study_with_a_linked_folder_is_refused_before_anything_is_cleared_or_written(
    link: str, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {**OWN, "model": "linear", "rounds": 1, "method": [{"algorithm": {"name": "Local"}}]}
    del plain["algorithm"]
    Path("plain.toml").write_text(toml.write(plain))
    for name in ("elsewhere", "r/seed-0"):
        Path(name).mkdir(parents=True)
    Path("r/experiment.toml").write_text("seeds = [0, 1]\n")  # of a study that was there before
    Path("r/table.csv").write_text("its table")
    Path("r", link).parent.mkdir(exist_ok=True)
    Path("r", link).symlink_to(Path("elsewhere").absolute())
    before = sorted(map(str, Path("r").rglob("*")))
    said = refused(capsys, "run", "plain.toml", "--out", "r", "--again", *how)
    assert f"r/{link} is a link; a run writes through none: remove it" in said
    assert sorted(map(str, Path("r").rglob("*"))) == before
    assert not list(Path("elsewhere").iterdir())


@pytest.mark.parametrize(
    ("link", "how"), [("Local", []), ("seed-0/Local", ["--seeds", "0"]), ("tuning", SWEEP)]
)
def test_nor_does_resume_write_through_links(
    link: str, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {**OWN, "model": "linear", "rounds": 1, "method": [{"algorithm": {"name": "Local"}}]}
    del plain["algorithm"]
    Path("plain.toml").write_text(toml.write(plain))
    assert main(["run", "plain.toml", "--out", "r", *how]) == 0
    shutil.move(f"r/{link}", "elsewhere")
    Path("r", link).symlink_to(Path("elsewhere").absolute())
    for summary in Path("elsewhere").rglob("summary.json"):
        summary.unlink()  # as if it had been stopped
    if link == "tuning":
        Path("r/experiment.toml").unlink()
    before = sorted(map(str, Path("elsewhere").rglob("*")))
    assert f"r/{link} is a link; a run writes through none: remove it" in refused(capsys, "resume", "r")
    assert sorted(map(str, Path("elsewhere").rglob("*"))) == before


@pytest.mark.parametrize("command", [["run", "long.toml", "--out", "r", "--again"], ["resume", "r"]])
def test_a_folder_has_one_writer(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    long = {**OWN, "model": "linear", "rounds": 100_000, "data": {**DATA, "clients": 40}}
    Path("long.toml").write_text(toml.write(long))
    other = subprocess.Popen(
        [sys.executable, "-m", "coterie", "run", "long.toml", "--out", "r"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while not Path("r/rounds.jsonl").exists():
            assert other.poll() is None
            time.sleep(0.05)
        assert f"is being written by process {other.pid}" in refused(capsys, *command)
        assert Path("r/rounds.jsonl").exists()
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
