"""Dealing out: from settings and images to every client's points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coterie.data.draws import generator
from coterie.data.federation import Federation, Points
from coterie.data.partition import assign
from coterie.data.partition.by_class import by_class
from coterie.data.partition.by_mixture import by_mixture
from coterie.data.partition.by_owner import by_owner
from coterie.data.partition.distributions import Hidden
from coterie.data.partition.sizes import Side
from coterie.data.partition.transforms import Pool
from coterie.data.sources.source import Source
from coterie.errors import SettingError

if TYPE_CHECKING:
    from coterie.data.partition.settings import Deal

_CLIENTS = 100
_SIDES = ("training images", "test images")


def dealt(deal: Deal, source: Source, hidden: Hidden, seed: int) -> Federation:
    """A federation as the settings say."""
    _check_kinds(deal, source, hidden)
    rngs = [generator(seed, side) for side in _SIDES]
    ids: tuple[str, ...]
    if deal.by_owner:
        ids, sides = by_owner(deal, source, hidden, rngs, seed)
    else:
        clients = _clients(deal, hidden)
        ids = tuple(map(str, range(clients)))
        make = by_class if deal.by_class else by_mixture
        sides = make(deal, hidden, clients, rngs, seed)
    for which, side in enumerate(sides):
        _check_some(deal, side, ids, which)
        if not deal.by_owner:
            _check_stock(deal, side, which)
    points = [_points(deal, side, rng) for side, rng in zip(sides, rngs, strict=False)]
    text = source.y_train.ndim > 1
    return Federation(
        ids=ids,
        train=points[0],
        test=points[1] if len(points) > 1 else None,
        task="next-character" if text else "classification",
        n_outputs=hidden.n_classes,
        names=hidden.classes,
        distributions=_of_clusters(deal, points) if deal.clustered else _of_distributions(hidden.test),
        normalise=source.normalise,
        augment=deal.augment,
    )


def _clients(deal: Deal, hidden: Hidden) -> int:
    if deal.clients is None and deal.m0 is not None and deal.per_client is not None:
        return max(1, deal.m0 * len(hidden.train.parts) // deal.per_client)
    return _CLIENTS if deal.clients is None else deal.clients


def _check_kinds(deal: Deal, source: Source, hidden: Hidden) -> None:
    """Refuse ways of cutting up that this source, or its distributions, cannot have."""
    divided = max(hidden.train.parts) > 0
    for key in ("alpha", "classes", "by_owner"):
        if not getattr(deal, key):
            continue
        allowed = "is {!r}; allowed is {} with distributions that show the same images: rotate, relabel, permute, none"
        if divided or (deal.clustered and deal.names):
            which = allowed if divided else "is {!r}; allowed is {} of two values without distributions"
            raise SettingError(key, which.format(getattr(deal, key), key))
        if key != "by_owner" and source.y_train.ndim > 1:
            raise SettingError(
                key, f"is {getattr(deal, key)!r}; allowed is none for texts, which have no classes"
            )


def _points(deal: Deal, side: Side, rng: np.random.Generator) -> Points:
    """An image for every point, shown and called as its distribution says."""
    image = assign.draw(deal.draw, side.cell, side.offset, side.stocks, side.pool.y[0], rng)
    shown = side.component if len(side.pool.parts) > 1 else torch.zeros_like(side.component)
    at, y = torch.empty_like(image), side.pool.y[0].new_empty((len(image), *side.pool.y[0].shape[1:]))
    for s in range(len(side.pool.parts)):
        mine = shown == s
        at[mine], y[mine] = side.pool.at[s][image[mine]], side.pool.y[s][image[mine]]
    return Points(side.pool.x, at, y, side.offset, side.component)


def _check_some(deal: Deal, side: Side, ids: Sequence[str], which: int) -> None:
    """Every client has something to train on and to be tested on."""
    empty = (side.offset.diff() == 0).nonzero().flatten()
    if len(empty):
        raise SettingError(
            "clients",
            f"is {len(ids)}, which leaves client {ids[int(empty[0])]!r} without {_SIDES[which]}; "
            "allowed is fewer clients, or more even sizes",
        )


def _check_stock(deal: Deal, side: Side, which: int) -> None:
    """Refuse to give more images than there are."""
    key, kind = ("train_points", "training") if which == 0 else ("test_points", "test")
    stock = torch.tensor([len(images) for images in side.stocks])
    owner = torch.arange(len(side.offset) - 1).repeat_interleave(side.offset.diff())
    asked = side.cell.bincount(minlength=len(stock))
    if deal.draw == "shared":
        each = (owner * len(stock) + side.cell).bincount(minlength=(int(owner.max()) + 1) * len(stock))
        asked = each.view(-1, len(stock)).amax(0)
    elif deal.draw == "replace":
        asked = asked.clamp(max=1)
    short = (asked > stock).nonzero().flatten()
    if len(short):
        cell = int(short[0])
        what = f"class {cell} of the {kind} images" if deal.by_class else f"the {kind} images"
        allowed = f"at most the {int(stock[cell])} that there are"
        hint = "; draw = 'shared' lets several clients have an image" if deal.draw == "once" else ""
        raise SettingError(
            key,
            f"is {getattr(deal, key)!r}, which asks for {int(asked[cell])} of {what}; allowed is {allowed}{hint}",
        )


def _of_distributions(pool: Pool) -> Points:
    """All test images of each distribution, which are indices into the store of the test side."""
    images = [pool.stock(part) for part in pool.parts]
    at = torch.cat([rows[image] for rows, image in zip(pool.at, images, strict=True)])
    y = torch.cat([names[image] for names, image in zip(pool.y, images, strict=True)])
    return Points(pool.x, at, y, _offset([len(image) for image in images]))


def _of_clusters(deal: Deal, sides: Sequence[Points]) -> Points | None:
    """The test points of each cluster's clients."""
    if len(sides) == 1 or sides[1].component is None:
        return None
    test = sides[1]
    order = sides[1].component.argsort(stable=True)
    sizes = sides[1].component.bincount(minlength=deal.clusters or 1)
    return Points(test.x, test.at[order], test.y[order], _offset(sizes.tolist()))


def _offset(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(sizes).tolist()])
