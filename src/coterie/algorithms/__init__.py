"""The algorithms. To add one: write its file, and name it here."""

from coterie.algorithms.algorithm import Algorithm
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.fedsoft import FedSoft
from coterie.algorithms.fedspd import FedSPD
from coterie.algorithms.local import Local

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.title(): kind for kind in (Local, FedAvg, FedProx, FedSoft, FedSPD)
}

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "FedProx", "FedSPD", "FedSoft", "Local"]
