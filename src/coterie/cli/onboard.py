"""`coterie onboard`: a client that a finished run never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.console import open_console, say, show_table
from coterie.cli.run import Trust, refuse_from_python
from coterie.errors import CoterieError


def onboard(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[Path, typer.Argument(help="The client's points: a .npz (x, y), .csv or .parquet.")],
    target: Annotated[
        str | None, typer.Option(help="The target column of a table; that of the run's data, or y.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for its model and what was found.")] = None,
    trust: Trust = False,
) -> int:
    """Take in a client that a finished run never saw."""
    from coterie.api import load as load_run
    from coterie.data.own.tables import Columns
    from coterie.experiment.experiment import load_kept
    from coterie.report import tables
    from coterie.runs.onboarding import read_client

    if out is not None and (out / "onboarded.json").exists():
        raise CoterieError(f"--out is '{out}', which already holds a client; allowed is another folder")
    refuse_from_python(run, "take clients in there with coterie.load(folder, model, ...).onboard(x, y)")
    finished, settings = load_run(run, trust=trust), load_kept(run).data
    target = settings.get("target", "y") if target is None else target
    columns = Columns(target, settings.get("split", "split"), tokens=finished.task == "next-character")
    found = finished.take_in(read_client(finished.summary, data, columns))
    if out is not None:
        found.save(out)
    console = open_console()
    show_table(console, tables.onboarded(found))
    said = [] if found.margin is None else [f"\nmargin to the second best: {found.margin:.4g}"]
    said += [found.verdict()] if out is None else [found.verdict(), f"\nThe client is in {out}"]
    say(console, "\n".join(said))
    return 0
