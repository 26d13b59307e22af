"""The algorithms. To add one: write its file, and name it here."""

from coterie.algorithms.cfl import CFL
from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.fedem import FedEM
from coterie.algorithms.fedprox import FedProx
from coterie.algorithms.fedsoft import FedSoft
from coterie.algorithms.fedspd import FedSPD
from coterie.algorithms.fesem import FeSEM
from coterie.algorithms.hypcluster import HypCluster
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.local import Local
from coterie.algorithms.oneshot import OneShot
from coterie.algorithms.pfedme import pFedMe
from coterie.algorithms.plus import FedAvgPlus, FedProxPlus
from coterie.algorithms.wecfl import WeCFL
from coterie.protocol.algorithm import Algorithm

_KINDS: tuple[type[Algorithm], ...] = (
    Local,
    FedAvg,
    FedProx,
    FedAvgPlus,
    FedProxPlus,
    IFCA,
    HypCluster,
    FeSEM,
    WeCFL,
    OneShot,
    CFL,
    FedEM,
    pFedMe,
    FedSoft,
    FedSPD,
)
ALGORITHMS: dict[str, type[Algorithm]] = {kind.title(): kind for kind in _KINDS}

__all__ = [
    "ALGORITHMS",
    "CFL",
    "IFCA",
    "Algorithm",
    "FeSEM",
    "FedAvg",
    "FedAvgPlus",
    "FedEM",
    "FedProx",
    "FedProxPlus",
    "FedSPD",
    "FedSoft",
    "HypCluster",
    "Local",
    "OneShot",
    "WeCFL",
    "pFedMe",
]
