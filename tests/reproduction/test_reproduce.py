"""`coterie reproduce` runs an item, keeps its numbers, and runs nothing twice."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.cli.main import LOST, main
from coterie.errors import CoterieError
from coterie.experiment.experiment import parse
from coterie.files import write_json
from coterie.reproduction import items as items_module
from coterie.reproduction import play as play_module
from coterie.reproduction.items import Item, load
from coterie.reproduction.page import claims, distances, markdown, pictured
from coterie.reproduction.play import missing
from coterie.reproduction.results import Line, Results, place
from coterie.runs import recorder
from coterie.runs.folder import NEEDED, RunFolder

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
    assert "*pure*" in markdown(item, [("quick", results)])
    item.table["varied"] = "mixture"
    text = markdown(item, [("quick", results)])
    assert "*mixture = pure*" in text
    assert "| FedAvg |" in text
    assert "coterie reproduce fedsoft-table-1 --quick" in text
    assert claims(item, results)[0][1] == "held"

    shutil.rmtree("runs")
    assert main(command) == 0  # everything is there: nothing is played
    assert not Path("runs").exists()


def test_a_run_keeps_its_numbers_and_no_models(here: Path) -> None:
    """Those of one item may take a hundred gigabytes."""
    assert main(["reproduce", "fedsoft-table-1", "--quick", "--seeds", "0", "--method", "FedAvg"]) == 0
    (store,) = (RunFolder(path.parent) for path in Path("runs/reproduce/runs").glob("*/seed-0/summary.json"))
    assert store.finished
    assert set(store.result()[0]) & {"centers", "importance", "personal.rows"} == {"importance"}
    with pytest.raises(CoterieError, match="keeps a run's numbers and no models"):
        coterie.load(store.folder)


@pytest.mark.parametrize(("seldom", "checkpoints"), [(0.0, 3), (60.0, 0)])
def test_without_models_checkpoints_are_written_seldom_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seldom: float, checkpoints: int
) -> None:
    written: list[Path] = []
    write = RunFolder.write_checkpoint

    def writing(store: RunFolder, *what: Any) -> None:
        write(store, *what)
        written.append(store.folder)

    monkeypatch.setattr(RunFolder, "write_checkpoint", writing)
    monkeypatch.setattr(recorder, "SELDOM", seldom)
    data = {"source": "regressions", "clients": 4}
    table = {"rounds": 3, "checkpoint_every": 1, "data": data, "model": "linear"}
    prepared = parse({**table, "algorithm": {"name": "FedAvg"}}).prepare()
    prepared.play(prepared.experiment.methods[0], tmp_path / "run", models=False)
    assert len(written) == checkpoints
    assert not list((tmp_path / "run").glob("checkpoint*"))


def test_a_part_alone_is_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "fedsoft-table-1", "--quick", "--results", "kept"]
    assert main([*command, "--variant", "p*", "--method", "Local", "--seeds", "1"]) == 0
    said = capsys.readouterr().out
    assert "(1 of 1 runs)" in said
    assert "open: errors are positive" in said
    assert "ours (quick, which proves nothing about the paper)" in said
    assert {line.run for line in kept(load("fedsoft-table-1", here)).lines} == {("pure", "Local", 1)}
    assert main([*command, "--method", "FedProx"]) == 2
    assert "--method is 'FedProx', which there is not" in capsys.readouterr().err
    assert "Not run: 'pure': FedAvg; 'pure': Local (seed 0)" in said
    assert main(["reproduce", "--seeds", "1"]) == 2
    assert "--seeds is given without an item" in capsys.readouterr().err


def test_points_are_of_the_first_seed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another there is no picture, and that is no error."""
    changed(here, 'kind = "runs"', 'kind = "runs"\nfigure = "importance"')
    changed(here, "clusters = 2", "clusters = 2, mixture = '10:90'")
    command = ["reproduce", "fedsoft-table-1", "--quick", "--results", "kept", "--method", "Local"]
    assert main([*command, "--seeds", "1"]) == 0
    assert "The picture" not in capsys.readouterr().out
    item = load("fedsoft-table-1", here)
    assert pictured(item, [("quick", kept(item))]) is None
    assert ".png" not in markdown(item, [("quick", kept(item))])


def test_a_run_that_is_missing_is_played(here: Path) -> None:
    item = load("fedsoft-table-1", here)
    results = Results(Path("none"))
    assert [(one.variant, one.method, one.seed) for one in missing(item, "quick", results)] == [
        ("pure", method, seed) for method in ("FedAvg", "Local") for seed in (0, 1)
    ]


