"""Is it right? Statistical criteria over seeds: `python experiments/right.py --seeds 1000 --out FILE`.

Prints one line per run and a verdict per criterion, and writes everything, raw, to the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie import FedAvg, FedSoft, FedSPD, Graph, Stage, Stages, Training
from coterie.backends.simulation import simulate
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.data import digits, regressions
from coterie.protocol.coordinator import Coordinator
from coterie.runs.summary import center_scores, match, summarise

D = 166.0  # ‖θ0 − θ1‖² of FedSoft's Table 1
ADAM = Training(optimizer="adam", learning_rate=5e-3, batch_size=10, epochs=10)  # FedSoft, appendix C
SGD = Training(learning_rate=0.02, batch_size=10, epochs=2)
DIGITS = Training(learning_rate=0.1, batch_size=10, epochs=10)
FEDSPD = "FedSPD over a graph, from FedSoft at a server"
BANDS = {"10:90": (18, 28), "30:70": (34, 44), "linear": (28, 37), "random": (28, 39)}


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def played(
    build: Callable[[], nn.Module], data: Any, stages: Stages, seed: int
) -> tuple[Coordinator, dict[str, Any]]:
    simulation = simulate(build, data, stages, seed=seed)
    while not simulation.done:
        simulation.step()
    return simulation, summarise(simulation, data.description, simulation.finish())


def own(summary: dict[str, Any], what: str) -> list[float]:
    """What each distribution's matched center reaches on it."""
    centers = summary["centers"]
    return [round(centers[what][s][d], 4) for d, s in enumerate(centers["center_of_distribution"])]


def fedsoft_synthetic(seed: int) -> list[dict[str, Any]]:
    """FedSoft's synthetic experiment with the published program's options."""
    results = []
    for mixture in BANDS:
        data = regressions(mixture=mixture, separation=D, seed=seed)
        training = replace(ADAM, keep_optimizer=True, shuffle=False)
        stage = Stage(FedSoft.as_published(2, pull=1.0, draws=60), 50, training)
        _, summary = played(linear, data, Stages((stage,)), seed)
        mse = own(summary, "loss")
        error = summary["centers"]["importance_error"]
        results.append({"mixture": mixture, "mse": mse, "mean": sum(mse) / 2, "importance_error": error})
    return results


def fedspd_graph(seed: int) -> list[dict[str, Any]]:
    """FedSPD on 10:90 over an Erdős–Rényi graph, N = 100, p = 0.06."""
    data = regressions(mixture="10:90", separation=D, seed=seed)
    stage = Stage(FedSPD(2), 50, SGD, Graph("erdos-renyi", probability=0.06))
    simulation, summary = played(linear, data, Stages((stage,)), seed)
    centers = simulation.state.centers  # (client, cluster, width)
    scored = [center_scores(simulation, data.description, centers[i]) for i in range(len(centers))]
    each = [torch.stack([s.loss for s in scores]) for scores in scored]
    clusters, distributions = match(torch.stack(each).mean(0))
    of_clients = torch.stack(each)[:, clusters, distributions].mean(0)
    error = summary["centers"]["importance_error"]
    return [
        {"mse": own(summary, "loss"), "mse_of_clients_own": of_clients.tolist(), "importance_error": error}
    ]


def two_labelings(seed: int) -> list[dict[str, Any]]:
    """Digits under two labelings, linear mixtures."""
    data = digits(distributions="relabel", mixture="linear", seed=seed)
    graph = Graph("erdos-renyi", degree=8)
    plans = {
        "FedAvg": Stages((Stage(FedAvg(), 30, DIGITS),)),
        "FedSoft": Stages((Stage(FedSoft(2, pull=0.01, draws=100), 40, DIGITS),)),
        FEDSPD: Stage(FedSoft(2, pull=0.01, draws=100), 15, DIGITS).then(Stage(FedSPD(2), 20, DIGITS, graph)),
    }
    results = []
    for name, stages in plans.items():
        _, summary = played(mlp, data, stages, seed)
        error = summary["centers"].get("importance_error")
        personal = summary["personal"]["accuracy"]
        results.append(
            {
                "method": name,
                "accuracy": own(summary, "accuracy"),
                "importance_error": error,
                "personal": personal,
            }
        )
    return results


PARTS = {
    "fedsoft-synthetic": (fedsoft_synthetic, 5),
    "fedspd-graph": (fedspd_graph, 10),
    "two-labelings": (two_labelings, 10),
}


def verdicts(part: str, runs: list[dict[str, Any]]) -> list[str]:
    """Each criterion with what was seen."""
    if part == "fedsoft-synthetic":
        lines = []
        for mixture, (low, high) in BANDS.items():
            mean = sum(found := [r["mean"] for r in runs if r["mixture"] == mixture]) / len(found)
            lines.append(
                f"{'ok ' if low <= mean <= high else 'NOT'} {mixture}: {mean:.1f}, to lie in {low} to {high}"
            )
        return lines
    if part == "fedspd-graph":
        good = sum(max(r["mse"]) < 2 for r in runs)
        worst = max(r["importance_error"] for r in runs)
        clients = sum(sum(r["mse_of_clients_own"]) / 2 for r in runs) / len(runs)
        return [
            f"{'ok ' if good >= 0.8 * len(runs) else 'NOT'} both average centers under 2: {good} of {len(runs)} seeds",
            f"{'ok ' if worst < 0.05 else 'NOT'} importance error at most {worst:.4f}, to be under 0.05",
            f"--- mean MSE of the clients' own centers: {clients:.3f}",
        ]
    lines = []
    limits = {
        "FedAvg": ("max", 0.55),
        "FedSoft": ("min", 0.75),
        FEDSPD: ("min", 0.90),
    }
    for method, (side, limit) in limits.items():
        found = [r for r in runs if r["method"] == method]
        each = [max(r["accuracy"]) if side == "max" else min(r["accuracy"]) for r in found]
        good = sum(a < limit if side == "max" else a >= limit for a in each)
        lines.append(
            f"{'ok ' if good == len(each) else 'NOT'} {method}: {'highest' if side == 'max' else 'lowest'} own-center "
            f"accuracy {'under' if side == 'max' else 'at least'} {limit} in {good} of {len(each)} seeds, "
            f"mean {sum(each) / len(each):.3f}"
        )
        errors = [r["importance_error"] for r in found if r["importance_error"] is not None]
        if errors:
            lines.append(
                f"{'ok ' if max(errors) < 0.03 else 'NOT'} {method}: importance error at most {max(errors):.4f}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="the first seed")
    parser.add_argument("--number", type=int, help="how many seeds (default: 5, 10 and 10)")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"provenance": provenance()}
    for part in options.only or PARTS:
        play, number = PARTS[part]
        runs = []
        for seed in range(options.seeds, options.seeds + (options.number or number)):
            for result in play(seed):
                runs.append({"seed": seed, **result})
                print(part, runs[-1], flush=True)
        report[part] = {"runs": runs, "verdicts": verdicts(part, runs)}
        print("\n".join(report[part]["verdicts"]), flush=True)
    if options.out:
        write(options.out, report)


if __name__ == "__main__":
    main()
