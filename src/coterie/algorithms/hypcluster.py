from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.algorithms.ifca import IFCA


@dataclass(frozen=True)
class HypCluster(IFCA):
    """The same choice by loss, weighted by data. Mansour et al., 2020, Algorithm 1.

    Sent: the center I chose, my row trained from it, how many points I have. Kept: nothing.
    Choice: the paper optimises each cluster's pooled loss by any method; we average rows by size, as FedAvg does.
    Initialisation: `clients` at a server and `sketch` over a graph; the paper's own is `random`.
    """

    weights: Literal["equal", "size"] = "size"  # of clients in the mean: all alike, or n_k

    bibtex: ClassVar[str] = """@article{mansour2020three,
  title={Three Approaches for Personalization with Applications to Federated Learning},
  author={Mansour, Yishay and Mohri, Mehryar and Ro, Jae and Suresh, Ananda Theertha},
  journal={arXiv preprint arXiv:2002.10619},
  year={2020}
}"""
