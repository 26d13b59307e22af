"""Images given by class: Dirichlet shares, or a few classes each, of clients or of clusters of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.data.partitions import assign
from coterie.data.partitions.distributions import Distributions
from coterie.data.partitions.mixtures import components, counts
from coterie.data.partitions.settings import Partition
from coterie.data.partitions.sizes import Side, mixture_of, sizes_of, weight_of
from coterie.errors import SettingError, require
from coterie.prng import numpy_generator

_TRIES = 1000  # draws of class shares until every client has something on both sides


def by_class(
    settings: Partition,
    distributions: Distributions,
    clients: int,
    rngs: Sequence[np.random.Generator],
    seed: int,
) -> list[Side]:
    """Points by class; a cluster of clients with classes in common is a distribution."""
    clusters = _clusters(settings, clients)
    groups = [(clusters == s).nonzero().flatten() for s in range(int(clusters.max()) + 1)]
    labels = [pool.y[0] for pool in (distributions.train, distributions.test)]
    stocks = [[(y == label).nonzero().flatten() for label in range(distributions.n_classes)] for y in labels]
    held = _class_counts(settings, stocks, groups, clients, seed)
    mixture = None if settings.clustered else mixture_of(settings, distributions, clients, seed)
    sides = []
    for pool, whole, stock, rng in zip(
        (distributions.train, distributions.test), held, stocks, rngs, strict=False
    ):
        cell, offset = components(whole, rng)
        if mixture is None:
            component = clusters.repeat_interleave(whole.sum(1))
        else:
            component, _ = components(counts(mixture, whole.sum(1)), rng)
        sides.append(Side(pool, cell, component, offset, stock))
    return sides


def _clusters(settings: Partition, clients: int) -> Tensor:
    """(client,) whose classes are drawn together; clusters take turns."""
    if not settings.clustered:
        return torch.zeros(clients, dtype=torch.long)
    said = f"a number of clusters from 1 to {clients}, the number of clients, as there are two values"
    require(
        settings.clusters is not None and settings.clusters <= clients, "clusters", settings.clusters, said
    )
    return torch.arange(clients) % (settings.clusters or 1)


def _class_counts(
    settings: Partition, stocks: Sequence[Sequence[Tensor]], groups: Sequence[Tensor], clients: int, seed: int
) -> list[Tensor]:
    """(client, class) of each side, drawn until every client has something on both."""
    rng, weight = numpy_generator(seed, "classes"), weight_of(settings, clients, seed)
    stock = [torch.tensor([len(s) for s in side]) for side in stocks]
    sizes = sizes_of(settings, weight, int(stock[1].sum()) / int(stock[0].sum()), seed)
    _check_class_numbers(settings, len(stock[0]))
    for _ in range(_TRIES):
        share = _shares(settings, groups, len(stock[0]), sizes[0] is None, rng)
        if not (share.sum(1) > 0).all():  # a client that has none of its cluster's classes
            continue
        held = [
            assign.divided(share * weight[:, None], have)
            if size is None
            else counts(share / share.sum(1, keepdim=True), size)
            for have, size in zip(stock, sizes, strict=False)
        ]
        if all((side.sum(1) > 0).all() for side in held):
            return held
    key = "alpha" if settings.alpha is not None else "classes"
    raise SettingError(
        key,
        f"is {getattr(settings, key)!r}, which left one of {clients} clients without images in each of {_TRIES} draws; "
        "allowed is a larger value, fewer clients, or train_points for each",
    )


def _shares(
    settings: Partition, groups: Sequence[Tensor], classes: int, divide: bool, rng: np.random.Generator
) -> Tensor:
    if settings.alpha is not None:
        return assign.dirichlet(groups, classes, settings.alpha, divide, rng)
    return assign.n_class(
        groups, classes, settings.classes or 1, settings.class_holders or "even", divide, rng
    )


def _check_class_numbers(settings: Partition, classes: int) -> None:
    if settings.classes is None:
        return
    outer, inner = settings.classes if isinstance(settings.classes, tuple) else (classes, settings.classes)
    allowed = f"at most {classes}, the number of classes, and for a client at most those of its cluster"
    require(inner <= outer <= classes, "classes", settings.classes, allowed)
