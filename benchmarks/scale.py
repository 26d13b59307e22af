"""Time and memory of a round by the number of clients: `python benchmarks/scale.py --out FILE`.

Every run is whole (records, metrics, evaluation, checkpoint, results) and in a process of its own, which is given
8 GiB of memory. Started again, it goes on where it was. `--plot FILE` draws the result file. For a GPU:
`--device cuda --cases cnn`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import coterie
from coterie import IFCA, FedAvg, Federation, FedSoft, FedSPD, Graph, Participation, Server, Training
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.cli.malloc import give_back
from coterie.data import regressions
from coterie.data.federation import Points
from coterie.models import build
from coterie.runs.recorder import EvaluationInterval

GIB = 8
ALGORITHMS: dict[str, Any] = {
    "FedAvg": FedAvg(),
    "IFCA": IFCA(2),
    "FedSoft": FedSoft(2),
    "FedSPD": FedSPD(2, final_epochs=1),
}
POINTS = {"linear": 50, "mlp": 20, "cnn": 20}  # of a client
PLACES: dict[str, Server | Graph] = {"server": Server(), "graph": Graph("barabasi-albert", degree=10)}
RUNS = {  # algorithm, place, part of the clients in a round, numbers of clients
    "linear": [
        ("FedAvg", "server", 1.0, (100, 1000, 10_000, 100_000)),
        ("FedSPD", "graph", 1.0, (100, 1000, 10_000, 100_000)),
        ("IFCA", "server", 1.0, (100_000,)),
        ("FedSoft", "server", 1.0, (100_000,)),
        ("FedAvg", "graph", 1.0, (100_000,)),
    ],
    "mlp": [
        ("FedAvg", "server", 1.0, (100, 1000, 10_000)),
        ("FedSPD", "graph", 1.0, (100, 1000, 10_000)),
        ("IFCA", "server", 1.0, (10_000,)),
        ("FedSoft", "server", 1.0, (10_000,)),
        ("FedAvg", "graph", 1.0, (10_000,)),
    ],
    "cnn": [
        ("FedAvg", "server", 0.1, (100, 1000, 10_000)),
        ("FedAvg", "server", 1.0, (100, 1000, 10_000)),
        ("FedSoft", "server", 1.0, (10_000,)),
    ],
}


def images(clients: int, points: int, shape: tuple[int, ...]) -> Federation:
    """Random pixels under random labels; clients draw from 10,000 of them, which are kept once."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (10_000, *shape), generator=chance, dtype=torch.uint8)
    y = torch.randint(0, 10, (10_000,), generator=chance)
    x = x if len(shape) == 3 else x.float() / 255

    def some(each: int) -> Points:
        at = torch.randint(0, len(x), (clients * each,), generator=chance)
        return Points(x, at, y[at], torch.arange(clients + 1) * each)

    return Federation(tuple(map(str, range(clients))), some(points), some(2), "classification", 10)


