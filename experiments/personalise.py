"""k-FED, then FedAvg per cluster: the idea of its Table 2: `python experiments/personalise.py --seeds 1000 --out FILE`.

scikit-learn's digits turned by 0, 90, 180 and 270 degrees, in place of MNIST; a client has images of one rotation
(k' = 1) or, half and half, of two (k' = 2). The score is the mean over clients of the accuracy on their own held-out
images. Compared are one model for all, IFCA, the recipe, and the recipe given the true clusters, which nobody has.
Tune on seeds 0 to 99.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from right import mlp
from sklearn.metrics import adjusted_rand_score

import coterie
from coterie import IFCA, FedAvg, Federation, Training
from coterie.bench.results import run_seeds
from coterie.data import digits
from coterie.recipes import kfed_personalise

CLIENTS, ROUNDS, TRAINING = 100, 30, Training(learning_rate=0.1, batch_size=10, epochs=2)
SETTINGS: dict[str, Any] = {"rounds": ROUNDS, "training": TRAINING, "evaluate_every": 0}


def rotated(each: int, seed: int) -> Federation:
    """Clients with one rotation, or with two of the four; by size the same."""
    data = digits(
        clients=CLIENTS, distributions="rotate", clusters=4, mixture="pure", train_points=80, seed=seed
    )
    return data if each == 1 else _paired(data, seed)


def _paired(data: Federation, seed: int) -> Federation:
    """Every other image of a client is turned on, by as much for all its images."""
    chance = np.random.default_rng([seed, 2])
    on = torch.from_numpy(chance.integers(1, 4, len(data)))

    def turned(points: Any) -> Any:
        images = len(points.x) // 4  # a store has its images under one rotation after another
        place = torch.arange(len(points.at)) - points.offset[points.owner]
        more = on[points.owner] * (place % 2)
        at = (points.at + images * more) % len(points.x)
        return replace(points, at=at, component=(points.component + more) % 4)

    return replace(data, train=turned(data.train), test=turned(data.test))


def accuracy(found: Any, data: Federation) -> float:
    test, each = data.test, []
    assert test is not None
    for i, name in enumerate(data.ids):
        own = slice(int(test.offset[i]), int(test.offset[i + 1]))
        each.append((found.predict(name, test.x[test.at[own]]) == test.y[own]).float().mean())
    return float(torch.stack(each).mean())


def oracle(data: Federation, each: int, seed: int) -> float:
    """The recipe on inputs that say their rotation, which the model does not use."""

    def saying(points: Any) -> Any:
        turn = torch.repeat_interleave(torch.arange(4), len(points.x) // 4)
        return replace(points, x=torch.cat([points.x, 1000 * torch.nn.functional.one_hot(turn, 4)], 1))

    sent = replace(data, train=saying(data.train), test=saying(data.test), distributions=None)

    def blind() -> torch.nn.Module:
        return torch.nn.Sequential(_Without(), *mlp().children())

    return accuracy(kfed_personalise(blind, sent, 4, each, seed=seed, **SETTINGS), sent)


class _Without(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., :64]


def row(each: int, seed: int) -> dict[str, Any]:
    data = rotated(each, seed)
    result: dict[str, Any] = {"k'": each}
    one = coterie.run(mlp, data, FedAvg(), seed=seed, **SETTINGS)
    result["FedAvg"] = {
        "accuracy": one.summary["personal"]["accuracy"],
        "megabytes": one.summary["megabytes"],
    }
    hard = coterie.run(mlp, data, IFCA(4), seed=seed, init="random", **SETTINGS)
    result["IFCA"] = {
        "accuracy": hard.summary["personal"]["accuracy"],
        "megabytes": hard.summary["megabytes"],
    }
    found = kfed_personalise(mlp, data, 4, each, seed=seed, **SETTINGS)
    assert data.train.component is not None
    agreement = adjusted_rand_score(data.train.component.numpy(), found.clustering.labels_)
    result["k-FED + FedAvg"] = {
        "accuracy": accuracy(found, data),
        "megabytes": found.megabytes,
        "ari": agreement,
    }
    result["true clusters"] = {"accuracy": oracle(data, each, seed)}
    return result


def table(runs: list[dict[str, Any]]) -> list[str]:
    names = [name for name in runs[0] if name not in ("seed", "k'")]
    lines = ["| k' | " + " | ".join(names) + " | ARI of k-FED |", "|---" * (len(names) + 2) + "|"]
    for each in (1, 2):
        mine = [r for r in runs if r["k'"] == each]
        cells = []
        for name in names:
            reached = [100 * r[name]["accuracy"] for r in mine]
            sent = [r[name]["megabytes"] for r in mine if "megabytes" in r[name]]
            cells.append(f"{np.mean(reached):.1f} ± {np.std(reached, ddof=1):.1f}")
            cells[-1] += f" ({np.mean(sent):.0f} MB)" if sent else ""
        cells.append(f"{np.mean([r['k-FED + FedAvg']['ari'] for r in mine]):.2f}")
        lines.append(f"| {each} | " + " | ".join(cells) + " |")
    return lines


def played(seed: int) -> Iterator[dict[str, Any]]:
    for each in (1, 2):
        yield row(each, seed)


if __name__ == "__main__":
    run_seeds(__doc__, 5, played, table)
