"""What is played: an algorithm on a model and data, all made from a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from coterie.models import build


@dataclass(frozen=True)
class Workload:
    """One line of the comparison."""

    algorithm: str  # fedavg, ifca, fedsoft, fedspd, kfed
    model: str  # one of coterie's
    shape: tuple[int, ...]  # of an input
    outputs: int  # classes; 1: a regression
    clients: int
    points: int  # of each client
    epochs: int
    batch: int = 10
    rate: float = 0.05
    model_settings: dict[str, Any] = field(default_factory=dict)
    clusters: int = 1  # S, and how many distributions the data comes from; k of k-FED
    share: float = 1.0  # of a client's points that come from its main distribution
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    degree: float | None = None  # of the graph; None: a server
    cuda_only: bool = False  # too long for a CPU, unless asked for by name
    floor: bool = False  # is it compared with what the device could do at most?
    tolerance: float = (
        0.05  # how far losses may be apart, relative to the usual loop's: shuffles and draws differ
    )

    @property
    def steps(self) -> int | None:
        """Client-steps in a round; None where draws decide, so that they are counted."""
        if self.algorithm not in ("fedavg", "ifca"):
            return None
        return self.clients * self.epochs * -(-self.points // self.batch)

    def build(self) -> nn.Module:
        return build(self.model, self.shape, self.outputs, **self.model_settings)()

    def named(self) -> dict[str, Any]:
        """For a player, or for the report."""
        return {name: value for name, value in asdict(self).items() if name not in ("cuda_only", "floor")}


def _mlp(algorithm: str, clients: int = 100, points: int = 150, epochs: int = 1, **other: Any) -> Workload:
    """MLP 784-200-10."""
    hidden = {"hidden": (200,)}
    return Workload(algorithm, "mlp", (784,), 10, clients, points, epochs, model_settings=hidden, **other)


def _letters(clients: int, **other: Any) -> Workload:
    return Workload("fedavg", "fedsoft_letters", (1, 28, 28), 26, clients, 50, 1, **other)


def _linear(clients: int) -> Workload:
    return Workload("fedavg", "linear", (10,), 1, clients, 150, 5, rate=0.01, tolerance=0.01)


WORKLOADS = {
    "linear, 100 clients": _linear(100),
    "linear, 1000 clients": _linear(1000),
    "MLP": _mlp("fedavg", epochs=5),
    "CNN": _letters(20),
    "CIFAR CNN": Workload("fedavg", "fedspd_cifar", (3, 32, 32), 10, 10, 20, 1, rate=0.01),
    "IFCA, S = 4": _mlp("ifca", clusters=4),
    "FedSoft, S = 2": _mlp(
        "fedsoft", clusters=2, share=0.7, settings={"pull": 0.1, "draws": 60, "refresh": 2}
    ),
    "FedSPD, N = 100": _mlp("fedspd", clusters=2, share=0.7, degree=6.0),
    "k-FED, d = 100, k = 64": Workload(
        "kfed", "", (100,), 0, 40, 400, 0, clusters=64, settings={"starts": 10}
    ),
    "MLP, 1000 clients": _mlp("fedavg", 1000, 50, cuda_only=True, floor=True),
    "CNN, 1000 clients": _letters(1000, cuda_only=True, floor=True),
}
