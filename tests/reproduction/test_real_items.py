"""One real item of each paper in its quick size, by the command, without any data but what is installed."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.reproduction.items import folder_of_items, load
from coterie.reproduction.play import missing
from coterie.reproduction.points import HEADS
from coterie.reproduction.results import Results

ITEMS = ("fedsoft-table-3", "kfed-table-1", "wecfl-figure-4", "fedspd-table-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_a_real_item(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nothing").mkdir()
    command = ["reproduce", name, "--quick", "--jobs", "2", "--results", "kept", "--data-dir", "nothing"]
    assert main(command) == 0
    said = capsys.readouterr().out

    item = load(name, folder_of_items())
    for (_, method, column), (mean, _) in item.values().items():
        number = f"{mean:.3f}" if abs(mean) < 10 else f"{mean:.1f}"
        assert re.search(rf"^ {re.escape(method)} .*\d \({re.escape(number)}", said, re.MULTILINE), (
            method,
            column,
        )
    for claim in item.claims():
        assert re.search(rf"^(held|not held|not testable): {re.escape(claim.says)}", said, re.MULTILINE)
    for departure in item.table["departures"]:
        assert f"Departure: {departure}" in said

    paper, rest = name.split("-", 1)
    saved = Path("kept", paper, f"{rest}-quick.csv")
    with saved.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["variant"] for line in lines} == set(item.variants)
    assert {line["column"] for line in lines} == {column.name for column in item.columns}
    (maker,) = json.loads(saved.with_suffix(".json").read_text())
    assert maker["commit"]
    assert saved.with_suffix(".png").is_file() == ("figure" in name)

    before = saved.read_bytes()
    shutil.rmtree("runs")
    assert main(command) == 0
    again = capsys.readouterr().out
    assert "done" not in again
    assert again in said  # the same tables and claims
    assert saved.read_bytes() == before
    assert not Path("runs").exists()

    results = Results.load(saved.with_suffix(""), item, "quick")
    assert missing(item, "quick", results) == []
    if item.figure in HEADS:  # what it draws is kept too, and missed where it is not there
        results.points_path.unlink()
        assert len(missing(item, "quick", Results.load(saved.with_suffix(""), item, "quick"))) == 2
