"""Tables with a row for each client, which may be more than memory holds.

A table that would take more than a share of memory lies in a file that is mapped into it: an ordinary tensor, whose
pages the system brings in and puts away. Whoever goes through one does so block by block, and after each block its
pages are put away again. The file has no name: it is gone with the tensor, however the program ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from weakref import WeakSet

import torch
from torch import Tensor

from coterie.errors import CoterieError, require
from coterie.memory import in_words, machine

SHARE = 16  # one table in memory, or one block of a larger one, takes at most one part in so many of it
NEAR = 4 * 2**20  # bytes of a block that is only read, on a CPU
_mapped: WeakSet[mmap.mmap] = WeakSet()


@cache
def memory(device: torch.device) -> int:
    """Bytes of a device that this process may have; of the host, unless COTERIE_MEMORY says how many GiB to use."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        return int(total * torch.cuda.get_per_process_memory_fraction(device.index))
    said = os.environ.get("COTERIE_MEMORY")
    if said is not None:
        known = said.replace(".", "", 1).isdigit() and float(said) > 0
        require(known, "COTERIE_MEMORY", said, "a number of GiB above 0")
        return int(float(said) * 2**30)
    return machine()


def budget(device: torch.device) -> int:
    """Bytes of one table, or of one block."""
    return memory(device) // SHARE


def table(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    zero: bool = False,  # is there 0 where nothing is written? On disk there always is
) -> Tensor:
    """A new table, on the device or, where it is too large for the host's memory, on disk."""
    size = torch.Size(shape)
    if device.type != "cpu" or size.numel() * dtype.itemsize <= budget(device):
        return (torch.zeros if zero else torch.empty)(size, dtype=dtype, device=device)
    return torch.frombuffer(_file(size.numel() * dtype.itemsize), dtype=dtype).view(size)


def home(
    row: torch.Size, rows: int, dtype: torch.dtype, device: torch.device, besides: int = 0
) -> torch.device:
    """Where a table that clients keep between rounds lies, besides so many bytes of others.

    A GPU has room for two of the largest, or more of smaller ones; others lie on the host.
    """
    size = rows * row.numel() * dtype.itemsize
    fits = size <= budget(device) and besides + size <= 2 * budget(device)
    return device if device.type == "cpu" or fits else torch.device("cpu")


def _file(size: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as file:
            _reserve(file.fileno(), size)
            mapped = mmap.mmap(file.fileno(), size)
    except (OSError, OverflowError) as problem:
        raise CoterieError(
            f"a table of {in_words(size)} has no room in {tempfile.gettempdir()}; TMPDIR names another folder, and "
            "COTERIE_MEMORY the GiB of memory that may be used"
        ) from problem
    _mapped.add(mapped)
    return mapped


def _reserve(file: int, size: int) -> None:
    """Take the room now: where a disk is full, writing to a mapped file would end the process without a word."""
    if shutil.disk_usage(tempfile.gettempdir()).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.truncate(file, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as problem:
            if problem.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a disk that cannot reserve
                raise


def put_away() -> None:
    """Let go of the memory of all tables on disk; what is in them stays."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for one in list(_mapped):
            one.madvise(mmap.MADV_DONTNEED)


def blocks(rows: int, row_bytes: int, device: torch.device, at_once: int | None = None) -> Iterator[slice]:
    """Rows a block at a time; as a rule all of them are one."""
    some = max(1, (at_once or budget(device)) // max(1, row_bytes))
    passed = 0
    for begin in range(0, rows, some):
        yield slice(begin, min(rows, begin + some))
        passed += some * row_bytes
        if passed > budget(device):
            put_away()
            passed = 0


def row_blocks(values: Tensor) -> Iterator[slice]:
    """Of a tensor that is only read, so few rows at a time that they stay near the processor."""
    row_bytes = values[:1].numel() * values.element_size()
    return blocks(len(values), row_bytes, values.device, NEAR if values.device.type == "cpu" else None)


def take(values: Tensor, at: Tensor) -> Tensor:
    """values[at], which may have to lie on disk too."""
    row_bytes = values[:1].numel() * values.element_size()
    if len(at) * row_bytes <= budget(values.device):
        return values[at]
    taken = table((len(at), *values.shape[1:]), values.dtype, values.device)
    for some in row_blocks(taken):
        taken[some] = values[at[some]]
    return taken


def mean(values: Tensor) -> Tensor:
    """values.mean(0)."""
    total = torch.zeros_like(values[0])
    for some in row_blocks(values):
        total += values[some].sum(0)
    return total / len(values)
