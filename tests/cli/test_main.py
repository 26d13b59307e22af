"""The command line, in this process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import coterie
from coterie import ALGORITHMS, toml
from coterie.cli.main import main
from coterie.experiment.experiment import load, parse
from coterie.experiment.field_docs import explained
from coterie.experiment.schema import parameters
from coterie.runs.folder import RunFolder

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 3,
    "data": {"source": "gaussians", "clients": 6, "sizes": [6, 8], "dimension": 3, "distribution_points": 20},
    "model": {"name": "linear"},
}
SOFT = {"name": "FedSoft", "n_clusters": 2}
ONE = {**SMALL, "algorithm": SOFT}
SEVERAL = {
    **SMALL,
    "method": [
        {"algorithm": {"name": "Local"}},
        {"algorithm": {"name": "FedAvg"}},
        {"label": "soft", "algorithm": SOFT},
    ],
}
LABELS = ["Local", "FedAvg", "soft"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text(toml.write(ONE))
    Path("several.toml").write_text(toml.write(SEVERAL))


def _printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that succeeds prints; nothing goes to stderr."""
    capsys.readouterr()
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def _line(text: str, label: str) -> list[str]:
    """The cells of a table's line."""
    line = next(line for line in text.splitlines() if re.match(rf" *{re.escape(label)}  ", line))
    return re.split(r" {2,}", line.strip())


def _headings(text: str) -> list[str]:
    return _line(text, "method")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, "--version") == f"coterie {coterie.__version__}\n"


def test_the_list_of_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "algorithms")
    words = " ".join(text.split())
    for name, kind in ALGORITHMS.items():
        assert name in text
        for setting in parameters(kind):
            assert setting in words
    assert "pull=0.1" in words


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_about_one_algorithm(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "algorithms", name.lower())
    kind = ALGORITHMS[name]
    assert (kind.__doc__ or "").splitlines()[0] in text
    assert kind.bibtex in text
    assert ("server, graph" in text) == (not kind.needs_server)
    lines = [line.split() for line in text.splitlines()]
    for setting in explained(kind):
        line = next(line for line in lines if line[:1] == [setting.name])
        assert " ".join(line).startswith(f"{setting.name} {setting.default} {setting.meaning or '–'}")


def test_one_method_is_kept_in_the_folder_itself(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "run", "one.toml", "--seed", "4", "--set", "algorithm.pull=0.5")
    folder = Path("runs/small-4")
    assert f"The run is in {folder}" in text
    assert "FedSoft: round 3/3, loss " in text
    found = load(folder / "experiment.toml")
    assert found == parse({**ONE, "seed": 4, "algorithm": {**SOFT, "pull": 0.5}})
    assert len(RunFolder(folder).records()) == 3
    assert RunFolder(folder).finished


def test_the_table_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed(capsys, "run", "several.toml", "--out", "out")
    headings = [
        "method",
        "accuracy on 1",
        "others on 1",
        "accuracy on 2",
        "others on 2",
        "importance error",
        "personal accuracy",
        "MB sent",
    ]
    assert _headings(text) == headings
    summary = RunFolder(Path("out/soft")).summary()
    centers = summary["centers"]
    own = [centers["accuracy"][c][d] for d, c in enumerate(centers["center_of_distribution"])]
    other = [centers["accuracy"][1 - c][d] for d, c in enumerate(centers["center_of_distribution"])]
    shown = [own[0], other[0], own[1], other[1], centers["importance_error"], summary["personal"]["accuracy"]]
    assert _line(text, "soft") == ["soft", *(f"{n:.3f}" for n in shown), f"{summary['megabytes']:.1f}"]
    assert _line(text, "Local")[1:6] == ["–"] * 5
    assert load(Path("out/experiment.toml")) == parse(SEVERAL)
    for label in LABELS:
        assert load(Path("out") / label / "experiment.toml").methods[0].label == label


def test_starting_over_forgets_methods_that_are_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    _printed(capsys, "run", "several.toml", "--out", "out")
    Path("out/soft/notes.txt").write_text("mine")
    _printed(capsys, "run", "several.toml", "--out", "out", "--again", "--set", "method.2.label=other")
    assert sorted(p.name for p in Path("out").iterdir()) == [
        "FedAvg",
        "Local",
        "experiment.toml",
        "other",
        "soft",
    ]
    assert [p.name for p in Path("out/soft").iterdir()] == ["notes.txt"]
    _printed(capsys, "run", "one.toml", "--out", "out", "--again")
    assert not Path("out/other").exists()


