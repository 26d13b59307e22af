"""CPU time until coterie is loaded, beside torch alone: `python benchmarks/startup.py --out FILE`.

User and system seconds of a fresh process, the median of several. The commands run interleaved, so that noise hits all
alike, after a first time that is not counted: it fills the caches of files and of bytecode. `coterie` is run as
`python -m coterie`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from coterie.bench.provenance import provenance
from coterie.bench.results import write

COMMANDS = {
    'python -c "pass"': ["-c", "pass"],
    'python -c "import torch"': ["-c", "import torch"],
    'python -c "import coterie"': ["-c", "import coterie"],
    'python -c "import coterie; coterie.run"': ["-c", "import coterie; coterie.run"],
    "coterie --help": ["-m", "coterie", "--help"],
    "coterie algorithms": ["-m", "coterie", "algorithms"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of a fresh Python, and of what it started and waited for."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(
            f"startup.py: python {' '.join(arguments)} failed with exit code {process.returncode}"
        )
    return usage.ru_utime + usage.ru_stime


def measure(repeats: int) -> dict[str, list[float]]:
    for arguments in COMMANDS.values():
        cpu_seconds(arguments)
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, arguments in COMMANDS.items():
            found[name].append(round(cpu_seconds(arguments), 3))
    return found


def table(found: dict[str, list[float]]) -> list[str]:
    """Markdown."""
    lines = ["| command | CPU seconds, median | least | most |", "|---|---:|---:|---:|"]
    for name, each in found.items():
        lines.append(f"| `{name}` | {median(each):.2f} | {min(each):.2f} | {max(each):.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; allowed is a whole number from 1")
    found = measure(options.repeats)
    print("\n".join(table(found)))
    if options.out:
        rows = {name: {"median": median(each), "all": each} for name, each in found.items()}
        write(options.out, {"provenance": provenance(), "cpu_seconds": rows})


if __name__ == "__main__":
    main()
