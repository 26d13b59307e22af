"""Where commands print; of several processes the first speaks for all."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from coterie.backends.torchrun import is_first

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