def test_two_commands_do_not_write_the_same_results(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each would write what it read before, and so without what the other found."""
    code = "import sys; from pathlib import Path; from coterie.runs.lock import locked\n"
    code += "with locked(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(here / "kept/fedsoft")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert main(["reproduce", "fedsoft-table-1", "--quick", "--results", str(here / "kept")]) == 2
        assert f"is being written by process {other.pid}" in capsys.readouterr().err
        other.communicate("")


def test_a_run_that_diverged_has_no_numbers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last good centers, which it has in the end, are not what the item's settings lead to."""
    changed(here, 'model = "linear"', 'model = "linear"\ntraining = { learning_rate = 1e9 }')
    assert main(["reproduce", "fedsoft-table-1", "--quick", "--results", "kept"]) == 0
    said = capsys.readouterr()
    assert "The run diverged" in said.err
    assert "not held: errors are positive" in said.out
    found = kept(load("fedsoft-table-1", here))
    assert {line.column for line in found.lines} == {"MSE", "loss"}
    assert all(math.isnan(line.value) for line in found.lines)
    assert missing(load("fedsoft-table-1", here), "quick", found) == []


def test_of_runs_that_diverged_the_page_says_so(here: Path) -> None:
    item = load("fedsoft-table-1", here)
    lines = [Line("pure", "FedAvg", "MSE", seed, None, math.nan, 0, "") for seed in (0, 1)]
    results = Results(Path("none"), lines, makers=[{"commit": "a", "machine": "b", "versions": "c"}])
    text = markdown(item, [("quick", results)])
    assert "| FedAvg | diverged | 2 |" in text
    assert "**not held**: errors are positive (Section 1): MSE no number > 0 (not)" in text


def test_results_without_their_makers_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("kept/fedsoft").mkdir(parents=True)
    Path("kept/fedsoft/table-1-quick.csv").write_text("variant\n")
    assert main(["reproduce", "--results", "kept"]) == 2
    assert "table-1-quick.csv has no table-1-quick.json beside it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sign",
    [{"stopped": {"rounds": 2, "says": "The run diverged."}}, {"verdict": {"findings": ["diverged"]}}],
    ids=["stopped", "verdict"],
)
def test_nor_has_it_curves_or_points_and_they_are_not_missed(here: Path, sign: dict[str, object]) -> None:
    changed(here, 'kind = "runs"', 'kind = "runs"\nfigure = "importance"')
    item = changed(here, "clusters = 2", "clusters = 2, mixture = '10:90'")
    results = Results(Path("none"))
    left = missing(item, "quick", results)
    assert len(left) == 4
    for one in left:
        store = RunFolder(Path(one.method, str(one.seed)))
        store.folder.mkdir(parents=True)
        for number in range(2):
            store.append({"round": number, "stage": 0, "sent": 1, "loss": 1.0})
        store.write_summary({**dict.fromkeys(NEEDED), "rounds": 2, **sign})
        write_json(store.folder / play_module.MADE, {})
        assert play_module._take(store.folder, [(play_module.Work(item, "quick", results), one)])
    assert {(line.column, line.round) for line in results.lines} == {("MSE", None), ("loss", 2)}
    assert all(math.isnan(line.value) for line in results.lines)
    assert results.points == []
    assert missing(item, "quick", results) == []


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
    assert "- not run: 'pure': Local\n- not shown: 2 runs made with former settings\n" in text

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


def test_a_page_names_the_makers_of_what_it_shows_alone(here: Path) -> None:
    item = load("fedsoft-table-1", here)
    line = Line("pure", "FedAvg", "MSE", 0, None, 1.0, 1, item.hashes("quick")["pure", "FedAvg"])
    about = {"machine": "one", "versions": "1"}
    makers = [{"commit": "before", **about}, {"commit": "today", **about}]
    text = markdown(item, [("quick", Results(Path("none"), [line], makers=makers))])
    assert "commit today" in text
    assert "before" not in text


def test_a_variant_may_be_smaller_in_a_way_of_its_own(here: Path) -> None:
    before = load("fedsoft-table-1", here).hashes("quick")
    item = changed(
        here,
        'set = { "data.mixture" = "pure" }',
        """set = { "data.mixture" = "pure" }
quick = { rounds = 3 }
[[variant]]
name = "mixed"
set = { "data.mixture" = "10:90" }""",
    )
    assert item.settings("pure", "quick")["rounds"] == 3
    assert item.settings("mixed", "quick")["rounds"] == 2
    assert item.settings("pure", "full")["rounds"] == 4
    assert item.hashes("quick")["pure", "FedAvg"] != before["pure", "FedAvg"]
    line = Line("pure", "FedAvg", "MSE", 0, None, 1.0, 0, item.hashes("quick")["pure", "FedAvg"])
    makers = [{"commit": "a", "machine": "b", "versions": "c"}]
    text = markdown(item, [("quick", Results(Path("none"), [line], makers=makers))])
    assert "in place of the full size's: rounds = 3 ('pure'); rounds = 2 ('mixed')" in text
    assert "in place of" not in markdown(item, [("full", Results(Path("none"), [line], makers=makers))])


