"""What FedSPD's final phase is worth: `python experiments/final_phase.py --seeds 1000 --out FILE`.

Digits under two labelings, linear mixtures; 4 rounds of WeCFL at a server, then FedSPD over a graph. The rounds are
played once for each seed, and ended in each way, since what comes before does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from statistics import fmean, stdev
from typing import Any

import torch
from right import DIGITS, mlp

from coterie import FedSPD, Graph, Stage, WeCFL
from coterie.algorithms.fedspd import EPOCHS
from coterie.backends.simulation import Together, simulate
from coterie.bench.results import run_seeds
from coterie.data import digits
from coterie.data.federation import Federation
from coterie.protocol.coordinator import Coordinator
from coterie.runs.summary import center_scores, match

WAYS = tuple(product(("parameters", "mixture"), (10, 0, "auto")))


def simulated(data: Federation, seed: int) -> Coordinator:
    stages = Stage(WeCFL(2), 4, DIGITS).then(Stage(FedSPD(2), 15, DIGITS, Graph("erdos-renyi", degree=8)))
    simulation = simulate(mlp, data, stages, seed=seed)
    while not simulation.done:
        simulation.step()
    return simulation


def ended(simulation: Coordinator, predict: Any, epochs: Any) -> dict[str, Any]:
    """Accuracy of the clients' models on their held-out images, ended in one way."""
    algorithm = FedSPD(2, final_epochs=epochs, predict=predict)
    offer = algorithm.final_offer(simulation.state.for_everyone())
    assert isinstance(simulation.clients, Together)
    cohort = simulation.clients.cohort.when(simulation.state.context)
    scores = cohort.score(algorithm.finish(cohort, offer), cohort.held_out())
    assert scores.accuracy is not None
    found = {
        "predict": predict,
        "final_epochs": epochs,
        "accuracy": float(scores.accuracy.nanmean()),
        "loss": float(scores.loss.nanmean()),
    }
    if epochs == "auto":
        start = algorithm.personal(cohort, offer)
        chosen = algorithm._best_length(cohort, start, algorithm._points(cohort, offer)).tolist()
        found["clients_by_epochs"] = {str(n): chosen.count(i) for i, n in enumerate(EPOCHS)}
    return found


def centers(simulation: Coordinator, data: Federation) -> list[float]:
    """The accuracy of each labeling's own center."""
    scores = center_scores(simulation, data.description, simulation.state.centers.mean(0))
    pairs = match(torch.stack([s.loss for s in scores]))
    accuracy = torch.stack([s.accuracy for s in scores if s.accuracy is not None])
    return [float(accuracy[s, d]) for s, d in zip(*pairs, strict=True)]


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Mean and deviation over seeds, as Markdown."""
    lines = ["| predict | final epochs | personal accuracy | personal loss |", "|---|---|---|---|"]
    for predict, epochs in WAYS:
        own = [r for r in runs if (r["predict"], r["final_epochs"]) == (predict, epochs)]
        cells = []
        for name in ("accuracy", "loss"):
            each = [r[name] for r in own]
            cells.append(f"{fmean(each):.3f}" + (f" ± {stdev(each):.3f}" if len(each) > 1 else ""))
        lines.append(f"| {predict} | {epochs} | {' | '.join(cells)} |")
    return lines


def played(seed: int) -> Iterator[dict[str, Any]]:
    data = digits(distributions="relabel", mixture="linear", clients=60, seed=seed)
    simulation = simulated(data, seed)
    own = centers(simulation, data)
    for predict, epochs in WAYS:
        yield {"centers": own, **ended(simulation, predict, epochs)}


if __name__ == "__main__":
    run_seeds(__doc__, 5, played, table)