def problem(case: str, clients: int) -> tuple[Any, Federation]:
    points = POINTS[case]
    if case == "linear":
        data = regressions(clients=clients, sizes=(points, points), test_points=points // 5)
        return build("linear", (10,), 1), data
    if case == "mlp":
        return build("mlp", (784,), 10, hidden=(200,)), images(clients, points, (784,))
    return build("cnn", (1, 28, 28), 10, hidden=(128,)), images(clients, points, (1, 28, 28))


def measure(case: str, algorithm: str, place: str, part: float, clients: int, device: str) -> dict[str, Any]:
    """One run, in this process."""
    give_back()  # as the command line does
    model, data = problem(case, clients)
    # models are evaluated so many times, each so many rounds
    times, every = (2, 2) if case == "mlp" and clients > 1000 else (4, 3)
    # the optimizer's memory of every client is kept, where there is one
    training = Training(
        learning_rate=0.01,
        batch_size=10,
        epochs=1,
        momentum=0.9 * (case == "cnn"),
        keep_optimizer=case == "cnn",
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = coterie.run(
            model,
            data,
            ALGORITHMS[algorithm],
            rounds=times * every,
            training=training,
            topology=PLACES[place],
            participation=Participation(fraction=part),
            init="random",
            device=device,
            evaluate_every=every,
            out=Path(folder) / "run",
        )
        whole = time.perf_counter() - began
    found = medians(run.records, clients, every)
    found["seconds_before_and_after"] = round(whole - sum(r["seconds"] for r in run.records), 3)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if device == "cuda":
        found["peak_gpu_mib"] = torch.cuda.max_memory_allocated() // 2**20
    return found


def medians(records: list[dict[str, Any]], clients: int, every: int) -> dict[str, float]:
    """Medians without the first rounds and the last evaluation, which keeps the models too.

    The first round draws the graph; without the second as many are left in which FedSoft asks for importance as
    others. Of more than 1000 MLPs there is one evaluation beside the last.
    """
    training = median(r["seconds"] - r["seconds_evaluating"] for r in records[2:])
    metrics = median(r["seconds_evaluating"] for r in records[2:] if (r["round"] + 1) % every)
    evaluation = median(r["seconds_evaluating"] for r in records[every - 1 : -1 : every])
    rounds = rounds_between(clients, int(median(r["sent"] for r in records)))
    evaluating = ((rounds - 1) * metrics + evaluation) / rounds
    return {
        "seconds_round": round(training, 4),
        "seconds_metrics": round(metrics, 4),
        "seconds_evaluation": round(evaluation, 4),
        "rounds_between_evaluations": rounds,
        "evaluating_over_round": round(evaluating / training, 3),
    }


def rounds_between(clients: int, sent: int) -> int:
    """From one evaluation to the next, as by default."""
    interval, rounds = EvaluationInterval("auto", clients), 1
    while not interval.played(sent):
        rounds += 1
    return rounds


def in_own_process(*what: Any) -> dict[str, Any]:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(what)]
    place = {**os.environ, "COTERIE_MEMORY": str(GIB)} if what[-1] == "cpu" else dict(os.environ)
    done = subprocess.run(command, env=place, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def verdicts(runs: list[dict[str, Any]]) -> list[str]:
    """Does every run fit, and does measuring it take less than a fifth of a round?"""
    said = []
    for run in runs:
        name = f"{run['clients']} clients, {run['case']}, {run['algorithm']} at {run['place']}"
        if "failed" in run:
            said.append(f"{name}: DOES NOT RUN: {run['failed']}")
            continue
        fits = run["peak_mib"] <= GIB * 1024 or run["device"] == "cuda"
        evaluating = run["evaluating_over_round"]
        holds = fits and evaluating < 0.2
        numbers = f"{run['seconds_round']} s a round, {evaluating:.0%} evaluating, {run['peak_mib']} MiB"
        said.append(f"{name}: {numbers}: {'holds' if holds else 'DOES NOT HOLD'}")
    return said


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """Seconds of a round and peak memory by clients, one line for each case that has several numbers of them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.3), layout="constrained")
    lines: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if "failed" not in run:
            lines.setdefault((run["case"], run["algorithm"], run["place"]), []).append(run)
    for (case, algorithm, place), found in lines.items():
        if len(found) < 2:
            continue
        label = f"{case}, {algorithm} at a {place}"
        clients = [run["clients"] for run in found]
        left.loglog(clients, [run["seconds_round"] for run in found], "o-", ms=4, label=label)
        right.loglog(clients, [run["peak_mib"] / 1024 for run in found], "o-", ms=4, label=label)
    ends = [min(run["clients"] for run in runs), max(run["clients"] for run in runs)]
    left.plot(ends, [2e-5 * n for n in ends], ":", color="grey", label="as the number of clients")
    limit = right.axhline(GIB, ls=":", color="grey")
    right.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"], minor=False)
    right.minorticks_off()
    left.set(xlabel="clients", ylabel="seconds a round", title="Time")
    right.set(xlabel="clients", ylabel="GiB at the peak", title="Memory of the whole run")
    right.legend([limit], [f"{GIB} GiB"], loc=(0.02, 0.84), frameon=False, fontsize=8)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    figure.savefig(picture, dpi=110)


def there_already(out: Path | None, source: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs of the same commit on the same machine that the result file has: an interrupted measurement goes on."""
    if out is None or not out.exists():
        return []
    report = json.loads(out.read_text())
    same = all(report["provenance"][name] == source[name] for name in ("commit", "machine", "versions"))
    known = bool(source["commit"]) and "with changes" not in source["commit"]
    return [run for run in report["runs"] if "failed" not in run] if same and known else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", choices=RUNS, default=["linear", "mlp"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clients", type=int, nargs="+", help="runs of so many clients alone")
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--plot", type=Path, help="draw the result file, and measure nothing")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*json.loads(options.one))))
        return
    if options.plot:
        draw(json.loads(options.out.read_text())["runs"], options.plot)
        return
    source = provenance()
    runs = there_already(options.out, source)
    for case in options.cases:
        for algorithm, place, part, numbers in RUNS[case]:
            for clients in numbers:
                if options.clients and clients not in options.clients:
                    continue
                run = {"case": case, "algorithm": algorithm, "place": place, "part": part, "clients": clients}
                run["device"] = options.device
                if any(run.items() <= one.items() for one in runs):
                    continue
                run |= in_own_process(case, algorithm, place, part, clients, options.device)
                runs.append(run)
                print(run, flush=True)
                if options.out:
                    write(options.out, {"provenance": source, "runs": runs, "says": verdicts(runs)})
    print("\n".join(verdicts(runs)))


if __name__ == "__main__":
    main()
