from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.algorithms.wecfl import WeCFL
from coterie.engine.rows import Part


@dataclass(frozen=True)
class FeSEM(WeCFL):
    """Hard clusters by k-means on whole models, all clients alike. Xie et al., 2021 (eq. 2 of WeCFL).

    Sent: my row and how many points I have. Kept: nothing.
    Initialisation: `random`, of which it takes one model for all.
    It is WeCFL with equal weights on all parameters; the choices are stated there.
    """

    weights: Literal["size", "equal"] = "equal"  # of clients, in clustering and mean
    represent: Part = (
        "all"  # what of a row is clustered: all parameters, dense layers, the last dense weights
    )

    bibtex: ClassVar[str] = """@article{xie2021multi,
  title={Multi-Center Federated Learning},
  author={Xie, Ming and Long, Guodong and Shen, Tao and Zhou, Tianyi and Wang, Xianzhi and Jiang, Jing
    and Zhang, Chengqi},
  journal={arXiv preprint arXiv:2108.08647},
  year={2021}
}"""