def test_resuming_goes_on_with_the_first_unfinished_method(capsys: pytest.CaptureFixture[str]) -> None:
    whole = _printed(capsys, "run", "several.toml", "--out", "out")
    Path("out/FedAvg/summary.json").unlink()
    RunFolder(Path("out/soft")).clear()
    text = _printed(capsys, "resume", "out")
    assert "Local: round" not in text  # it was finished
    assert "FedAvg: round" not in text  # only its end was missing
    assert "soft: round 3/3" in text
    assert _line(text, "soft") == _line(whole, "soft")
    assert _line(text, "FedAvg") == _line(whole, "FedAvg")


def test_a_finished_run_resumed_shows_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    _printed(capsys, "run", "one.toml", "--out", "out")
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    assert _line(_printed(capsys, "resume", "out"), "FedSoft")
    assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == before


def test_comparing_gives_mean_and_deviation_over_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in "12":
        _printed(capsys, "run", "several.toml", "--seed", seed, "--out", f"all/{seed}")
    text = _printed(capsys, "compare", "all", "all/1")  # a run found twice counts once
    found = [RunFolder(Path(f"all/{seed}/soft")).summary() for seed in "12"]

    def own(distribution: int) -> list[float]:
        centers = [summary["centers"] for summary in found]
        return [c["accuracy"][c["center_of_distribution"][distribution]][distribution] for c in centers]

    columns = {
        "accuracy on 1": own(0),
        "accuracy on 2": own(1),
        "importance error": [summary["centers"]["importance_error"] for summary in found],
        "personal accuracy": [summary["personal"]["accuracy"] for summary in found],
        "personal F1": [summary["personal"]["f1"] for summary in found],
        "personal loss": [summary["personal"]["loss"] for summary in found],
    }
    line = _line(text, "soft")
    assert _headings(text) == ["method", *columns, "MB sent", "seeds"]
    assert line[1:7] == [f"{fmean(each):.3f} ± {stdev(each):.3f}" for each in columns.values()]
    assert line[-1] == "2"
    assert [_line(text, label)[-1] for label in LABELS] == ["2", "2", "2"]
    assert sorted(LABELS, key=lambda label: text.index(f"\n {label} ")) == LABELS  # as in the experiment
    assert "other centers" not in text
    assert " ".join(text.split()).endswith(
        "on their held-out points; mean ± sample standard deviation over seeds"
    )


def test_runs_that_differ_in_more_than_the_seed_get_different_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _printed(capsys, "run", "one.toml", "--out", "all/a")
    _printed(capsys, "run", "one.toml", "--out", "all/b", "--set", "algorithm.pull=0.5")
    _printed(capsys, "run", "one.toml", "--out", "all/c", "--set", "name=third")
    text = _printed(capsys, "compare", "all")
    for name in ("(small) algorithm.pull=0.1", "(small) algorithm.pull=0.5", "(third)"):
        assert f"FedSoft {name}" in text


def test_an_unfinished_run_is_left_out_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _printed(capsys, "run", "several.toml", "--out", "out")
    Path("out/Local/summary.json").unlink()
    assert main(["compare", "out"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "coterie: out/Local is not finished and is left out\n"
    assert "Local" not in printed.out


def test_regression_is_scored_by_its_squared_error(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"source": "regressions", "clients": 4, "sizes": [6, 8], "dimension": 2, "distribution_points": 20}
    Path("r.toml").write_text(toml.write({**ONE, "data": data}))
    text = _printed(capsys, "run", "r.toml", "--out", "r")
    assert _headings(text)[1:] == [
        "MSE on 1",
        "others on 1",
        "MSE on 2",
        "others on 2",
        "importance error",
        "personal MSE",
        "MB sent",
    ]
    summary = json.loads(Path("r/summary.json").read_text())
    assert f"{summary['personal']['loss']:.3f}" in _line(text, "FedSoft")


def test_without_a_command_there_is_the_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("Usage: coterie") == 1
