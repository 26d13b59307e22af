"""Many runs at the command line: the same as one by one; interrupted, killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.cli.run import DIVERGED
from coterie.runs.folder import RunFolder

TEXT = """
rounds = {rounds}
threads = 1
checkpoint_every = 1
data = {{ source = "regressions", clients = 8, clusters = 2, mixture = "pure" }}
model = "linear"
training = {{ learning_rate = 0.02 }}
init = "random"
method = [ {{ algorithm = {{ name = "Local" }} }}, {{ algorithm = {{ name = "IFCA", n_clusters = 2 }} }} ]
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(TEXT.format(rounds=3))
    return path


def scores(folder: Path) -> dict[str, object]:
    found = {}
    for path in sorted(folder.rglob("summary.json")):
        found[path.parent.relative_to(folder).as_posix()] = RunFolder(path.parent).summary()["personal"]
    return found


def test_seeds_and_jobs_give_what_single_runs_give(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(experiment), "--seeds", "0-1", "--jobs", "2", "--out", "both"]) == 0
    said = capsys.readouterr().out
    assert "seed-1/IFCA: done" in said
    assert "±" in said
    assert "4 of 4 runs" in said
    assert main(["run", str(experiment), "--seed", "1", "--out", "one"]) == 0
    assert scores(Path("both/seed-1")) == scores(Path("one"))
    lines = Path("both/table.csv").read_text().splitlines()
    assert lines[0].startswith("method,seeds,")
    assert [line.split(",")[:2] for line in lines[1:]] == [
        ["Local", "2"],
        ["IFCA", "2"],
    ]
    assert main(["resume", "both"]) == 0  # nothing is left: the table again
    assert "±" in capsys.readouterr().out


def test_several_seeds_are_shown_one_at_a_time(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(experiment), "--seeds", "0,1", "--out", "study"]) == 0
    one = Path("study/seed-0")
    assert f"`coterie show {one}` shows one seed" in capsys.readouterr().out
    assert main(["show", "study"]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"coterie: study holds runs of several seeds; `coterie show {one}` shows one of them, and "
        "`coterie compare study` all, side by side\n"
    )
    assert main(["show", str(one)]) == 0
    assert main(["compare", "study"]) == 0


