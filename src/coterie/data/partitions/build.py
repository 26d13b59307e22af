"""Partitioning: from a source and settings to every client's points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Federation, Points
from coterie.data.partitions import assign
from coterie.data.partitions.by_class import by_class
from coterie.data.partitions.by_mixture import by_mixture
from coterie.data.partitions.by_owner import by_owner
from coterie.data.partitions.distributions import Distributions, distributions_of
from coterie.data.partitions.settings import Partition
from coterie.data.partitions.sizes import Side
from coterie.data.partitions.transforms import Pool
from coterie.data.sources.source import Source
from coterie.errors import SettingError
from coterie.memory import require_memory
from coterie.prng import numpy_generator

_CLIENTS = 100
_SIDES = ("training images", "test images")


def partition(source: Source, seed: int = 0, **settings: Any) -> Federation:
    """A source partitioned among clients; the settings are those of `Partition`."""
    return partitioned(source, Partition(**settings), seed)


def partitioned(source: Source, settings: Partition, seed: int = 0) -> Federation:
    """The same, with settings that are checked already."""
    images = len(source.y_train) + len(source.y_test)
    require_memory(8 * images * (settings.clusters or 1), "the images of all distributions")
    distributions = distributions_of(settings, source, seed)
    _check_kinds(settings, source, distributions)
    rngs = [numpy_generator(seed, side) for side in _SIDES]
    ids: tuple[str, ...]
    if settings.by_owner:
        ids, sides = by_owner(settings, source, distributions, rngs, seed)
    else:
        clients = _clients(settings, distributions)
        _check_memory(settings, clients, len(distributions.train.parts))
        ids = tuple(map(str, range(clients)))
        make = by_class if settings.by_class else by_mixture
        sides = make(settings, distributions, clients, rngs, seed)
    for which, side in enumerate(sides):
        _check_some(side, ids, which)
        if not settings.by_owner:
            _check_stock(settings, side, which)
    points = [_points(settings, side, rng) for side, rng in zip(sides, rngs, strict=False)]
    text = source.y_train.ndim > 1
    return Federation(
        ids=ids,
        train=points[0],
        test=points[1] if len(points) > 1 else None,
        task="next-character" if text else "classification",
        n_outputs=distributions.n_classes,
        names=distributions.classes,
        distributions=_of_clusters(settings, points)
        if settings.clustered
        else _of_distributions(distributions.test),
        normalise=source.normalise,
        augment=settings.augment,
    )


def _clients(settings: Partition, distributions: Distributions) -> int:
    if settings.clients is None and settings.m0 is not None and settings.per_client is not None:
        return max(1, settings.m0 * len(distributions.train.parts) // settings.per_client)
    return _CLIENTS if settings.clients is None else settings.clients


def _check_memory(settings: Partition, clients: int, distributions: int) -> None:
    most = (
        settings.train_points if isinstance(settings.train_points, tuple) else (settings.train_points or 1,)
    )
    points = clients * (max(most) + (settings.test_points or 0))
    require_memory(16 * points + 8 * clients * distributions, "the points of all clients")


def _check_kinds(settings: Partition, source: Source, distributions: Distributions) -> None:
    """Refuse ways of cutting up that this source, or its distributions, cannot have."""
    divided = max(distributions.train.parts) > 0
    for key in ("alpha", "classes", "by_owner"):
        if not getattr(settings, key):
            continue
        allowed = "is {!r}; allowed is {} with distributions that show the same images: rotate, relabel, permute, none"
        if divided or (settings.clustered and settings.names):
            which = allowed if divided else "is {!r}; allowed is {} of two values without distributions"
            raise SettingError(key, which.format(getattr(settings, key), key))
        if key != "by_owner" and source.y_train.ndim > 1:
            raise SettingError(
                key, f"is {getattr(settings, key)!r}; allowed is none for texts, which have no classes"
            )


def _points(settings: Partition, side: Side, rng: np.random.Generator) -> Points:
    """An image for every point, shown and called as its distribution says."""
    image = assign.draw(settings.draw, side.cell, side.offset, side.stocks, side.pool.y[0], rng)
    shown = side.component if len(side.pool.parts) > 1 else torch.zeros_like(side.component)
    at, y = torch.empty_like(image), side.pool.y[0].new_empty((len(image), *side.pool.y[0].shape[1:]))
    for s in range(len(side.pool.parts)):
        mine = shown == s
        at[mine], y[mine] = side.pool.at[s][image[mine]], side.pool.y[s][image[mine]]
    return Points(side.pool.x, at, y, side.offset, side.component)


def _check_some(side: Side, ids: Sequence[str], which: int) -> None:
    """Every client has something to train on and to be tested on."""
    empty = (side.offset.diff() == 0).nonzero().flatten()
    if len(empty):
        raise SettingError(
            "clients",
            f"is {len(ids)}, which leaves client {ids[int(empty[0])]!r} without {_SIDES[which]}; "
            "allowed is fewer clients, or more even sizes",
        )


def _check_stock(settings: Partition, side: Side, which: int) -> None:
    """Refuse to give more images than there are."""
    key, kind = ("train_points", "training") if which == 0 else ("test_points", "test")
    stock = torch.tensor([len(images) for images in side.stocks])
    owner = torch.arange(len(side.offset) - 1).repeat_interleave(side.offset.diff())
    asked = side.cell.bincount(minlength=len(stock))
    if settings.draw == "shared":
        each = (owner * len(stock) + side.cell).bincount(minlength=(int(owner.max()) + 1) * len(stock))
        asked = each.view(-1, len(stock)).amax(0)
    elif settings.draw == "replace":
        asked = asked.clamp(max=1)
    short = (asked > stock).nonzero().flatten()
    if len(short):
        cell = int(short[0])
        what = f"class {cell} of the {kind} images" if settings.by_class else f"the {kind} images"
        allowed = f"at most the {int(stock[cell])} that there are"
        hint = "; draw = 'shared' lets several clients have an image" if settings.draw == "once" else ""
        raise SettingError(
            key,
            f"is {getattr(settings, key)!r}, which asks for {int(asked[cell])} of {what}; allowed is {allowed}{hint}",
        )


def _of_distributions(pool: Pool) -> Points:
    """All test images of each distribution, which are indices into the store of the test side."""
    images = [pool.stock(part) for part in pool.parts]
    at = torch.cat([rows[image] for rows, image in zip(pool.at, images, strict=True)])
    y = torch.cat([names[image] for names, image in zip(pool.y, images, strict=True)])
    return Points(pool.x, at, y, _offset([len(image) for image in images]))


def _of_clusters(settings: Partition, sides: Sequence[Points]) -> Points | None:
    """The test points of each cluster's clients."""
    if len(sides) == 1 or sides[1].component is None:
        return None
    test = sides[1]
    order = sides[1].component.argsort(stable=True)
    sizes = sides[1].component.bincount(minlength=settings.clusters or 1)
    return Points(test.x, test.at[order], test.y[order], _offset(sizes.tolist()))


def _offset(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(sizes).tolist()])
