"""How a data set may lie in the data folder: which files, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from coterie.data.sources.source import Source

Wanted = tuple[Path, ...]  # one file, or folder, under any of these names


class Layout(Protocol):
    def wanted(self, folder: Path) -> list[Wanted]:
        """What must be there."""

    def read(self, files: list[Path]) -> Source:
        """What was found for each, as a source that has no name yet."""


def found(layout: Layout, folder: Path) -> tuple[list[Path], list[Path]]:
    """What is there, and the first name of each that is not."""
    there: list[Path] = []
    missing: list[Path] = []
    for names in layout.wanted(folder):
        here = [path for path in names if path.exists()]
        (there if here else missing).append(here[0] if here else names[0])
    return there, missing
