"""A changed byte anywhere in a run's folder: the same result, or a sentence that names the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import CoterieError, toml
from coterie.cli.main import main
from coterie.experiment.experiment import load
from coterie.runs.folder import RunFolder

EXPERIMENT: dict[str, Any] = {
    "rounds": 4,
    "checkpoint_every": 2,
    "evaluate_every": 2,
    "data": {"source": "gaussians", "clients": 6, "sizes": [4, 6], "dimension": 3, "distribution_points": 20},
    "model": {"name": "linear"},
    "training": {"learning_rate": 0.05, "batch_size": 4},
    "algorithm": {"name": "IFCA", "n_clusters": 2},
}
PLACES = 6  # bytes of a file that are changed, one at a time
FILES = [
    "experiment.toml",
    "rounds.jsonl",
    "summary.json",
    "result.safetensors",
    "checkpoint.safetensors",
    "importance.csv",
    "clients.csv",
    "clients/000001.safetensors",
]

Said = tuple[int, str, str]  # the exit code, and what was printed
Say = Callable[..., Said]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "e.toml").write_text(toml.write(EXPERIMENT))
    assert main(["run", str(folder / "e.toml"), "--out", str(folder / "run")]) == 0
    (folder / "new.csv").write_text("a,b,c,y\n" + "0.1,0.2,0.3,1\n0.3,0.2,0.1,0\n" * 3)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After three rounds, two of which a checkpoint has."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "e.toml").write_text(toml.write(EXPERIMENT))
    prepared = load(folder / "e.toml").prepare()

    def stop(record: dict[str, Any], _: int) -> None:
        if record["round"] == 2:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        prepared.play(prepared.experiment.methods[0], folder / "run", watch=stop)
    return folder / "run"


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command in a folder whose name is always the same."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        code = main([str(one) for one in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def copied(folder: Path, to: Path) -> Path:
    """In place of what was there."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(folder, to))


def change(path: Path, at: int) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x01]) + raw[at + 1 :])


def places(path: Path) -> list[int]:
    size = len(path.read_bytes())
    return sorted(random.Random(path.name).sample(range(size), PLACES))


def loaded(folder: Path) -> tuple[Any, ...] | str:
    try:
        run = coterie.load(folder)
    except CoterieError as problem:
        return str(problem)
    records = [{k: v for k, v in one.items() if not k.startswith("seconds")} for one in run.records]
    return records, run.summary, run.importance.to_csv(), run.clients.to_csv(), run.centers[0](run_input())


def run_input() -> Any:
    return [[0.1, 0.2, 0.3]]


