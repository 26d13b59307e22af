"""Where commands print; of several processes the first speaks for all."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.table import Table

from coterie.backends.torchrun import is_first

NARROW = 40  # columns; in a wider terminal tables fit, or their ids are broken
BETWEEN = 3  # spaces from one column to the next
NAMES = ("method", "name", "algorithm")  # headings of a first column that needs none
WIDE = 200  # columns, where there is no terminal to fit into


class Terminal(Console):
    """Goes on in silence when nobody reads any more, as in `coterie run ... | head -1`."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def open_console(wide: int = WIDE) -> Console:
    console = Terminal(quiet=not is_first())
    return console if console.is_terminal else Terminal(width=wide, quiet=not is_first())


def say(console: Console, sentence: str) -> None:
    """A sentence as it is: names of files are neither broken nor coloured."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def show_table(console: Console, table: Table) -> None:
    """A table; where it would be columns of single letters, or words would be cut, a line for each of its cells."""
    columns = [(str(column.header), list(map(str, column.cells))) for column in table.columns]
    whole = sum(BETWEEN + max(map(len, [*head.split(), *cells]), default=0) for head, cells in columns)
    words = sum(
        BETWEEN + max((len(word) for text in (head, *cells) for word in text.split()), default=0)
        for head, cells in columns
    )
    broken = words > console.width or console.width < NARROW or table.row_count == 1
    if whole <= console.width or not broken:
        console.print(table)
        return
    (first, names), *rest = columns
    for number, name in enumerate(names):
        say(console, str(name) if first in NAMES else f"{first} {name}")
        for head, cells in rest:
            say(console, f"  {head}: {cells[number]}")
