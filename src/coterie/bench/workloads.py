"""What is measured: an algorithm on a model and data, all made from a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from coterie.models import build


@dataclass(frozen=True)
class Workload:
    """One line of the comparison."""

    title: str
    algorithm: str  # fedavg, ifca, fedsoft, fedspd, kfed
    model: str  # one of coterie's
    shape: tuple[int, ...]  # of an input
    outputs: int  # classes; 1: a regression
    clients: int
    points: int  # of each client
    epochs: int
    batch_size: int = 10
    learning_rate: float = 0.05
    model_settings: dict[str, Any] = field(default_factory=dict)
    clusters: int = 1  # S, and how many distributions the data comes from; k of k-FED
    share: float = 1.0  # of a client's points that come from its main distribution
    settings: dict[str, Any] = field(default_factory=dict)  # of the algorithm
    degree: float | None = None  # of the graph; None: a server
    cuda_only: bool = False  # too long for a CPU, unless asked for by name
    roofline: bool = False  # is it compared with what the device could do at most?
    rounds_per_repeat: int = 1  # several where they are so short that waking up would take much of one
    tolerance: float = 0.1  # how far losses may differ at the end: a share of how far the usual loop's fell

    @property
    def steps(self) -> int | None:
        """Client-steps in a round; None where draws decide, so that they are counted."""
        if self.algorithm not in ("fedavg", "ifca"):
            return None
        return self.clients * self.epochs * -(-self.points // self.batch_size)

    def build(self) -> nn.Sequential:
        model = build(self.model, self.shape, self.outputs, **self.model_settings)()
        assert isinstance(
            model, nn.Sequential
        )  # so that baselines in other frameworks can be given its layers
        return model

    def named(self) -> dict[str, Any]:
        """For a baseline, or for the report."""
        return {name: value for name, value in asdict(self).items() if name not in ("cuda_only", "roofline")}


def _linear(title: str, clients: int, rounds_per_repeat: int = 1) -> Workload:
    return Workload(
        title,
        "fedavg",
        "linear",
        (10,),
        1,
        clients,
        150,
        5,
        learning_rate=0.002,
        rounds_per_repeat=rounds_per_repeat,
        tolerance=0.003,
    )


def _mlp(
    title: str, algorithm: str, clients: int = 100, points: int = 150, epochs: int = 1, **other: Any
) -> Workload:
    """784-200-10."""
    hidden = {"hidden": (200,)}
    return Workload(
        title, algorithm, "mlp", (784,), 10, clients, points, epochs, model_settings=hidden, **other
    )


def _letters(title: str, clients: int, points: int = 50, **other: Any) -> Workload:
    """FedSoft's model of letters."""
    return Workload(
        title, "fedavg", "fedsoft_letters", (1, 28, 28), 26, clients, points, 1, learning_rate=0.1, **other
    )


def _cifar(title: str, clients: int, **other: Any) -> Workload:
    """FedSPD's model of CIFAR, with batch norm."""
    return Workload(title, "fedavg", "fedspd_cifar", (3, 32, 32), 10, clients, 20, 1, **other)


def _small(title: str, model: str, clients: int, points: int = 50, **other: Any) -> Workload:
    shape = (3, 32, 32) if model == "small_cifar_cnn" else (1, 28, 28)
    return Workload(title, "fedavg", f"coterie.bench.models:{model}", shape, 10, clients, points, 1, **other)


def _kfed(title: str) -> Workload:
    """The second row of k-FED's Table 1."""
    return Workload(title, "kfed", "", (100,), 0, 40, 400, 0, clusters=64, settings={"n_init": 10})


_FEDSOFT = {"pull": 0.1, "draws": 60, "refresh": 2}
WORKLOADS = {
    "linear": _linear("linear, 100 clients", 100, rounds_per_repeat=5),
    "linear-1000": _linear("linear, 1000 clients", 1000),
    "mlp": _mlp("MLP, 100 clients", "fedavg", epochs=5),
    "cnn": _letters("CNN, 20 clients", 20),
    "cifar": _cifar("CIFAR CNN, 10 clients", 10),
    "ifca": _mlp("IFCA, S = 4, MLP", "ifca", clusters=4),
    "fedsoft": _mlp("FedSoft, S = 2, MLP", "fedsoft", clusters=2, share=0.7, settings=_FEDSOFT),
    "fedspd": _mlp("FedSPD, N = 100, MLP", "fedspd", clusters=2, share=0.7, degree=6.0),
    "kfed": _kfed("k-FED, d = 100, k = 64"),
    "small-cnn": _small("small CNN, 20 clients", "small_cnn", 20),
    "small-cifar": _small("small CIFAR CNN, 20 clients", "small_cifar_cnn", 20),
    "cnn-100": _letters("CNN, 100 clients", 100, 150, cuda_only=True),
    "cifar-100": _cifar("CIFAR CNN, 100 clients", 100, cuda_only=True),
    "small-cnn-100": _small("small CNN, 100 clients", "small_cnn", 100, 150, cuda_only=True),
    "small-cifar-100": _small("small CIFAR CNN, 100 clients", "small_cifar_cnn", 100, 150, cuda_only=True),
    "mlp-1000": _mlp("MLP, 1000 clients", "fedavg", 1000, epochs=5, cuda_only=True, roofline=True),
    "cnn-1000": _letters("CNN, 1000 clients", 1000, 150, cuda_only=True, roofline=True),
    "small-cnn-1000": _small(
        "small CNN, 1000 clients", "small_cnn", 1000, 150, cuda_only=True, roofline=True
    ),
}