def outcome(folder: Path) -> dict[str, Any]:
    """All of the folder, but for how long it took."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    lines = [json.loads(line) for line in found.pop("rounds.jsonl").splitlines()]
    found["rounds"] = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in lines]
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_of_a_finished_run(name: str, finished: Path, tmp_path: Path, say: Say) -> None:
    commands = [["show", "run", "--json"], ["show", "run"], ["compare", "run"], ["resume", "run"]]
    commands += [["onboard", "run", str(finished / "new.csv")], ["cite", "run"]]
    copied(finished / "run", tmp_path / "run")
    good = [say(*command) for command in commands]
    was = str(loaded(Path("run")))
    for at in places(tmp_path / "run" / name):
        for command, (_, out, _) in zip(commands, good, strict=True):
            copied(finished / "run", tmp_path / "run")
            change(tmp_path / "run" / name, at)
            code, printed, said = say(*command)
            case = f"byte {at} of {name}, {' '.join(command)}: {said}"
            if code:
                assert code == 2, case
                assert said.count("\n") == 1, case
                assert Path(name).name in said, case
            else:
                assert printed == out, case
        copied(finished / "run", tmp_path / "run")
        change(tmp_path / "run" / name, at)
        now = loaded(Path("run"))
        assert Path(name).name in now if isinstance(now, str) else str(now) == was, f"byte {at} of {name}"


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients/000001.safetensors"])
def test_it_is_said(name: str, finished: Path, tmp_path: Path, say: Say) -> None:
    """Whatever byte it is, in each of the files that most commands have no need of."""
    for at in places(finished / "run" / name):
        copied(finished / "run", tmp_path / "run")
        change(tmp_path / "run" / name, at)
        code, _, said = say("show", "run")
        assert name in said, f"byte {at}: {said}"
        assert code == 0, f"byte {at}: {said}"


def test_settings_that_are_cut_off(finished: Path, tmp_path: Path, say: Say) -> None:
    path = copied(finished / "run", tmp_path / "run") / "experiment.toml"
    whole = path.read_text()
    for end in range(1, len(whole), 7):
        path.write_text(whole[:end])
        code, _, said = say("resume", "run")
        assert code == 2, f"{end} characters: {said}"
        assert "experiment.toml" in said


def test_a_line_that_is_missing(stopped: Path, tmp_path: Path, say: Say) -> None:
    path = copied(stopped, tmp_path / "run") / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert "line 2 of run/rounds.jsonl is not as written" in say("show", "run")[2]
    assert [one["round"] for one in RunFolder(path.parent).records()] == [0, 1, 2]


def test_resume_mends_the_rounds_of_a_finished_run(finished: Path, tmp_path: Path, say: Say) -> None:
    path = copied(finished / "run", tmp_path / "run") / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"sent": 6', b'"sent": 5') + b"garbage\n")
    code, _, said = say("resume", "run")
    assert code == 0
    assert "lines 2, 3, 4 of run/rounds.jsonl are not as written" in said
    assert outcome(tmp_path / "run") == outcome(finished / "run")
    assert say("show", "run")[2] == ""


def test_what_cannot_be_mended_is_said(finished: Path, tmp_path: Path, say: Say) -> None:
    folder = copied(finished / "run", tmp_path / "run")
    change(folder / "rounds.jsonl", 20)
    (folder / "clients" / "000000.safetensors").unlink()
    code, _, said = say("show", "run")
    assert code == 0
    assert "line 1 of run/rounds.jsonl is not as written; lost and left out" in said
    assert [one["round"] for one in coterie.load(folder).records] == [1, 2, 3]


@pytest.mark.parametrize(
    "name",
    ["rounds.jsonl", "checkpoint.safetensors", "experiment.toml", "clients/000001.safetensors"],
)
def test_a_changed_byte_of_an_interrupted_run(
    name: str, stopped: Path, finished: Path, tmp_path: Path, say: Say
) -> None:
    copied(stopped, tmp_path / "run")
    assert say("resume", "run")[0] == 0
    whole = outcome(tmp_path / "run")
    for at in places(stopped / name):
        copied(stopped, tmp_path / "run")
        change(tmp_path / "run" / name, at)
        code, _, said = say("resume", "run")
        case = f"byte {at} of {name}: {said}"
        assert said.count("\n") <= 1, case
        if code:
            assert code == 2, case
            assert Path(name).name in said, case
        elif name.startswith("clients/"):
            assert name in said, case
            assert say("show", "run")[0] == 0, case
        else:
            assert outcome(tmp_path / "run") == whole, case


def test_older_runs_have_no_checksums(finished: Path, tmp_path: Path, say: Say) -> None:
    """Their rounds are compared with the files of the rounds; their settings are taken as they are."""
    folder = copied(finished / "run", tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        del line["checksum"], line["seconds_checksum"]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = toml.unsealed((folder / "experiment.toml").read_text())
    assert "checksum" not in text
    (folder / "experiment.toml").write_text(text)
    good = say("show", "run")
    assert (good[0], good[2]) == (0, "")
    lines[2]["sent"] += 1
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, said = say("show", "run")
    assert (code, out) == good[:2]
    assert "line 3 of run/rounds.jsonl is not as written" in said


def test_a_study_and_several_methods(tmp_path: Path, say: Say) -> None:
    """Their own files, beside those of the runs: a changed byte is named, or changes nothing."""
    (tmp_path / "e.toml").write_text(toml.write({**EXPERIMENT, "rounds": 1}))
    sweep = ["--sweep", "training.learning_rate=0.01,0.05"]
    assert say("run", "e.toml", "--out", "swept", *sweep)[0] == 0
    methods = [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "Local"}}]
    several = {key: value for key, value in EXPERIMENT.items() if key != "algorithm"}
    (tmp_path / "e.toml").write_text(toml.write({**several, "rounds": 1, "method": methods}))
    assert say("run", "e.toml", "--out", "both")[0] == 0
    for name in (
        "both/experiment.toml",
        "swept/tuning/sweep.json",
        "swept/tuning/base.toml",
        "swept/tuning.json",
    ):
        folder = Path(name).parts[0]
        copied(Path(folder), Path("kept"))
        good = say("resume", folder)
        whole = Path(name).read_bytes()
        for at in (*places(Path(name)), whole.find(b"checksum")):
            change(Path(name), at)
            code, out, said = say("resume", folder)
            assert (code, out) == good[:2] or (code == 2 and name in said), f"byte {at} of {name}: {said}"
            shutil.rmtree(folder)
            copied(Path("kept"), Path(folder))
