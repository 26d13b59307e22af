"""Where commands print; of several processes the first speaks for all."""

from __future__ import annotations

from rich.console import Console

from coterie.backends.torchrun import is_first

WIDE = 200  # columns, where there is no terminal to fit into


def open_console(wide: int = WIDE) -> Console:
    console = Console(quiet=not is_first())
    return console if console.is_terminal else Console(width=wide, quiet=not is_first())


def say(console: Console, sentence: str) -> None:
    """A sentence as it is: names of files are neither broken nor coloured."""
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
