"""`coterie reproduce` runs an item, keeps its numbers, and runs nothing twice."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.reproduction import items as items_module
from coterie.reproduction.items import Item, load
from coterie.reproduction.page import claims, markdown
from coterie.reproduction.play import missing
from coterie.reproduction.results import Line, Results, place

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
    results = Results.load(place(Path("kept"), item, "quick"), item, "quick")
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
    assert [(one.variant, one.method, one.seed) for one in missing(item, "quick", results)] == [
        ("pure", method, seed) for method in ("FedAvg", "Local") for seed in (0, 1)
    ]


def changed(here: Path, old: str, new: str) -> Item:
    """The item, with something else in its file from now on."""
    file = here / "fedsoft" / "table-1.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return load("fedsoft-table-1", here)


def kept(item: Item) -> Results:
    return Results.load(place(Path("kept"), item, "quick"), item, "quick")


def test_results_of_former_settings_are_not_shown_and_made_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "fedsoft-table-1", "--quick", "--results", "kept"]
    assert main(command) == 0
    before = {line.run: line for line in kept(load("fedsoft-table-1", here)).lines if line.column == "MSE"}
    local = '{ label = "Local", algorithm = { name = "Local" }'
    item = changed(here, local, local + ", training = { learning_rate = 0.02 }")
    capsys.readouterr()
    assert main(["reproduce", "--results", "kept"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "quick 2/4" in said
    assert "2 runs made with" in said

    results = kept(item)
    assert {line.method for line in results.lines} == {"FedAvg"}
    assert {(one.method, one.seed) for one in missing(item, "quick", results)} == {("Local", 0), ("Local", 1)}
    text = markdown(item, [("quick", results)])
    assert "| Local |" not in text
    assert "not run: pure, seed 0, pure, seed 1; not shown: 2 runs made with former settings." in text

    assert main(command) == 0
    results = kept(item)
    after = {line.run: line for line in results.lines if line.column == "MSE"}
    assert results.former == missing(item, "quick", results) == []
    assert after["pure", "FedAvg", 0] == before["pure", "FedAvg", 0]
    assert after["pure", "Local", 0].value != before["pure", "Local", 0].value


def test_a_page_says_that_all_is_of_former_settings(here: Path) -> None:
    item = load("fedsoft-table-1", here)
    line = Line("pure", "FedAvg", "MSE", 0, None, 1.0, 0, "")  # of what, is not known
    results = Results(Path("kept") / "fedsoft" / "table-1-quick", [line], makers=[{"commit": "abc"}])
    results.save()
    text = markdown(item, [("quick", kept(item))])
    assert "made with former settings, and not shown" in text
    assert "| FedAvg |" not in text


def test_a_column_that_was_added_is_missing(here: Path) -> None:
    item = load("fedsoft-table-1", here)
    hashes = item.hashes("quick")
    results = Results(Path("none"))
    for run in missing(item, "quick", results):
        place = (run.variant, run.method)
        results.lines.append(Line(*place, "MSE", run.seed, None, 1.0, 0, hashes[place]))
        results.lines.append(Line(*place, "loss", run.seed, 2, 1.0, 0, hashes[place]))
    assert missing(item, "quick", results) == []
    item = changed(here, "[experiment]", '[[column]]\nname = "ARI"\nof = "ari"\nbetter = ""\n[experiment]')
    assert len(missing(item, "quick", results)) == 4


def test_the_hash_of_settings(here: Path) -> None:
    """All that a run depends on but its seed, spelled out or not; no names."""
    usual = load("fedsoft-table-1", here).hashes("quick")
    assert usual.keys() == {("pure", "FedAvg"), ("pure", "Local")}
    assert usual["pure", "FedAvg"] != usual["pure", "Local"]
    spelled = changed(here, "rounds = 4", "rounds = 4\ntraining = { momentum = 0.0 }").hashes("quick")
    assert spelled == usual
    labelled = changed(here, 'label = "Local"', 'label = "Alone"').hashes("quick")
    assert labelled["pure", "Alone"] == usual["pure", "Local"]
    assert changed(here, "seeds = [0, 1]", "seeds = [7]").hashes("quick") == labelled
    other = changed(here, "momentum = 0.0", "momentum = 0.5").hashes("quick")
    assert other["pure", "FedAvg"] != usual["pure", "FedAvg"]


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
