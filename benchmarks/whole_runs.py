"""Whole runs, timed: `python benchmarks/whole_runs.py --out FILE`. It needs Fashion-MNIST, and is meant for a GPU.

WeCFL's Table 2 (200 clients, 10 steps of 32 points, 100 rounds, evaluation every 10) for six methods. Each is played in
a process of its own, twice: the first fills the compiler's cache, the second finds it (`--warm`: it is full, and each
is played once). Then all six at once with `--jobs`. `prepare` is reading the data and trying the model; `play` is all
rounds with evaluation, to the last file; `process` has Python's start and the imports too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from coterie.bench.provenance import provenance
from coterie.experiment.experiment import load

TEXT = """
rounds = 100
evaluate_every = 10
data = { source = "fashion-mnist", clients = 200, alpha = [0.1, 10.0], clusters = 10 }
model = "wecfl_fashion"
training = { learning_rate = 0.001, momentum = 0.9, keep_optimizer = true, batch_size = 32, steps = 10 }
method = [
  { algorithm = { name = "FedAvg" } },
  { algorithm = { name = "FedProx", pull = 0.95 } },
  { algorithm = { name = "IFCA", n_clusters = 10 }, init = "random" },
  { algorithm = { name = "FeSEM", n_clusters = 10 } },
  { algorithm = { name = "WeCFL", n_clusters = 10 } },
  { label = "WeCFL restart", algorithm = { name = "WeCFL", n_clusters = 10, restart = true } },
]
"""


def play_one(file: Path, label: str, rounds: int | None) -> dict[str, float]:
    """In this process: seconds."""
    asked = load(file, [f"rounds={rounds}"] if rounds else [])
    method = next(one for one in asked.methods if one.label == label)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        prepared = asked.prepare()
        ready = time.perf_counter()
        prepared.play(method, Path(folder) / "run")
        return {"prepare": ready - began, "play": time.perf_counter() - ready}


def timed(command: list[str]) -> tuple[float, str]:
    began = time.perf_counter()
    said = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True).stdout
    return time.perf_counter() - began, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="play this method here and print its seconds")
    parser.add_argument("--only", action="append", help="only this method")
    parser.add_argument("--rounds", type=int, help="in place of 100")
    parser.add_argument("--warm", action="store_true", help="the compiler's cache is full: play each once")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "whole.toml"
        file.write_text(TEXT)
        if asked.one:
            print(json.dumps(play_one(file, asked.one, asked.rounds)))
            return
        found: list[dict[str, Any]] = []
        rounds = [] if asked.rounds is None else ["--rounds", str(asked.rounds)]
        labels = asked.only or [method.label for method in load(file).methods]
        for time_ in ("again",) if asked.warm else ("first", "again"):
            for label in labels:
                process, said = timed([__file__, "--one", label, *rounds])
                found.append(
                    {"method": label, "time": time_, "process": process, **json.loads(said.splitlines()[-1])}
                )
                print(found[-1], flush=True)
                _keep(asked.out, found)
        if asked.only is None:
            fewer = [] if asked.rounds is None else ["--set", f"rounds={asked.rounds}"]
            out = str(Path(folder) / "all")
            together, _ = timed(
                ["-m", "coterie", "run", str(file), *fewer, "--jobs", str(asked.jobs), "--out", out]
            )
            found.append({"method": f"all, {asked.jobs} at a time", "time": "again", "process": together})
            print(found[-1], flush=True)
            _keep(asked.out, found)


def _keep(out: Path | None, found: list[dict[str, Any]]) -> None:
    if out is not None:
        out.write_text(json.dumps({"provenance": provenance(), "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
