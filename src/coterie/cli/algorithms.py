"""`coterie algorithms`: what there is, with all settings, read from the source without importing torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from coterie.cli.console import open_console, say, show_table
from coterie.experiment.algorithm_docs import AlgorithmDocs, algorithm_docs
from coterie.experiment.field_docs import REQUIRED
from coterie.experiment.schema import Section, choose

_ABSENT = "–"


def algorithms(name: Annotated[str | None, typer.Argument(help="One of them, in full.")] = None) -> int:
    """The algorithms, with their settings; or all about one."""
    known, console = algorithm_docs(), open_console()
    if name is None:
        show_table(console, listed(known.values()))
    else:
        say(console, in_full(known[choose(Section("", {"algorithm": name}), "algorithm", known)]))
    return 0


def listed(known: Iterable[AlgorithmDocs]) -> Table:
    """A line for each: what it is, where it runs, and its settings."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for heading in ("algorithm", "what it is", "runs", "settings (defaults)"):
        table.add_column(heading, overflow="fold")
    for one in known:
        settings = [s.name if s.default == REQUIRED else f"{s.name}={s.default}" for s in one.settings]
        cells = (one.title, one.text.partition("\n")[0], _where(one), ", ".join(settings) or _ABSENT)
        table.add_row(*map(escape, cells))
    return table


def in_full(one: AlgorithmDocs) -> str:
    settings = "\n".join(["settings, with their defaults:", *_meanings(one)])
    parts = (
        f"{one.title} (runs at: {_where(one)})",
        one.text,
        settings if one.settings else "settings: none",
        one.bibtex,
    )
    return "\n\n".join(part for part in parts if part)


def _where(one: AlgorithmDocs) -> str:
    return "server" if one.needs_server else "server, graph"


def _meanings(one: AlgorithmDocs) -> list[str]:
    """A line for each setting: its name, its default, what it means, and what it may be."""
    name = max((len(s.name) for s in one.settings), default=0)
    default = max((len(s.default) for s in one.settings), default=0)
    return [
        f"  {s.name:{name}}  {s.default:{default}}  {s.meaning or _ABSENT} ({s.type})" for s in one.settings
    ]
