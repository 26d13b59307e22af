"""Data that cannot be meant is refused by name; nobody vanishes, and nothing is guessed from one client."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from coterie import CoterieError, toml
from coterie.cli.main import main
from coterie.data import from_arrays, from_folder, from_table

X = np.arange(12.0).reshape(6, 2)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_one_client_with_floats_makes_no_regression_of_all():
    clients = {"a": (X, LABELS), "b": (X, LABELS.astype(float))}
    with pytest.raises(
        CoterieError, match=r"client 'b' has targets of type float64 and client 'a' has whole numbers"
    ):
        from_arrays(clients)
    assert from_arrays(clients, task="classification").task == "classification"
    assert from_arrays(clients, task="regression").task == "regression"


def test_one_label_of_a_million():
    with pytest.raises(
        CoterieError,
        match=r"client 'b', point 1: label 1000000, but there are 4 labels in all.*1000001 outputs",
    ):
        from_arrays({"a": (X, LABELS), "b": (X, [0, 10**6, 1, 2, 0, 1])})
    assert from_arrays([(X, [0, 99, 1, 2, 0, 1])]).n_outputs == 100


def test_a_label_beyond_what_can_be_counted():
    labels = np.array([0, 1, 2**64 - 1, 0, 1, 1], np.uint64)
    with pytest.raises(
        CoterieError, match="client '0', point 2: label 18446744073709551615; labels are whole"
    ):
        from_arrays([(X, labels)])


@pytest.mark.parametrize("target", ["client", "split"])
def test_a_column_that_is_two_things_at_once(tmp_path: Path, target: str):
    (tmp_path / "t.csv").write_text("client,split,y,a\n1,train,0,1\n1,test,1,2\n2,train,0,3\n2,test,1,4\n")
    with pytest.raises(CoterieError, match=f"the column '{target}' is to be two things at once"):
        from_table(tmp_path / "t.csv", target=target)


def test_a_link_to_nowhere_or_a_pipe_is_no_client_that_vanishes(tmp_path: Path):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=X, y=LABELS)
    assert len(from_folder(tmp_path)) == 2
    (tmp_path / "c.npz").symlink_to(tmp_path / "nowhere.npz")
    with pytest.raises(CoterieError, match=r"c.npz is a link to nowhere; remove it"):
        from_folder(tmp_path)
    (tmp_path / "c.npz").unlink()
    os.mkfifo(tmp_path / "d.csv")
    with pytest.raises(CoterieError, match=r"d.csv is not a plain file"):
        from_folder(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("command", ["run", "cluster"])
def test_floats_that_are_wider_than_ours(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = np.full((6, 2), 1e300, np.longdouble) * np.longdouble(1e300)
    if not np.isfinite(huge).all():
        pytest.skip("long doubles are no wider here")
    (tmp_path / "devices").mkdir()
    np.savez(tmp_path / "devices" / "a.npz", x=huge, y=LABELS)
    data = {"source": "folder", "path": str(tmp_path / "devices")}
    experiment = {"rounds": 1, "data": data, "model": "linear", "algorithm": {"name": "FedAvg"}}
    (tmp_path / "e.toml").write_text(toml.write(experiment))
    what = [str(tmp_path / ("e.toml" if command == "run" else "devices"))]
    assert main([command, *what, "--out", str(tmp_path / "out.csv")]) == 2
    assert "a.npz, point 0: " in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_a_number_that_would_become_infinite_is_refused_as_it_is(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1e300 is finite; a run computes in float32, where it is not, and k-FED adds up squares."""
    folder = tmp_path / "devices"
    folder.mkdir()
    for name in "abc":
        x, y = np.random.default_rng(0).normal(size=(6, 2)), np.arange(6) % 2
        x[4, 1] = 1e300 if name == "b" else 1.0
        if kind == "npz":
            np.savez(folder / f"{name}.npz", x=x, y=y)
        else:
            lines = [f"{p},{q},{label}" for (p, q), label in zip(x, y, strict=True)]
            (folder / f"{name}.csv").write_text("\n".join(["p,q,y", *lines]))
    experiment = {"rounds": 1, "data": {"source": "folder", "path": str(folder)}, "model": "linear"}
    (tmp_path / "e.toml").write_text(toml.write({**experiment, "algorithm": {"name": "FedAvg"}}))
    for command in (
        ["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "r")],
        ["cluster", str(folder), "--clusters", "2", "--out", str(tmp_path / "l.csv")],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "'b'" in said or f"b.{kind}" in said
        assert "1e+300" in said
        assert "is too large" in said
        assert "inf" not in said
