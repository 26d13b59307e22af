"""`coterie cluster`: k-FED on the points of many devices."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.console import open_console, say, show_table
from coterie.errors import require


def cluster(
    folder: Annotated[
        Path, typer.Argument(help="One .npz (x), .csv or .parquet (columns of numbers) per device.")
    ],
    out: Annotated[Path, typer.Option(help="The labels: a .parquet or .csv with device, row, label.")],
    clusters: Annotated[str, typer.Option(help="How many over all devices, or auto.")] = "auto",
    local_clusters: Annotated[str, typer.Option(help="How many on each device, or auto.")] = "auto",
    n_init: Annotated[int, typer.Option(help="Initialisations on each device; the best is kept.")] = 10,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
) -> int:
    """Cluster points that lie on many devices, in one round (k-FED)."""
    from coterie.cli import devices
    from coterie.clustering.kfed import KFed

    k, local = _number("--clusters", clusters), _number("--local-clusters", local_clusters)
    for name, value, least in (("--n-init", n_init, 1), ("--seed", seed, 0)):
        require(value >= least, name, value, f"a whole number from {least}")
    devices.check_out(folder, out)
    points = devices.read_devices(folder)
    model = KFed(k, local or "auto", n_init=n_init, random_state=seed)
    for warning in devices.fit(model, points):
        logging.getLogger("coterie").warning(warning)
    devices.write_labels(out, list(points), model)
    console = open_console()
    show_table(console, devices.shown(model))
    show_table(console, devices.measured(model))
    say(console, f"\nThe labels are in {out}")
    return 0


def _number(name: str, given: str) -> int | None:
    """None for auto."""
    known = given == "auto" or (given.isdecimal() and int(given) >= 1)
    require(known, name, given, "a whole number from 1, or auto")
    return None if given == "auto" else int(given)