def test_a_folder_that_holds_a_study_is_kept(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("both/seed-0").mkdir(parents=True)
    Path("both/experiment.toml").write_text("seeds = [0, 1]\n")
    assert main(["run", str(experiment), "--seeds", "0-1", "--out", "both"]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_again_begins_anew_and_a_bad_option_loses_nothing(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(experiment), "--jobs", "2", "--out", "both"]
    assert main(command) == 0
    assert "`coterie show both` shows the run client by client" in capsys.readouterr().out
    before = scores(Path("both"))
    assert main([*command, "--again", "--sweep", "training.learning_rate=0.1,fast"]) == 2
    assert scores(Path("both")) == before
    assert main([*command, "--again", "--set", "rounds=1"]) == 0
    assert scores(Path("both")) != before
    assert "rounds = 1" in Path("both/IFCA/experiment.toml").read_text()


def test_the_exit_code_of_runs_that_diverge(experiment: Path) -> None:
    """Of what a sweep tries some may diverge; of the runs themselves none."""
    diverge = ["--set", "training.learning_rate=1e6", "--set", "rounds=6"]
    assert main(["run", str(experiment), "--seeds", "0-1", "--out", "all", *diverge]) == DIVERGED
    assert main(["resume", "all"]) == DIVERGED
    sweep = ["--sweep", "training.learning_rate=0.02,1e6", "--set", "rounds=6"]
    assert main(["run", str(experiment), "--out", "swept", *sweep]) == 0


@pytest.mark.parametrize("how", [[], ["--seeds", "0-1"]], ids=["run", "study"])
def test_again_keeps_the_folder_that_it_has_locked(experiment: Path, how: list[str]) -> None:
    """In another folder of that name a second process could write."""
    assert main(["run", str(experiment), *how, "--out", "r"]) == 0
    before = os.stat("r").st_ino
    holding = os.open("r", os.O_RDONLY)  # so that its number is not given to another
    try:
        assert main(["run", str(experiment), *how, "--out", "r", "--again"]) == 0
        assert os.stat("r").st_ino == before
    finally:
        os.close(holding)


def test_a_study_is_not_begun_where_another_process_begins_one(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = "import time; from pathlib import Path; from coterie.runs.lock import locked\n"
    hold += "with locked(Path('r')): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert main(["run", str(experiment), "--seeds", "0-1", "--out", "r"]) == 2
        assert f"is being written by process {other.pid}" in capsys.readouterr().err
        assert not list(Path("r").iterdir())
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "3-1"], "--seeds"),
        (["--seeds", "0", "--seed", "1"], "one of the two"),
        (["--jobs", "1000"], "--jobs is 1000"),
        (["--sweep", "model.hidden=1,2"], "no setting of a method"),
        (["--sweep-seeds", "7"], "without --sweep"),
        (["--sweep", "training.learning_rate=0.1,1", "--sweep-seeds", "7-"], "--sweep-seeds"),
        (["--sweep", "training.learning_rate=0.1,fast"], "learning_rate"),
    ],
)
def test_bad_options_leave_nothing(
    experiment: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["run", str(experiment), *options, "--out", "none"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
    assert not Path("none").exists()


@pytest.mark.slow
def test_a_sweep_chooses_and_then_runs(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ["--sweep", "training.learning_rate=0.0001,0.05", "--jobs", "2", "--seeds", "0,1"]
    assert main(["run", str(experiment), *sweep, "--out", "swept"]) == 0
    said = capsys.readouterr().out
    assert said.count("chosen") == 2
    assert "learning_rate = 0.05" in Path("swept/seed-1/IFCA/experiment.toml").read_text()
    assert "held_out" not in Path("swept/experiment.toml").read_text()
    assert main(["compare", "swept"]) == 0  # without the runs that were scored on other points
    assert "learning_rate" not in capsys.readouterr().out
    assert main(["compare", "swept/tuning"]) == 0
    assert "IFCA learning_rate 0.05" in capsys.readouterr().out


def started(experiment: Path, out: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "coterie",
        "run",
        str(experiment),
        "--seeds",
        "0-1",
        "--jobs",
        "2",
        "--out",
        out,
    ]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(path: Path, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed(experiment: Path, number: signal.Signals) -> None:
    experiment.write_text(TEXT.format(rounds=100))
    assert main(["run", str(experiment), "--seeds", "0-1", "--jobs", "2", "--out", "whole"]) == 0
    process = started(experiment, "cut")
    wait_for(Path("cut/seed-0/Local/checkpoint.safetensors"))
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "coterie resume cut" in err
    assert "Traceback" not in err
    assert len(scores(Path("cut"))) < 4
    assert main(["resume", "cut", "--jobs", "2"]) == 0
    assert scores(Path("cut")) == scores(Path("whole"))


@pytest.mark.slow
def test_a_single_method_is_tuned_and_its_table_has_no_tuning_runs(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.format(rounds=2)
    experiment.write_text(text[: text.index("method =")] + 'algorithm = { name = "FedProx", pull = 0.1 }\n')
    assert (
        main(["run", str(experiment), "--sweep", "algorithm.pull=0.01,1", "--out", "one", "--jobs", "2"]) == 0
    )
    assert len(Path("one/table.csv").read_text().splitlines()) == 2


@pytest.mark.slow
def test_interrupted_while_workers_start(experiment: Path) -> None:
    process = started(experiment, "early")
    wait_for(Path("early/experiment.toml"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "SIGABRT" not in err
    assert "Traceback" not in err
    assert main(["resume", "early", "--jobs", "2"]) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for the worker in /proc")
def test_a_killed_worker_costs_its_run_alone(experiment: Path) -> None:
    experiment.write_text(TEXT.format(rounds=100))
    process = started(experiment, "cut")
    wait_for(Path("cut/seed-0/Local/checkpoint.safetensors"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]
    os.kill(workers[0], signal.SIGKILL)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "1 of 4 runs failed" in err
    assert "SIGKILL" in err
    assert len(scores(Path("cut"))) == 3
    assert main(["resume", "cut", "--jobs", "2"]) == 0
    assert len(scores(Path("cut"))) == 4
