"""Does the compiled step take the same steps as the plain one? `python benchmarks/compiled.py --out FILE`

The tests ask this on a CPU; here it is asked of whatever device there is, in both precisions. Ragged clients, batch
norm and dropout, convolutions, plain descent, momentum, Adam, a pull: whole runs of two rounds, compared in the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie import FedAvg, Federation, FedProx, FedSPD, Stage, Stages, Training
from coterie.backends.simulation import Together, simulate
from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.data import digits


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn() -> nn.Module:
    """Behind a norm a bias has no gradient but rounding errors, which Adam would blow up: so there is none."""
    layers = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Flatten(), nn.Linear(256, 10))


CASES: dict[str, tuple[Any, Any, Training]] = {
    "MLP, FedAvg, plain descent": (mlp, FedAvg(), Training(learning_rate=0.05, batch_size=8, epochs=2)),
    "MLP, FedProx, momentum": (
        mlp,
        FedProx(pull=0.1),
        Training(learning_rate=0.05, batch_size=8, epochs=2, momentum=0.9),
    ),
    "CNN with batch norm and dropout, FedAvg, plain descent": (
        cnn,
        FedAvg(),
        Training(learning_rate=0.05, batch_size=8, epochs=2),
    ),
    "CNN with batch norm and dropout, FedSPD, Adam": (
        cnn,
        FedSPD(2, final_epochs=1),
        Training(optimizer="adam", learning_rate=0.001, batch_size=8, epochs=1),
    ),
}


def ragged() -> Federation:
    """Clients of 8 to 40 points."""
    data = digits(clients=12, image=True, train_points=40, seed=0)
    kept = torch.cat([torch.arange(40) < 8 + 32 * i // 11 for i in range(12)])
    return Federation(data.ids, data.train.only(kept), task=data.task, n_outputs=10)


def centers(case: tuple[Any, Any, Training], dtype: torch.dtype, compile: bool) -> Tensor:
    build, algorithm, training = case
    stages = Stages((Stage(algorithm, 2, training),))
    simulation = simulate(build, ragged(), stages, dtype=dtype, compile=compile)
    while not simulation.done:
        simulation.step()
    result = simulation.finish()
    assert isinstance(simulation.clients, Together)
    compiled = simulation.clients.cohort.compiler
    assert compiled is not None
    assert any(compiled.steps.values()) == compile
    return torch.cat([result.centers.flatten(), result.personal.rows.flatten()]).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    found = {}
    for name, case in CASES.items():
        for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
            plain, compiled = centers(case, dtype, False), centers(case, dtype, True)
            difference = float((plain - compiled).abs().max() / plain.abs().max())
            row = {"largest_difference": difference, "allowed": slack, "holds": difference <= slack}
            found[f"{name}, {str(dtype).removeprefix('torch.')}"] = row
            print(name, dtype, row, flush=True)
    if out:
        write(out, {"provenance": provenance(), "relative_to_the_largest_number": found})
    assert all(row["holds"] for row in found.values())


if __name__ == "__main__":
    main()
