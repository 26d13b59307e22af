"""One writer: a folder is locked by the process that writes it, and free again when that process ends, however it ends.

The lock is one of the operating system on the folder itself, so that nothing is left behind.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import CoterieError
from coterie.files import make_folder

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

_held: Counter[tuple[int, int]] = Counter()  # (device, inode) of the folders that this process has locked


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes here meanwhile; a process may lock what it has locked already."""
    if fcntl is None:
        yield
        return
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    about = os.fstat(handle)
    which = about.st_dev, about.st_ino
    try:
        if not _held[which]:
            _lock(handle, folder)
        _held[which] += 1
        try:
            yield
        finally:
            _held[which] -= 1
    finally:
        os.close(handle)  # which releases it


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as busy:
        raise CoterieError(
            f"{folder} is being written by {_holder(handle)}; wait until it is done, or stop it"
        ) from busy
    except OSError:
        return  # a disk that knows no locks


def _holder(handle: int) -> str:
    """Linux lists its locks: '1: FLOCK ADVISORY WRITE 4242 08:01:12345 0 EOF'."""
    inode = str(os.fstat(handle).st_ino)
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        locks = ""
    for words in map(str.split, locks.splitlines()):
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
            return f"process {words[4]}"
    return "another process"
