"""`coterie show`, and what `coterie run` says of clusters at the end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import coterie
from coterie import toml
from coterie.cli.main import main
from coterie.runs.folder import RunFolder

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "data": {"source": "folder", "path": "clinics", "target": "outcome"},
    "model": {"name": "linear"},
    "training": {"learning_rate": 0.1, "epochs": 5},
    "method": [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "IFCA", "n_clusters": 2}}],
}
IDS = [f"clinic-{number}" for number in range(8)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two methods on eight clinics, half of which respond one way and half the other."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "clinics").mkdir()
    rng = np.random.default_rng(0)
    for number, name in enumerate(IDS):
        x = rng.normal(size=(30, 2))
        y = x @ [[3.0, -2.0], [-2.0, 3.0]][number % 2]
        lines = ["a,b,outcome", *(f"{a},{b},{c}" for (a, b), c in zip(x, y, strict=True))]
        (folder / "clinics" / f"{name}.csv").write_text("\n".join(lines))
    (folder / "small.toml").write_text(toml.write(SMALL))
    assert main(["run", str(folder / "small.toml"), "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def cells(text: str, first: str) -> list[str]:
    """Of the first line of a table that begins so."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_clusters_members_and_the_worst(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", str(run))
    found = coterie.load(run / "IFCA").clients
    assert text.index("FedAvg: 8 clients, 2 rounds") < text.index("IFCA: 8 clients, 2 rounds")
    assert "IFCA(n_clusters=2, " in text
    own = int(found.cluster.iloc[0])
    for cluster, members in ((own, IDS[::2]), (1 - own, IDS[1::2])):
        assert f"cluster {cluster}, 4 clients: {', '.join(members)}\n" in text
        points, loss = (found[found.cluster == cluster][name] for name in ("points", "loss"))
        assert cells(text, str(cluster))[1:3] == ["4", str(points.sum())]
        assert cells(text, str(cluster))[-1] == f"{loss.mean():.3f}"
    worst = text.partition("IFCA: 8")[2].partition("Served worst, by loss:")[2].splitlines()[3:]
    assert [line.split()[0] for line in worst] == found.loss.sort_values(ascending=False).index[:5].tolist()


