"""The command line's `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A workload that --list names; may be repeated.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Timed repeats of every baseline, after a first round that is not timed.")
    ] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(help="Of every baseline; OMP_NUM_THREADS or all cores if not given.")
    ] = None,
    tf32: Annotated[bool, typer.Option("--tf32", help="Let matrix products round to tf32 (CUDA).")] = False,
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python", help="The Python that has a simulator: flower=PATH, pfl=PATH or fedjax=PATH."
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option("--baseline", help="A baseline that --list names; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A JSON file for the report, written after each workload.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the workloads and their baselines.")] = False,
) -> int:
    """How fast is coterie here, beside plain loops and other simulators?"""
    from coterie.bench import command  # loaded when used
    from coterie.bench.task import Conditions

    if list_:
        command.show_list(device)
    else:
        conditions = Conditions(device, command.default_threads() if threads is None else threads, tf32)
        command.bench(only or [], conditions, repeats, python or [], out, baseline or ())
    return 0
