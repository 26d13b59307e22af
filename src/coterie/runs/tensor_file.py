"""Tensors in a safetensors file, with a checksum that is looked at when they are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coterie.engine.storage import row_blocks
from coterie.errors import CoterieError
from coterie.files import CHECKSUM, whole

KINDS = {  # as safetensors names them
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
UNKNOWN = "0" * 32  # in its place while it is computed


def write_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str], sync: bool = True) -> None:
    """Whole or not at all; what is in it may be more than memory holds."""
    order = sorted(tensors, key=lambda n: (-tensors[n].element_size(), n))  # each at a multiple of its size
    header = _header({name: tensors[name] for name in order}, {CHECKSUM: UNKNOWN, **notes})
    digest = hashlib.blake2b(header, digest_size=16)
    with whole(path, sync) as file:
        file.write(header)
        for piece in _pieces(tensors[name] for name in order):
            digest.update(piece)
            file.write(piece)
        file.seek(header.index(UNKNOWN.encode()))
        file.write(digest.hexdigest().encode())


def _header(tensors: dict[str, Tensor], notes: dict[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": notes}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        where = {"shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = {"dtype": KINDS[tensor.dtype], **where}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _pieces(tensors: Iterator[Tensor]) -> Iterator[memoryview]:
    for tensor in tensors:
        flat = tensor.reshape(1, -1) if tensor.dim() == 0 else tensor
        for some in row_blocks(flat):
            yield flat[some].contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data


def read_notes(path: Path) -> dict[str, str]:
    """The notes alone; a file that is not as it was written is refused, whatever of it has changed."""
    return _read(path, lambda _: False)[1]


def read_tensors(path: Path, without: Sequence[str] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, all or without some, and the notes; a file that is not as it was written is refused."""
    return _read(path, lambda name: name not in without)


def _read(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
        if CHECKSUM in notes:  # runs of older versions have none
            with path.open("rb") as opened:
                _check(path, opened, notes.pop(CHECKSUM))
    except (OSError, SafetensorError, UnicodeDecodeError) as problem:
        raise CoterieError(f"{path} cannot be read ({problem})") from problem
    return tensors, notes


def _check(path: Path, file: BinaryIO, expected: str) -> None:
    start = file.read(8)
    text = file.read(int.from_bytes(start, "little"))
    digest = hashlib.blake2b(start + text.replace(expected.encode(), UNKNOWN.encode(), 1), digest_size=16)
    while piece := file.read(1 << 22):
        digest.update(piece)
    if digest.hexdigest() != expected:
        raise CoterieError(f"{path} is damaged: it is not as it was written")
