"""What the scripts in benchmarks/ and experiments/ share: run seed after seed, and write a result file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coterie.bench.provenance import provenance
from coterie.files import make_folder, write_whole

Run = dict[str, Any]


def run_seeds(
    about: str | None,
    number: int,
    play: Callable[[int], Iterable[Run]],
    conclude: Callable[[list[Run]], list[str]],
) -> None:
    """The command line of a script: `play` gives the runs of a seed, `conclude` what all of them say."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seeds", type=int, default=1000, help="the first seed")
    parser.add_argument("--number", type=int, default=number, help="how many seeds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs, source = [], provenance()
    for seed in range(options.seeds, options.seeds + options.number):
        for run in play(seed):
            runs.append({"seed": seed, **run})
            print(runs[-1], flush=True)
    said = conclude(runs)
    print("\n".join(said))
    if options.out:
        write(options.out, {"provenance": source, "runs": runs, "says": said})


def write(out: Path, report: Run) -> None:
    """As JSON, whole or not at all."""
    make_folder(out.parent)
    write_whole(out, (json.dumps(report, indent=1) + "\n").encode())
