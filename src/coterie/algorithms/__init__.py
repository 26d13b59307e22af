"""The algorithms. To add one: write its file, and name it here."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a file is imported when its algorithm is first used; users see them in this order
    # isort: off
    from coterie.algorithms.local import Local as Local
    from coterie.algorithms.fedavg import FedAvg as FedAvg
    from coterie.algorithms.fedprox import FedProx as FedProx
    from coterie.algorithms.plus import FedAvgPlus as FedAvgPlus
    from coterie.algorithms.plus import FedProxPlus as FedProxPlus
    from coterie.algorithms.ifca import IFCA as IFCA
    from coterie.algorithms.hypcluster import HypCluster as HypCluster
    from coterie.algorithms.fesem import FeSEM as FeSEM
    from coterie.algorithms.wecfl import WeCFL as WeCFL
    from coterie.algorithms.oneshot import OneShot as OneShot
    from coterie.algorithms.corners import Corners as Corners
    from coterie.algorithms.cfl import CFL as CFL
    from coterie.algorithms.fedem import FedEM as FedEM
    from coterie.algorithms.pfedme import pFedMe as pFedMe
    from coterie.algorithms.fedsoft import FedSoft as FedSoft
    from coterie.algorithms.fedspd import FedSPD as FedSPD

    # isort: on
    from coterie.algorithms.registry import ALGORITHMS as ALGORITHMS
    from coterie.protocol.algorithm import Algorithm as Algorithm
else:
    from coterie import lazy

    __getattr__, __dir__, __all__ = lazy.door(__name__)
