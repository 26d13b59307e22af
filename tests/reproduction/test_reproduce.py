"""`coterie reproduce` runs an item, keeps its numbers, and runs nothing twice."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.reproduction import items as items_module
from coterie.reproduction.items import load
from coterie.reproduction.page import claims, markdown
from coterie.reproduction.play import missing
from coterie.reproduction.results import Results, place

ITEM = """
title = "A small table"
shows = "Two methods on regressions."
departures = ["Everything is small."]
kind = "runs"
[cost]
quick = { cpu = 1 }
bounded = { cpu = 1 }
full = { cpu = 1 }
[size.quick]
seeds = [0, 1]
set = { rounds = 2 }
[size.bounded]
seeds = [0]
set = {}
[size.full]
seeds = [0]
set = {}
[[variant]]
name = "pure"
set = { "data.mixture" = "pure" }
[[column]]
name = "MSE"
of = "personal_mse"
better = "lower"
[[column]]
name = "loss"
of = "training_loss_by_round"
better = "lower"
[experiment]
rounds = 4
threads = 1
data = { source = "regressions", clients = 6, clusters = 2 }
model = "linear"
method = [{ label = "FedAvg", algorithm = { name = "FedAvg" } }, { label = "Local", algorithm = { name = "Local" } }]
"""
PUBLISHED = """
where = "Table 1"
scale = 10
[[cell]]
variant = "pure"
method = "FedAvg"
values = { "MSE" = [120.0, 5.0] }
[[claim]]
says = "errors are positive"
where = "Section 1"
holds = ["* / FedAvg / MSE > 0"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "items"
    (folder / "fedsoft").mkdir(parents=True)
    (folder / "fedsoft" / "table-1.toml").write_text(ITEM)
    (folder / "fedsoft" / "table-1.published.toml").write_text(PUBLISHED)
    monkeypatch.setattr(items_module, "folder_of_items", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_an_item_is_run_shown_and_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "fedsoft-table-1", "--quick", "--jobs", "2", "--results", "kept"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "(12.0 ± 0.500)" in said
    assert "held: errors are positive" in said
    with Path("kept/fedsoft/table-1-quick.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    numbers = [line for line in lines if line["column"] == "MSE"]
    assert {(line["method"], line["seed"]) for line in numbers} == {
        (m, s) for m in ("FedAvg", "Local") for s in "01"
    }
    assert {line["round"] for line in lines if line["column"] == "loss"} == {"1", "2"}

    item = load("fedsoft-table-1", here)
    results = Results.load(place(Path("kept"), item, "quick"))
    assert missing(item, "quick", results) == []
    assert results.makers[0]["commit"] is not None
    text = markdown(item, [("quick", results)])
    assert "| FedAvg |" in text
    assert "coterie reproduce fedsoft-table-1 --quick" in text
    assert claims(item, results)[0][1] == "held"

    shutil.rmtree("runs")
    assert main(command) == 0  # everything is there: nothing is played
    assert not Path("runs").exists()


def test_a_run_that_is_missing_is_played(here: Path) -> None:
    item = load("fedsoft-table-1", here)
    results = Results(Path("none"))
    assert missing(item, "quick", results) == [("pure", 0), ("pure", 1)]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["fedsoft-table-9"], "there is no item 'fedsoft-table-9'"),
        (["fedsoft-table-1", "--quick", "--bounded"], "one of them"),
        (["fedsoft-table-1", "--jobs", "0"], "--jobs"),
    ],
)
def test_what_is_wrong_is_said(
    here: Path, capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    assert main(["reproduce", *command]) == 2
    assert said in capsys.readouterr().err


def test_all_items_are_listed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    assert "fedsoft-table-1" in capsys.readouterr().out
