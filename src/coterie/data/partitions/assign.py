"""How images are cut up among clients: by class, by size, and which image each point is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.data.partitions.mixtures import counts, drawn_alone, few
from coterie.data.partitions.settings import Count, Draw, Holders, Number
from coterie.errors import require


def weights(
    clients: int, imbalance: float | None, power_law: float | None, rng: np.random.Generator
) -> Tensor:
    """(client,) how much data a client has, 1 on average; at random who has how much."""
    if imbalance is not None:  # FedSPD, B.2.5: low, average and high, of which high is r times low
        require(imbalance >= 1, "imbalance", imbalance, "a ratio of the most to the fewest points, from 1")
        levels = torch.tensor([1.0, (1 + imbalance) / 2, imbalance], dtype=torch.float64)
        each = levels[torch.arange(clients) % 3]
    elif power_law is not None:
        require(power_law >= 0, "power_law", power_law, "an exponent from 0")
        each = torch.arange(1, clients + 1, dtype=torch.float64) ** -power_law
    else:
        return torch.ones(clients, dtype=torch.float64)
    return (each / each.mean())[torch.from_numpy(rng.permutation(clients))]


# by class


def dirichlet(
    groups: Sequence[Tensor], classes: int, alpha: Number, divide: bool, rng: np.random.Generator
) -> Tensor:
    """(client, class): Dirichlet(alpha), or for clusters Dirichlet(alpha[0]) and inside them Dirichlet(alpha[1]).

    To divide the images of a class, shares are drawn over the clusters and then over a cluster's clients (WeCFL,
    section 7.1); otherwise they are drawn over the classes, a client's being its cluster's times its own.
    """
    outer, inner = alpha if isinstance(alpha, tuple) else (None, alpha)
    sizes = [len(group) for group in groups]
    over = 0 if divide else 1
    share = torch.zeros(sum(sizes), classes, dtype=torch.float64)
    cluster = _dirichlet((len(groups), classes), outer, over, rng)
    for group, of_cluster in zip(groups, cluster, strict=True):
        share[group] = of_cluster * _dirichlet((len(group), classes), inner, over, rng)
    return share


def _dirichlet(shape: tuple[int, int], alpha: float | None, over: int, rng: np.random.Generator) -> Tensor:
    """Each row (over = 1) or column (over = 0) is one draw; without alpha there is nothing to choose."""
    if alpha is None:
        return torch.ones(shape, dtype=torch.float64)
    drawn = rng.dirichlet([alpha] * shape[over], shape[1 - over])
    return torch.from_numpy(drawn if over == 1 else drawn.T.copy())


def n_class(
    groups: Sequence[Tensor],
    classes: int,
    each: Count,
    holders: Holders,
    divide: bool,
    rng: np.random.Generator,
) -> Tensor:
    """(client, class): equal shares of n classes, or of some of the n that the client's cluster has (WeCFL).

    Where every cluster and client draws its own classes, a class that is divided is so first among its clusters, all
    alike, and then among their clients, as in WeCFL's program.
    """
    outer, inner = each if isinstance(each, tuple) else (classes, each)
    who = few if holders == "even" else drawn_alone
    share = torch.zeros(sum(len(group) for group in groups), classes, dtype=torch.float64)
    for group, held in zip(groups, who(len(groups), classes, outer, rng), strict=True):
        of_cluster = held.nonzero().flatten()
        own = who(len(group), outer, inner, rng).double()
        if holders == "random" and divide:
            own = own / own.sum(0).clamp(min=1)
        share[group[:, None], of_cluster] = own
    return share


# how many


def divided(share: Tensor, stock: Tensor) -> Tensor:
    """(client, kind): all of the stock (kind,) of each kind, in the proportions of its column."""
    total = share.sum(0)
    column = torch.where(total > 0, share / total.clamp(min=torch.finfo(share.dtype).tiny), 0.0)
    return counts(column.T, torch.where(total > 0, stock, 0)).T


def filled(mixture: Tensor, weight: Tensor, part: Tensor, stock: Tensor) -> Tensor:
    """(client, distribution): as much as the stock (part,) allows when every client is to have its mixture."""
    weight = weight / weight.sum()
    demand = torch.zeros(len(stock), dtype=torch.float64).index_add_(0, part, weight @ mixture)
    total = int((stock / demand)[demand > 0].min() + 1e-9)
    while True:
        whole = counts(mixture, counts(weight[None], torch.tensor([total]))[0])
        used = torch.zeros_like(stock).index_add_(0, part, whole.sum(0))
        short = int((used - stock).max())
        if short <= 0:
            return whole
        total -= short  # rounding took a few too many


# which


def draw(
    how: Draw,
    cell: Tensor,
    offset: Tensor,
    stocks: Sequence[Tensor],
    labels: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """(point,) an image for every point, from the stock of its cell.

    once: no image is given twice; shared: no client has one twice; replace: a class uniformly, then one of its
    images uniformly, with replacement (FedSoft's letters).
    """
    image = torch.empty_like(cell)
    if how == "shared":
        for begin, end in zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True):
            own = cell[begin:end]
            for kind in sorted(set(own.tolist())):
                mine = own == kind
                chosen = rng.choice(stocks[kind].numpy(), int(mine.sum()), replace=False)
                image[begin:end][mine] = torch.from_numpy(chosen)
        return image
    points = torch.split(cell.argsort(stable=True), cell.bincount(minlength=len(stocks)).tolist())
    for stock, mine in zip(stocks, points, strict=True):
        if how == "once":
            chosen = rng.permutation(stock.numpy())[: len(mine)]
        elif len(mine):
            chosen = rng.choice(stock.numpy(), len(mine), p=_by_class(labels[stock]))
        else:
            continue
        image[mine] = torch.from_numpy(chosen)
    return image


def _by_class(labels: Tensor) -> npt.NDArray[np.float64]:
    """(image,) chances that make every class as likely as any other; texts are all alike."""
    if labels.ndim > 1:
        return np.full(len(labels), 1 / len(labels))
    rarity = 1 / labels.bincount().double()[labels].numpy()
    chances: npt.NDArray[np.float64] = rarity / rarity.sum()
    return chances
