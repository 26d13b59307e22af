"""Files written whole or not at all, and JSON with a checksum that is looked at when it is read."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from coterie.errors import CoterieError

CHECKSUM = "checksum"  # the key, or the note, that has it
PUT_BACK = "put it back as it was, or make the run again"


@contextmanager
def saying(what: str) -> Iterator[None]:
    """What the operating system refuses is said in one sentence."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise CoterieError(f"cannot {what}: {reason}; what was written before is intact") from problem


def make_folder(folder: Path) -> None:
    with saying(f"make the folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)


def refuse_link(folder: Path) -> None:
    """What a run writes goes into its own folder, not where somebody's link leads."""
    if folder.is_symlink():
        raise CoterieError(f"{folder} is a link; a run writes through none: remove it")


def is_folder_name(name: str) -> bool:
    """Can it be the name of a folder in another, on any disk? Never a path."""
    return re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9 ._+-]{0,78}[A-Za-z0-9_+-])?", name) is not None


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing."""
    with whole(path) as file:
        file.write(content)


def part_of(path: Path) -> Path:
    """What a file is called until all of it is written."""
    return path.with_name(path.name + ".part")


@contextmanager
def whole(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """A file that is there when all of it is written: a temporary one, synced if asked, then renamed."""
    temporary = part_of(path)
    with saying(f"write {path}"):
        try:
            temporary.unlink(missing_ok=True)  # what a kill left; a link is removed, not written through
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if sync:
                _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def open_own(path: Path, mode: Literal["a", "w"]) -> TextIO:
    """Opened for writing, but not through a link that somebody put there."""
    nofollow = getattr(os, "O_NOFOLLOW", 0)
    return open(
        path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | nofollow, 0o666)
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    write_whole(path, (json.dumps(finite(value), indent=indent) + "\n").encode())


def finite(value: Any) -> Any:
    """The same with None for numbers that are not finite, as JSON has no nan and no infinity."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_checksum(table: dict[str, Any]) -> dict[str, Any]:
    return {**table, CHECKSUM: checksum(table)}


def without_checksum(table: dict[str, Any]) -> dict[str, Any] | None:
    """None: it is not as it was written. Older versions wrote no checksum."""
    rest = {key: value for key, value in table.items() if key != CHECKSUM}
    return rest if CHECKSUM not in table or table[CHECKSUM] == checksum(rest) else None


def read_kept(path: Path) -> dict[str, Any]:
    """A JSON file that was written with a checksum."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CoterieError(f"{path} cannot be read ({problem.strerror})") from problem
    except (ValueError, RecursionError) as problem:
        raise CoterieError(f"{path} is damaged: it is no JSON; {PUT_BACK}") from problem
    kept = without_checksum(found) if isinstance(found, dict) else None
    if kept is None:
        raise CoterieError(f"{path} is damaged: it is not as it was written; {PUT_BACK}")
    return kept


def checksum(table: dict[str, Any]) -> str:
    content = json.dumps(finite(table), sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