def test_how_far_ours_are_from_the_papers_and_what_was_found(here: Path) -> None:
    item = changed(
        here,
        "[size.quick]",
        '[found]\nquick = ["it is small"]\nfull = ["the seed explains it"]\n[size.quick]',
    )
    item.published["cell"] += [
        {"variant": "pure", "method": "Local", "values": {"MSE": 20.0}},
        {"variant": "pure", "method": "FedProx", "values": {"MSE": 30.0}},  # not run
    ]
    values = {"FedAvg": (12.5, 15.5), "Local": (2.1, 2.2)}  # the paper has 12 and 2, in our unit
    results = Results(Path("none"), makers=[{"commit": "a", "machine": "b", "versions": "c"}])
    for method, each in values.items():
        for seed, value in enumerate(each):
            results.lines.append(Line("pure", method, "MSE", seed, None, value, 0, ""))
    (said,) = distances(item, "full", results)
    assert said == (
        "MSE: the median distance to the paper's 2 values is 1.075, the largest 2.000 (pure / FedAvg)"
    )
    item.published["misprinted"] = ["MSE"]
    assert distances(item, "full", results) == []
    del item.published["misprinted"]
    assert f"- {said}\n- the seed explains it\n" in markdown(item, [("full", results)])
    quick = markdown(item, [("quick", results)])
    assert "- it is small\n" in quick
    assert said not in quick  # another size is not the paper's


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


# several items


def add(here: Path, name: str, item: str, published: str = PUBLISHED) -> None:
    file = here / name.replace("-", "/", 1)
    file.parent.mkdir(exist_ok=True)
    file.with_suffix(".toml").write_text(item)
    file.with_suffix(".published.toml").write_text(published)


SAME = (  # runs, with a column and labels of its own; it is said to be cheaper
    ITEM.replace("A small table", "A smaller table")
    .replace("quick = { cpu = 1 }", "quick = { cpu = 0.5 }")
    .replace('name = "MSE"\nof = "personal_mse"', 'name = "MB"\nof = "megabytes"')
    .replace('label = "FedAvg"', 'label = "Averaging"')
    .replace("seeds = [0, 1]", "seeds = [0, 1, 2]")
)
CLAIM = 'where = "Table 1"\n[[claim]]\nsays = "it is so"\nwhere = "Section 1"\nnot_testable = "no numbers"\n'


def test_items_with_the_same_settings_share_their_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(here, "fedsoft-table-2", SAME, CLAIM)
    assert main(["reproduce", "fedsoft-table-1", "fedsoft", "--quick", "--results", "kept"]) == 0
    said = capsys.readouterr().out
    assert "(6 of 6 runs)" in said
    assert "(1 of 6 runs, about " in said
    assert said.index("fedsoft-table-2: A smaller table") < said.index("fedsoft-table-1: A small table")
    assert "not testable: it is so (Section 1): no numbers" in said

    lines = [line for line in kept(load("fedsoft-table-1", here)).lines if line.column == "loss"]
    item = load("fedsoft-table-2", here)
    other = Results.load(place(Path("kept"), item, "quick"), item, "quick")
    assert missing(item, "quick", other) == []
    assert {line.method for line in other.lines} == {"Averaging", "Local"}
    known = {(line.settings, line.seed, line.round): line.value for line in other.lines}
    assert [known[line.settings, line.seed, line.round] for line in lines] == [line.value for line in lines]
    assert len(list(Path("runs/reproduce/runs").glob("*/seed-*/summary.json"))) == 6


