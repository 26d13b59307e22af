"""Does choosing clients help? The idea of k-FED's Figure 4: `python experiments/selection.py --seeds 1000 --out FILE`.

As in the paper's appendix B.1, with scikit-learn's digits for FEMNIST: every client has two classes, and both its
size and the share of its first class follow a power law. One model (FedAvg) learns from a few clients a round. The
score is the accuracy of that model on the images that nobody trains on, after some rounds. Tune on seeds 0 to 99.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from right import mlp
from sklearn.datasets import load_digits

from coterie import FedAvg, Federation, Participation, Points, Stage, Stages, Training
from coterie.backends.simulation import Together, simulate
from coterie.bench.results import run_seeds
from coterie.protocol.personal import Personal

CLIENTS, INVITED, CANDIDATES = 200, 5, 20
ROUNDS = (10, 20, 40, 80)
TRAINING = Training(learning_rate=0.1, batch_size=10, epochs=2)
FEW = INVITED / CLIENTS
WAYS = {
    "uniform": Participation(FEW),
    "size": Participation(FEW, select="size"),
    "loss": Participation(FEW, select="loss", candidates=CANDIDATES),
    "loss-per-cluster": Participation(
        FEW, select="loss-per-cluster", candidates=CANDIDATES, clusters=10, local_clusters=2
    ),
}


def two_classes_each(seed: int) -> Federation:
    chance = np.random.default_rng([seed, 4])
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images / 16).float(), torch.from_numpy(labels)
    order = chance.permutation(len(x))
    train, test = order[: len(x) * 3 // 4], order[len(x) * 3 // 4 :]
    sizes = np.clip(8 * (1 + chance.pareto(1.5, CLIENTS)), 8, 100).astype(int)
    held, own = [], []
    for size in sizes:
        classes = chance.choice(10, 2, replace=False)
        first = min(size - 1, int(np.ceil(size * chance.power(3))))
        counts = zip(classes, (first, size - first), strict=True)
        held.append(np.concatenate([_some(train, labels, c, n, chance) for c, n in counts]))
        own.append(np.concatenate([_some(test, labels, c, 5, chance) for c in classes]))
    ids = tuple(str(i) for i in range(CLIENTS))
    known = Points.of([(x[test], y[test])])
    return Federation(ids, _points(x, y, held), _points(x, y, own), n_outputs=10, distributions=known)


def _some(side: Any, labels: Any, label: int, number: int, chance: np.random.Generator) -> Any:
    return chance.choice(side[labels[side] == label], number, replace=False)


def _points(x: torch.Tensor, y: torch.Tensor, held: list[Any]) -> Points:
    at = torch.from_numpy(np.concatenate(held))
    offset = torch.tensor(np.cumsum([0, *map(len, held)]))
    return Points(x, at, y[at], offset)


def play(how: Participation, data: Federation, seed: int) -> dict[str, Any]:
    run = simulate(mlp, data, Stages((Stage(FedAvg(), ROUNDS[-1], TRAINING, participation=how),)), seed=seed)
    everything = data.distributions
    assert everything is not None
    found: dict[str, Any] = {"accuracy": {}}
    assert isinstance(run.clients, Together)
    for t in range(1, ROUNDS[-1] + 1):
        run.step()
        if t in ROUNDS:
            scores = run.clients.cohort.score(Personal.single(run.state.centers[0]), everything)
            assert scores.accuracy is not None
            found["accuracy"][str(t)] = round(float(scores.accuracy), 4)
    own = run.finish().scores
    assert own is not None
    assert own.accuracy is not None
    found["std_over_clients"] = round(float(own.accuracy.std()), 4)
    return {**found, "megabytes": run.traffic.total() / 1e6}


def table(runs: list[dict[str, Any]]) -> list[str]:
    lines = ["| select | " + " | ".join(f"{t} rounds" for t in ROUNDS) + " | std over clients | MB |"]
    lines.append("|---" * (len(ROUNDS) + 3) + "|")
    for way in WAYS:
        mine = [r for r in runs if r["select"] == way]
        cells = []
        for t in ROUNDS:
            each = [r["accuracy"][str(t)] for r in mine]
            cells.append(f"{np.mean(each):.3f} ± {np.std(each, ddof=1):.3f}")
        cells += [f"{np.mean([r[what] for r in mine]):.2f}" for what in ("std_over_clients", "megabytes")]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return lines


def played(seed: int) -> Iterator[dict[str, Any]]:
    data = two_classes_each(seed)
    for way, how in WAYS.items():
        yield {"select": way, **play(how, data, seed)}


if __name__ == "__main__":
    run_seeds(__doc__, 10, played, table)
