"""Tensors, written and read."""

from __future__ import annotations

from pathlib import Path

import torch

from coterie.runs.folder import pieces, read_tensors


def test_written_in_pieces(tmp_path: Path, little_memory: None) -> None:
    written = {
        "flags": torch.tensor([True, False, True]),
        "keys": torch.arange(7),
        "rows": torch.rand(40, 2, 5),
        "number": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "shared": torch.rand(1, 3).expand(4, -1),
    }
    assert len(list(pieces(written, {"a": "b"}))) > 10
    (tmp_path / "x").write_bytes(b"".join(pieces(written, {"a": "b"})))
    found, notes = read_tensors(tmp_path / "x")
    assert notes == {"a": "b"}
    assert found.keys() == written.keys()
    assert all(torch.equal(found[n], written[n]) for n in written)
