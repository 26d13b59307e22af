"""A run's folder: tensors written and read, checksums, checkpoints that cannot be read, rounds that are mended."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from coterie import CoterieError
from coterie.runs.folder import CHECKPOINTS, RunFolder
from coterie.runs.tensor_file import read_tensors, write_tensors

WRITTEN = {
    "flags": torch.tensor([True, False, True]),
    "keys": torch.arange(7),
    "rows": torch.rand(40, 2, 5),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.zeros(0, 3),
    "shared": torch.rand(1, 3).expand(4, -1),
}


def test_written_in_pieces(tmp_path: Path, little_memory: None) -> None:
    write_tensors(tmp_path / "x", WRITTEN, {"a": "b"})
    found, notes = read_tensors(tmp_path / "x")
    assert notes == {"a": "b"}
    assert found.keys() == WRITTEN.keys()
    assert all(torch.equal(found[n], WRITTEN[n]) for n in WRITTEN)


def test_the_order_of_tensors_changes_nothing(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", WRITTEN, {})
    write_tensors(tmp_path / "y", dict(reversed(WRITTEN.items())), {})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_no_byte_can_be_changed_unseen(tmp_path: Path) -> None:
    """Every byte in turn: the file is refused, or what is read is what was written."""
    written = {"rows": torch.rand(2, 3), "keys": torch.arange(3)}
    path = tmp_path / "x"
    write_tensors(path, written, {"numbers": "12"})
    good, refused = path.read_bytes(), 0
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x11]) + good[at + 1 :])
        try:
            found, notes = read_tensors(path)
        except CoterieError:
            refused += 1
            continue
        assert found.keys() == written.keys()
        assert all(torch.equal(found[n], written[n]) for n in written)
        assert notes["numbers"] == "12"
    assert refused > len(good) - 20  # but for the name of the checksum itself


def folder(tmp_path: Path) -> RunFolder:
    store = RunFolder(tmp_path / "run")
    store.create("rounds = 3\n")
    return store


def test_the_checkpoint_before_is_gone_back_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = folder(tmp_path)
    for number in (1, 2):
        store.write_checkpoint({"x": torch.full((4,), float(number))}, {"round": number})
    newest = store.folder / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    with caplog.at_level(logging.WARNING):
        saved = store.checkpoint()
    assert saved is not None
    assert saved[1] == {"round": 1}
    assert (
        "is damaged: it is not as it was written; the run goes back to the checkpoint before" in caplog.text
    )
    (store.folder / "checkpoint.previous.safetensors").unlink()
    with pytest.raises(CoterieError, match=r"checkpoint\.safetensors is damaged"):
        store.checkpoint()


def test_two_damaged_checkpoints_are_named_with_what_to_do(tmp_path: Path) -> None:
    store = folder(tmp_path)
    for number in (1, 2):
        store.write_checkpoint({"x": torch.full((4,), float(number))}, {"round": number})
    for name in CHECKPOINTS:
        (store.folder / name).write_bytes((store.folder / name).read_bytes()[:-1] + b"!")
    with pytest.raises(CoterieError) as refused:
        store.checkpoint()
    assert all(f"{name} is damaged" in str(refused.value) for name in CHECKPOINTS)
    assert "start over, with `coterie run ... --again`" in str(refused.value)


def test_a_checkpoint_of_another_run_or_of_other_data_is_refused(tmp_path: Path) -> None:
    store = folder(tmp_path)
    store.data = "as it was"
    store.write_checkpoint({"x": torch.ones(4)}, {"round": 1})
    assert store.checkpoint() is not None
    store.data = "changed"
    with pytest.raises(CoterieError, match="the data of the clients is not what it was"):
        store.checkpoint()
    store.data = ""  # not known
    assert store.checkpoint() is not None
    store.experiment.write_text("rounds = 4\n")
    with pytest.raises(CoterieError, match="is of a run with other settings"):
        store.checkpoint()


def three_rounds(tmp_path: Path) -> RunFolder:
    store = folder(tmp_path)
    for number in range(3):
        record = {"round": number, "stage": 0, "sent": 5, "seconds": 0.1}
        store.write_round(number, record, {"importance": torch.rand(5, 2)})
    return store


def test_a_broken_line_is_taken_from_its_rounds_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = three_rounds(tmp_path)
    lines = (store.folder / "rounds.jsonl").read_bytes().splitlines()
    (store.folder / "rounds.jsonl").write_bytes(b"\n".join([lines[0], b'{"rou\xff', lines[2]]) + b"\n")
    records = store.keep_records(3)
    assert [record["round"] for record in records] == [0, 1, 2]
    assert f"line 2 of {store.folder / 'rounds.jsonl'} is not as written" in caplog.text
    assert "is taken instead" in caplog.text
    assert [record["round"] for record in store.records()] == [0, 1, 2]
    (store.folder / "rounds.jsonl").unlink()
    assert [record["round"] for record in store.keep_records(3)] == [0, 1, 2]


def test_rounds_that_are_nowhere_are_said(tmp_path: Path) -> None:
    store = three_rounds(tmp_path)
    (store.folder / "rounds.jsonl").write_text("nothing\n")
    (store.folder / "clients" / "000001.safetensors").unlink()
    with pytest.raises(CoterieError, match=r"has 2 of the 3 rounds of the checkpoint.*--again"):
        store.keep_records(3)


def test_links_are_not_written_through_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "000001.safetensors").write_text("mine")
    (tmp_path / "letter").write_text("mine")
    store = folder(tmp_path)
    (store.folder / "checkpoint.next.safetensors.part").symlink_to(tmp_path / "letter")
    (store.folder / "rounds.jsonl").symlink_to(tmp_path / "letter")
    store.write_checkpoint({"x": torch.ones(4)}, {"round": 1})
    with pytest.raises(CoterieError, match="cannot write"):
        store.append({"round": 0})
    (store.folder / "clients").rmdir()
    (store.folder / "clients").symlink_to(precious)
    store.clear()
    assert (tmp_path / "letter").read_text() == "mine"
    assert (precious / "000001.safetensors").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_a_linked_folder_is_not_written_through(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "clients").symlink_to(tmp_path / "elsewhere")
    if resume:
        (tmp_path / "run" / "experiment.toml").write_text("x = 1\n")
    with pytest.raises(CoterieError, match="is a link"):
        RunFolder(tmp_path / "run").open("x = 1\n", resume)
    assert not list((tmp_path / "elsewhere").iterdir())
