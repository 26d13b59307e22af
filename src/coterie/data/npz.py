"""Arrays in a .npz file, which may be anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import CoterieError


def read_npz(path: Path, needed: str, only: Sequence[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """All arrays, or those of some names; nothing is unpickled. `needed` says what the file should have been."""
    try:
        with np.load(path, allow_pickle=False) as found:
            names = [name for name in found.files if only is None or name in only]
            return {name: found[name] for name in names}
    except Exception as problem:  # numpy, zipfile and zlib raise of a broken archive whatever comes
        raise CoterieError(f"{path} could not be read because {_reason(problem)}; {needed}") from problem


def _reason(problem: Exception) -> str:
    said = str(problem)
    if isinstance(problem, MemoryError):
        return "there is not enough memory for what its header claims"
    if isinstance(problem, OSError) and problem.strerror:
        return f"the system says: {problem.strerror}"
    if "Object arrays" in said:
        return "it holds Python objects"
    if "encrypted" in said:
        return "it is encrypted"
    return "it is not a whole .npz archive"
