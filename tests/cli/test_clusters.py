"""`coterie choose-clusters`, and `n_clusters = "auto"` in an experiment."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import toml
from coterie.cli.main import main
from coterie.errors import CoterieError
from coterie.experiment.experiment import parse

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "threads": 1,
    "data": {
        "source": "regressions",
        "clients": 16,
        "clusters": 3,
        "mixture": "pure",
        "sizes": [30, 40],
        "dimension": 4,
        "distribution_points": 10,
    },
    "model": {"name": "linear"},
    "training": {"learning_rate": 0.2, "batch_size": "none", "epochs": 4},
    "choosing": {"most": 4, "n_init": 1},
}
AUTO = {**SMALL, "algorithm": {"name": "WeCFL", "n_clusters": "auto"}}


def _write(table: dict[str, Any], name: str = "small.toml") -> str:
    Path(name).write_text(toml.write(table))
    return name


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("clusters", [2, 3])
def test_choose_clusters_finds_prints_and_writes(clusters: int, capsys: pytest.CaptureFixture[str]) -> None:
    file = _write({**SMALL, "algorithm": {"name": "WeCFL", "n_clusters": 7}})
    arguments = [
        "choose-clusters",
        file,
        "--set",
        f"data.clusters={clusters}",
        "--least",
        "1",
        "--out",
        "found",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"WeCFL: {clusters} clusters are chosen: the held-out loss" in printed.out
    assert "in found/choice.csv and found/choice.json, what was tried in found/tried\n" in printed.out
    assert "The plot is found/choice.png\n" in printed.out
    choice = json.loads(Path("found/choice.json").read_text())
    assert choice["n_clusters"] == clusters
    assert [line["n_clusters"] for line in choice["tried"] if line["chosen"]] == [clusters]
    rows = list(csv.DictReader(Path("found/choice.csv").read_text().splitlines()))
    assert [float(row["held_out_loss"]) for row in rows] == [
        line["held_out_loss"] for line in choice["tried"]
    ]
    assert Path("found/choice.png").read_bytes().startswith(b"\x89PNG")
    assert 'n_clusters = "auto"' in Path("found/choice.toml").read_text()
    assert main([*arguments, "--most", "2"]) == 0  # what was tried before is read, not computed
    assert "round" not in capsys.readouterr().out


def test_a_run_chooses_and_is_then_as_if_the_number_had_been_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", _write(AUTO), "--out", "auto"]) == 0
    assert "WeCFL: 3 clusters are chosen" in capsys.readouterr().out
    numbered = {**AUTO, "algorithm": {"name": "WeCFL", "n_clusters": 3}}
    assert main(["run", _write(numbered), "--out", "three"]) == 0
    for name in ("experiment.toml", "result.safetensors", "summary.json"):
        assert Path("auto", name).read_bytes() == Path("three", name).read_bytes()
    assert json.loads(Path("auto/choice.json").read_text())["n_clusters"] == 3
    assert coterie.load("auto").summary["algorithm"] == "WeCFL"


def test_one_key_for_all_stages_and_methods() -> None:
    stages = [{"rounds": 2, "algorithm": {"name": "WeCFL"}}, {"rounds": 2, "algorithm": {"name": "FedEM"}}]
    methods = [
        {"algorithm": {"name": "FedAvg"}},
        {"label": "soft", "stage": stages},
        {"algorithm": {"name": "IFCA", "n_clusters": 2}},
    ]
    asked = parse({**SMALL, "clusters": "auto", "method": methods})
    assert [method.auto for method in asked.methods] == [False, True, False]
    assert parse(toml.read(asked.resolved(), "")) == asked
    settled = asked.methods[1].with_clusters(3)
    assert [stage.algorithm.clusters() for stage in settled.stages] == [3, 3]
    numbered = parse({**SMALL, "clusters": 3, "method": methods})
    assert numbered.methods[1] == settled


@pytest.mark.parametrize("clusters", [1, 3])
def test_a_number_chosen_for_a_lone_algorithm_makes_the_stages_that_are_read_again(clusters: int) -> None:
    asked = parse({**SMALL, "algorithm": {"name": "IFCA", "n_clusters": "auto"}})
    settled = replace(asked, methods=(asked.methods[0].with_clusters(clusters),))
    assert parse(toml.read(settled.resolved(), "")).methods[0] == settled.methods[0]
    assert len(settled.methods[0].stages) == (1 if clusters == 1 else 2)


def test_several_methods_each_with_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [{"rounds": 3, "algorithm": {"name": "WeCFL"}}, {"rounds": 2, "algorithm": {"name": "FedEM"}}]
    methods = [{"algorithm": {"name": "FedAvg"}}, {"label": "soft", "stage": stages}]
    assert main(["run", _write({**SMALL, "clusters": "auto", "method": methods}), "--out", "both"]) == 0
    assert "soft: 3 clusters are chosen" in capsys.readouterr().out
    assert json.loads(Path("both/soft/choice.json").read_text())["n_clusters"] == 3
    kept = toml.read(Path("both/experiment.toml").read_text(), "")
    assert [stage["algorithm"]["n_clusters"] for stage in kept["method"][1]["stage"]] == [3, 3]
    assert not Path("both/FedAvg/choice.json").exists()


def test_a_run_interrupted_while_choosing_is_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _write(AUTO), "--out", "straight"]) == 0
    prepared = parse(AUTO).prepare()
    folder = Path("stopped")
    folder.mkdir()
    (folder / "experiment.toml").write_text(prepared.experiment.resolved())

    def stop(clusters: int, record: dict[str, Any], rounds: int) -> None:
        if clusters == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared.choose(prepared.experiment.methods[0], folder, stop)
    capsys.readouterr()
    assert main(["resume", "stopped"]) == 0
    printed = capsys.readouterr().out
    assert "n_clusters = 2" not in printed
    assert "n_clusters = 3" in printed
    for name in ("experiment.toml", "result.safetensors", "summary.json", "choice.json"):
        assert Path("straight", name).read_bytes() == (folder / name).read_bytes()


def test_a_run_started_over_forgets_its_choice() -> None:
    assert main(["run", _write(AUTO), "--out", "run"]) == 0
    assert main(["run", _write(AUTO), "--out", "run"]) == 2
    assert (
        main(
            [
                "run",
                _write({**AUTO, "algorithm": {"name": "WeCFL", "n_clusters": 2}}),
                "--out",
                "run",
                "--again",
            ]
        )
        == 0
    )
    assert not Path("run/choice.json").exists()
    assert not Path("run/tried").exists()


def test_without_matplotlib_one_sentence_and_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["choose-clusters", _write(AUTO), "--most", "1", "--out", "found"]) == 0
    printed = capsys.readouterr()
    assert (
        printed.err
        == "coterie: the plot needs matplotlib, which is not installed: pip install 'coterie[plot]'\n"
    )
    assert Path("found/choice.json").exists()
    assert not Path("found/choice.png").exists()


def test_what_cannot_be_played_is_not_played() -> None:
    prepared = parse(AUTO).prepare()
    with pytest.raises(CoterieError, match="'auto'; choose a number first"):
        prepared.play(prepared.experiment.methods[0], Path("run"))


STAGED = [
    {"rounds": 1, "algorithm": {"name": "WeCFL", "n_clusters": "auto"}},
    {"rounds": 1, "algorithm": {"name": "FedEM", "n_clusters": 2}},
]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            {"algorithm": {"name": "WeCFL", "n_clusters": "many"}},
            "algorithm.n_clusters is 'many'; allowed is a whole",
        ),
        ({"algorithm": {"name": "WeCFL", "n_clusters": "many"}}, "or 'auto'"),
        (
            {"clusters": 0, "algorithm": {"name": "WeCFL"}},
            "clusters is 0; allowed is a whole number from 1 or 'auto'",
        ),
        ({"clusters": "auto", "algorithm": {"name": "FedAvg"}}, "FedAvg has no number of clusters"),
        ({"algorithm": {"name": "CFL", "n_clusters": "auto"}}, "CFL finds the number of clusters itself"),
        ({"stage": STAGED}, "stage.1.algorithm.n_clusters is 2; allowed is 'auto', as another stage"),
        ({**AUTO, "choosing": {"most": 0}}, "choosing.most is 0; allowed is 1 (least) or more"),
        (
            {**AUTO, "choosing": {"held_out": 1.0}},
            "choosing.held_out is 1.0; allowed is a number above 0 and below 1",
        ),
        ({**AUTO, "choosing": {"least": 17, "most": 20}}, "choosing.least is 17; allowed is 1 to 15, fewer"),
        ({**AUTO, "choosing": {"trials": 3}}, "choosing.trials is not a known key"),
    ],
)
def test_malformed_experiments(table: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _write({**SMALL, **table}), "--out", "run"]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("algorithm", "arguments", "says"),
    [
        ("FedAvg", [], "FedAvg has no number of clusters"),
        ("CFL", [], "CFL finds the number of clusters itself"),
        ("WeCFL", ["--least", "0"], "--least is 0; allowed is 1 or more"),
        ("WeCFL", ["--least", "3", "--most", "2"], "--most is 2; allowed is 3 (least) or more"),
    ],
)
def test_malformed_commands(
    algorithm: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clusters = {"n_clusters": 2} if algorithm == "WeCFL" else {}
    file = _write({**SMALL, "algorithm": {"name": algorithm, **clusters}})
    assert main(["choose-clusters", file, "--out", "found", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not Path("found").exists()


def test_a_folder_that_holds_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", _write(AUTO), "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["choose-clusters", _write(AUTO), "--out", "run"]) == 2
    assert (
        capsys.readouterr().err == "coterie: --out is 'run', which holds a run; allowed is another folder\n"
    )