def test_runs_of_another_item_are_read_and_not_played(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fedsoft-table-1", "--quick", "--results", "kept"]) == 0
    first = kept(load("fedsoft-table-1", here))
    first.makers[0]["commit"] = "the first"
    for file in Path("runs/reproduce/runs").glob("*/seed-*/made.json"):
        file.write_text(json.dumps(first.makers[0]))
    add(here, "fedsoft-table-2", SAME.replace("seeds = [0, 1, 2]", "seeds = [0, 1]"))
    capsys.readouterr()
    assert main(["reproduce", "--all", "--quick", "--results", "kept"]) == 0
    assert "runs" not in capsys.readouterr().out.replace("runs/", "")  # none was played
    item = load("fedsoft-table-2", here)
    other = Results.load(place(Path("kept"), item, "quick"), item, "quick")
    assert missing(item, "quick", other) == []
    assert [maker["commit"] for maker in other.makers] == ["the first"]


@pytest.mark.slow
def test_a_run_that_was_begun_under_another_label_starts_over(here: Path) -> None:
    """Its folder's experiment.toml would not be that of the run that goes on."""
    assert main(["reproduce", "fedsoft-table-1", "--quick"]) == 0
    for file in Path("runs/reproduce/runs").glob("*/seed-*/*.json"):
        file.unlink()  # as if it had been stopped
    add(here, "fedsoft-table-2", SAME)
    assert main(["reproduce", "fedsoft-table-2", "--quick"]) == 0


CLUSTERING = """
title = "Gaussians"
shows = "Three methods."
departures = []
kind = "clustering"
[cost]
quick = { cpu = 1 }
bounded = { cpu = 1 }
full = { cpu = 1 }
[size.quick]
seeds = [0, 1]
set = {}
[size.bounded]
seeds = [0]
set = {}
[size.full]
seeds = [0]
set = {}
[[column]]
name = "right"
of = "accuracy"
better = "higher"
[clustering]
task = "gaussians"
d = 5
k = 4
m0 = 2
points = 10
nearest = 30.0
"""


def test_clusterings_are_shared_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(here, "kfed-table-1", CLUSTERING, CLAIM)
    add(
        here,
        "kfed-table-2",
        CLUSTERING.replace('name = "right"\nof = "accuracy"', 'name = "megabytes"'),
        CLAIM,
    )
    assert main(["reproduce", "kfed", "--quick", "--results", "kept"]) == 0
    assert "(2 of 2 runs)" in capsys.readouterr().out
    for name, column in (("kfed-table-1", "right"), ("kfed-table-2", "megabytes")):
        item = load(name, here)
        results = Results.load(place(Path("kept"), item, "quick"), item, "quick")
        assert missing(item, "quick", results) == []
        assert {(line.column, line.seed) for line in results.lines} == {(column, 0), (column, 1)}


def test_a_clustering_whose_process_ends_is_said(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play_module, "_cluster", _die)
    add(here, "kfed-table-1", CLUSTERING, CLAIM)
    assert main(["reproduce", "kfed-table-1", "--quick"]) == LOST
    said = capfd.readouterr()
    assert "a process ended, perhaps for want of memory" in said.out + said.err
    assert "Traceback" not in said.out + said.err


def _die(settings: dict[str, object], seed: int) -> None:
    os._exit(9)


@pytest.mark.slow
def test_a_run_that_fails_hides_no_other_item(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = 'source = "mnist", distributions = "relabel"'
    absent = ITEM.replace('source = "regressions"', absent).replace('model = "linear"', 'model = "mlp"')
    add(here, "fedsoft-table-2", absent)
    assert main(["reproduce", "--all", "--quick", "--data-dir", "nothing-there"]) != 0
    said = capsys.readouterr()
    assert "4 of 8 runs failed" in said.err
    assert "mnist cannot be read" in said.err
    assert "fedsoft-table-1: A small table: ours" in said.out
    assert "fedsoft-table-2: A small table: ours" not in said.out


@pytest.mark.slow
def test_ctrl_c_stops_and_the_same_command_goes_on(
    here: Path, start_process: Callable[..., subprocess.Popen[str]]
) -> None:
    changed(here, "set = { rounds = 2 }", "set = { rounds = 300 }")
    script = f"""
import sys
from pathlib import Path
from coterie.cli.main import LOST, main
from coterie.reproduction import items
items.folder_of_items = lambda: Path({str(here)!r})
sys.exit(main(sys.argv[1:]))
"""
    command = [sys.executable, "-c", script, "reproduce", "fedsoft-table-1", "--quick"]
    process = start_process(command)
    while not list(Path("runs/reproduce/runs").glob("*/seed-0/rounds.jsonl")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "interrupted; the same command goes on" in err
    (begun,) = Path("runs/reproduce/runs").glob("*/seed-0/rounds.jsonl")
    played = begun.read_text()
    assert 0 < len(played.splitlines()) < 300
    out, err = start_process(command).communicate(timeout=300)
    assert "(4 of 4 runs)" in out, err
    assert begun.read_text().startswith(played)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["fedsoft-table-9"], "there is no item 'fedsoft-table-9'"),
        (["fedsoft-table-1", "--quick", "--bounded"], "one of them"),
        (["fedsoft-table-1", "--jobs", "0"], "--jobs"),
        (["fedsoft-table-1", "wecfl"], "there is no item 'wecfl'"),
        (["fedsoft-table-1", "--all"], "--all is given beside fedsoft-table-1"),
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
