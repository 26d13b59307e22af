"""`coterie cluster`: devices in files, labels in a file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.cli.main import main
from tests.builders import apart_by, devices


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three devices in three kinds of files."""
    points, _ = devices()
    names = list("abcde")
    (tmp_path / "in").mkdir()
    np.savez(
        tmp_path / "in" / "one.npz", x=points[0][:, ::-1], y=np.zeros(40)
    )  # in the order of the first table
    table = pd.DataFrame(points[1], columns=names).assign(who="somebody")
    table[["who", *names]].to_csv(tmp_path / "in" / "two.csv", index=False)
    pd.DataFrame(points[2], columns=names)[names[::-1]].to_parquet(tmp_path / "in" / "three.parquet")
    return tmp_path / "in"


def _cluster(*arguments: object) -> int:
    return main(["cluster", *map(str, arguments)])


@pytest.mark.parametrize(
    "asked", [("--clusters", 6, "--local-clusters", 2, "--n-init", 3), ("--clusters", 6)]
)
def test_the_command(folder: Path, asked: tuple[object, ...], capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "new" / "labels.parquet"
    assert _cluster(folder, *asked, "--out", out) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = [line.split() for line in said.out.splitlines()]
    assert ["3", "120", "5", "6", "6", "0.2"] in lines
    measures = next(
        line for line in lines if "of" in line and line[0] == "1"
    )  # m0: each cluster is on one device
    assert measures[1:4] == ["3", "of", "15"]  # a pair on each device
    legend = " ".join(said.out.split())
    for word in ("m0: ", "active pairs: ", "separation: ", "cost: ", "see docs/how-to/k-fed.md"):
        assert word in legend
    found = pd.read_parquet(out)
    assert list(found.columns) == ["device", "row", "label"]
    truth = {"one": 0, "two": 2, "three": 4}
    expected = found.device.map(truth) + found.row // 20
    assert adjusted_rand_score(expected, found.label) == 1
    assert list(found.groupby("device").size()) == [40, 40, 40]


def test_clusters_that_overlap_are_warned_of_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for z, points in enumerate(apart_by(3.0)[0]):
        np.savez(tmp_path / "in" / f"{z}.npz", x=points)
    asked = ("--clusters", 6, "--local-clusters", 2, "--out", tmp_path / "labels.csv")
    assert _cluster(tmp_path / "in", *asked) == 0
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert re.search(r"the nearest two of the 6 clusters found are [23]\.\d standard deviations apart", line)
    assert re.search(r"[23]\.\d\d? σ", said.out)


def test_the_command_takes_ten_initialisations(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    x = np.random.default_rng(0).normal(size=(60, 3))  # nothing to find, so that the initialisation matters
    np.savez(tmp_path / "in" / "one.npz", x=x)
    files = [tmp_path / f"{n}.csv" for n in range(3)]
    for out, more in zip(files, [(), ("--n-init", 10), ("--n-init", 1)], strict=True):
        assert _cluster(tmp_path / "in", "--clusters", 6, "--seed", 1, *more, "--out", out) == 0
    default, ten, one = (file.read_text() for file in files)
    assert default == ten
    assert default != one


def test_the_command_writes_csv_and_the_same_again(folder: Path) -> None:
    outs = [folder.parent / f"{n}.csv" for n in range(2)]
    for out in outs:
        assert _cluster(folder, "--clusters", 6, "--local-clusters", 2, "--seed", 4, "--out", out) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert outs[0].read_text().startswith("device,row,label\none,0,")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("nowhere", "--out", "l.csv"), "is not a folder"),
        (("empty", "--out", "l.csv"), "has no .npz, .csv or .parquet file"),
        (("in", "--out", "l.txt"), "ends in .parquet or .csv"),
        (("in", "--out", "in/l.csv"), "in the folder of the devices"),
        (("in",), "--out"),
        (
            ("in", "--out", "l.csv", "--clusters", "x"),
            "--clusters is 'x'; allowed is a whole number from 1, or auto",
        ),
        (("in", "--out", "l.csv", "--local-clusters", "0"), "--local-clusters is '0'"),
        (("in", "--out", "l.csv", "--n-init", "0"), "--n-init is 0"),
        (("in", "--out", "l.csv", "--seed", "-1"), "--seed is -1"),
        (("in", "--out", "l.csv", "--clusters", "7", "--local-clusters", "2"), "have 6 local means in all"),
        (("twice", "--out", "l.csv"), "two files named a"),
        (("nan", "--out", "l.csv"), "point 1: a number is missing"),
        (("words", "--out", "l.csv"), "no column of numbers"),
        (("widths", "--out", "l.csv"), "has 2 features and a has 1"),
        (("columns", "--out", "l.csv"), "all devices need the same"),
        (("torn", "--out", "l.csv"), "could not be read"),
        (("none", "--out", "l.csv"), "has no points"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path,
    asked: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder.parent)
    _make_mistakes()
    assert _cluster(*asked) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not Path("l.csv").exists()


def _make_mistakes() -> None:
    files = {
        "twice/a.csv": "p\n1\n",
        "nan/a.csv": "p,q\n1,2\n,3\n",
        "words/a.csv": "p\nq\n",
        "columns/a.csv": "p\n1\n",
        "columns/b.csv": "q\n1\n",
        "torn/a.npz": "PK",
        "none/a.csv": "p,q\n",
        "widths/a.csv": "p\n1\n",
    }
    Path("empty").mkdir()
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    np.savez("twice/a.npz", x=np.ones(3))
    np.savez("widths/b.npz", x=np.ones((3, 2)))