def test_how_many_of_the_worst(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", str(run / "IFCA"), "--worst", "2")
    assert len(text.partition("Served worst")[2].strip().splitlines()) == 3 + 2
    assert "Served worst" not in printed(capsys, "show", str(run / "IFCA"), "--worst", "0")
    assert main(["show", str(run), "--worst", "-1"]) == 2
    assert capsys.readouterr().err == "coterie: --worst is -1; allowed is a whole number from 0\n"


def test_all_members(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "IFCA" / "result.safetensors"
    many = [f"{name} of a hospital with a rather long name" for name in IDS]
    _rename(path, many)
    text = printed(capsys, "show", str(run / "IFCA"))
    assert "and 3 more" in text
    text = " ".join(printed(capsys, "show", str(run / "IFCA"), "--all").split())
    assert ", ".join(many[::2]) in text
    assert ", ".join(many[1::2]) in text


def _rename(path: Path, ids: list[str]) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(path), path, {"ids": json.dumps(ids)})


def test_ids_are_not_taken_for_markup(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _rename(run / "IFCA" / "result.safetensors", ["[bold]a[/bold]", "[/x]", *IDS[2:]])
    text = printed(capsys, "show", str(run / "IFCA"), "--worst", "8")
    assert text.count("[bold]a[/bold]") == text.count("[/x]") == 2


def test_the_verdict_is_shown_where_there_is_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunFolder(run / "IFCA")
    assert "As well as one could wish." not in printed(capsys, "show", str(run))
    sentences = ["As well as one could wish.", "Or [better]."]
    verdict = {"sentences": sentences, "good": True, "findings": [], "numbers": {}}
    store.write_summary({**store.summary(), "verdict": verdict})
    assert "\nIFCA, good: As well as one could wish. Or [better].\n" in printed(capsys, "show", str(run))


def test_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    average, clustered = json.loads(printed(capsys, "show", str(run), "--json", "--worst", "1"))
    assert (average["label"], average["clusters"], average["finished"]) == ("FedAvg", [], True)
    members = sorted(one["members"] for one in clustered["clusters"])
    assert members == [IDS[::2], IDS[1::2]]
    found = coterie.load(run / "IFCA").clients
    assert clustered["worst"][0]["id"] == found.loss.idxmax()
    assert clustered["worst"][0]["loss"] == found.loss.max()


def test_what_is_not_finished_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("summary.json", "result.safetensors", "clients.csv", "importance.csv"):
        (run / "IFCA" / name).unlink()
    text = printed(capsys, "show", str(run))
    loss = RunFolder(run / "IFCA").records()[-1]["loss"]
    assert f"IFCA: not finished, 2 rounds so far, training loss {loss:.4g}" in text
    clusters = text.partition("IFCA: not finished")[2]
    assert cells(clusters, "0")[1] == cells(clusters, "1")[1] == "4"
    assert f"`coterie resume {run}` goes on" in text
    (_, clustered) = json.loads(printed(capsys, "show", str(run), "--json"))
    assert (clustered["finished"], clustered["worst"]) == (False, [])
    shutil.rmtree(run / "IFCA")
    text = printed(capsys, "show", str(run))
    assert "\nIFCA: not begun\n" in text
    assert "FedAvg: 8 clients" in text


@pytest.mark.parametrize("where", ["", "clinics", "nowhere"])
def test_a_folder_without_a_run(where: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(made / where)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    below = "" if where else f": {made / 'run'}"
    assert said.err == (
        f"coterie: {made / where} holds no run; allowed is a folder made by `coterie run`, or one of its methods'"
        f"{below}\n"
    )


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_broken_folder(content: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "IFCA" / "summary.json").write_text(content)
    assert main(["show", str(run)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert str(run / "IFCA") in said.err


def test_a_run_made_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    data = {name: (rng.normal(size=(20, 2)), rng.normal(size=20)) for name in IDS}
    coterie.run(lambda: nn.Linear(2, 1), data, coterie.FedEM(2), rounds=2, out=tmp_path / "run")
    text = printed(capsys, "show", str(tmp_path / "run"))
    assert f"\n{coterie.FedEM(2)!r}; made in Python; seed 0\n" in text
    assert cells(text, "cluster")[:4] == ["cluster", "clients", "points", "importance"]
    (tmp_path / "run" / "summary.json").unlink()
    text = printed(capsys, "show", str(tmp_path / "run"))
    assert "not finished" in text
    assert "coterie resume" not in text


# at the end of a run


def test_a_run_ends_with_its_clusters(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = printed(capsys, "run", str(made / "small.toml"), "--out", str(tmp_path / "again"))
    end = text.partition("MB sent")[2]
    first = int(coterie.load(tmp_path / "again" / "IFCA").clients.cluster.iloc[0])
    groups = {first: IDS[::2], 1 - first: IDS[1::2]}
    lines = [f"  cluster {number}, 4 clients: {', '.join(groups[number])}" for number in (0, 1)]
    assert "\n".join(["\n\nIFCA:", *lines, "\n"]) in end
    assert "FedAvg:" not in end
    assert f"The run is in {tmp_path / 'again'}; `coterie show {tmp_path / 'again'}`" in end


def test_many_clusters_make_no_wide_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {
        "source": "gaussians",
        "clients": 8,
        "clusters": 4,
        "mixture": "pure",
        "sizes": [6, 8],
        "dimension": 3,
    }
    four = {"name": "IFCA", "n_clusters": 4}
    file = {**SMALL, "data": {**data, "distribution_points": 20}, "method": [{"algorithm": four}]}
    (tmp_path / "four.toml").write_text(toml.write(file))
    out = str(tmp_path / "out")
    narrow = printed(capsys, "run", str(tmp_path / "four.toml"), "--out", out)
    wide = printed(capsys, "run", str(tmp_path / "four.toml"), "--out", out, "--again", "--wide")
    for command in ("show", "compare"):
        assert "accuracy (worst)" in printed(capsys, command, out)
        assert "accuracy on 4" in printed(capsys, command, out, "--wide")
    assert "accuracy (worst)" in narrow
    assert "accuracy on 4" not in narrow
    assert "accuracy on 4" in wide
    assert "accuracy (worst)" not in wide
