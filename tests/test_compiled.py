"""The compiled step against the plain one: the same problems, the same rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie import FedAvg, FedEM, FedProx, FedSPD, Federation, Training, run
from coterie.compiler import Compiler
from coterie.federation import Points
from coterie.network import LOSSES, Network
from coterie.simulate import Simulation
from coterie.solver import Problems, solve
from coterie.stages import Stage, Stages


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3))


def with_norm_and_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5, 6)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(120, 3),
    )


SIZES = [7, 12, 1, 20, 5, 9, 13]  # ragged, one of a single point


def points(sizes: list[int] = SIZES) -> Points:
    g = torch.Generator().manual_seed(1)
    each = [
        (torch.randn(n, 30, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)) for n in sizes
    ]
    return Points.of(each)


def solved(
    build: type[nn.Module] | object, training: Training, compile: bool, lanes: int | None = 3, **more: Tensor
) -> list[Tensor]:
    """Rows, losses and what the optimizer kept, of one problem a client."""
    network = Network(build, LOSSES["classification"], dtype=torch.float64, device=torch.device("cpu"), chunk=lanes)  # type: ignore[arg-type]
    data = points()
    network.probe(data.x[:4], data.y[:4])
    n = len(data.sizes)
    start = torch.stack([network.initial(f"start {i}") for i in range(n)])
    problems = Problems(torch.arange(n), torch.zeros(n, dtype=torch.long), torch.arange(n) * 77, start)
    if "pull" in more:
        problems.anchor, problems.pull = start.flip(0), more["pull"]
    if "weight" in more:
        problems.weight = more["weight"][:, None]
    compiler = Compiler(network, compile, data.x, n, max(SIZES))
    solution = solve(network, training, 0.1, data, problems, compiler)
    assert bool(compiler.steps) == compile and bool(compiler.steps and any(compiler.steps.values())) == compile
    return [solution.rows, solution.loss, *(solution.kept[name] for name in sorted(solution.kept))]


@pytest.mark.parametrize(
    "training",
    [
        Training(batch=4, epochs=2),
        Training(batch=4, epochs=None, steps=7),
        Training(batch=None, epochs=3, momentum=0.9, nesterov=True, weight_decay=0.01),
        Training(optimizer="adam", batch=4, epochs=2),
        Training(optimizer="adamw", batch=4, epochs=2, weight_decay=0.1),
    ],
    ids=["sgd", "steps", "momentum, all points", "adam", "adamw"],
)
@pytest.mark.parametrize("build", [dense, with_norm_and_dropout])
def test_compiled_equals_plain(build: object, training: Training) -> None:
    plain, compiled = solved(build, training, False), solved(build, training, True)
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, equal_nan=True)
