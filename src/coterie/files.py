"""Files written whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError

Piece = bytes | memoryview


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


def write_whole(path: Path, content: bytes | Iterable[Piece]) -> None:
    """All of it or nothing: to a temporary file, synced, renamed. Content may come in pieces."""
    with saying(f"write {path}"):
        temporary = path.with_name(path.name + ".part")
        try:
            with temporary.open("wb") as file:
                for piece in (content,) if isinstance(content, bytes) else content:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


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
