"""How fast is a round, beside what others run? `python benchmarks/speed.py --out FILE`.

The same as `coterie bench`, for a machine that has torch, numpy, scikit-learn, scipy, networkx, safetensors and rich
alone. docs/explanation/speed.md says what is measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from coterie.bench import command
from coterie.bench.task import Conditions
from coterie.bench.workloads import WORKLOADS
from coterie.errors import CoterieError, Interrupted


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=WORKLOADS, action="append", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=command.default_threads())
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--baseline", action="append", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    try:
        if asked.list:
            command.show_list(asked.device)
        else:
            conditions = Conditions(asked.device, asked.threads, asked.tf32)
            command.bench(asked.only, conditions, asked.repeats, asked.python, asked.out, asked.baseline)
    except CoterieError as problem:
        print(f"speed.py: {problem}", file=sys.stderr)
        return 130 if isinstance(problem, Interrupted) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
