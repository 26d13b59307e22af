"""What benchmarks do alike: play seed after seed, say where the numbers come from, write them down."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from coterie import __version__

Run = dict[str, Any]


def play_seeds(
    about: str | None,
    number: int,
    play: Callable[[int], Iterable[Run]],
    conclude: Callable[[list[Run]], list[str]],
) -> None:
    """The command line of a benchmark: `play` gives the runs of a seed, `conclude` what all of them say."""
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
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


def provenance() -> dict[str, str]:
    """Where numbers come from. A copy without its repository names its commit in COTERIE_COMMIT."""
    commit = os.environ.get("COTERIE_COMMIT") or _git("rev-parse", "--short", "HEAD")
    changed = "COTERIE_COMMIT" not in os.environ and bool(_git("status", "--porcelain", "src"))
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return {
        "command": "python " + " ".join(Path(a).name if a.startswith("/") else a for a in sys.argv),
        "commit": commit + (" with changes" if changed else ""),
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {platform.system()}{gpu}",
        "versions": f"coterie {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()
