"""Dealing out: from settings and images to every client's points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.data import partitions
from coterie.data.distributions import Pool
from coterie.data.draws import generator
from coterie.data.hidden import Hidden
from coterie.data.patterns import components, counts, mixes_two, mixtures, structured
from coterie.data.source import Source
from coterie.errors import CoterieError, SettingError, require
from coterie.federation import Federation, Points

if TYPE_CHECKING:
    from coterie.data.deal import Deal

_CLIENTS = 100
_TRIES = 1000  # draws of class shares until every client has something on both sides
_SIDES = ("training images", "test images")


class Side(NamedTuple):
    """What one side needs: points, each from a cell (a part, a class, an owner) of the images."""

    pool: Pool
    cell: Tensor  # (point,)
    component: Tensor  # (point,) the distribution
    offset: Tensor  # (client + 1,)
    stocks: Sequence[Tensor]  # the images of each cell


def dealt(deal: Deal, source: Source, hidden: Hidden, seed: int) -> Federation:
    """A federation as the settings say."""
    _check_kinds(deal, source, hidden)
    rngs = [generator(seed, side) for side in _SIDES]
    ids: tuple[str, ...]
    if deal.by_owner:
        ids, sides = _by_owner(deal, source, hidden, rngs, seed)
    else:
        clients = _CLIENTS if deal.clients is None else deal.clients
        ids = tuple(map(str, range(clients)))
        make = _by_class if deal.by_class else _mixed
        sides = make(deal, hidden, clients, rngs, seed)
    for which, side in enumerate(sides):
        _check_stock(deal, side, which)
    points = [_points(deal, side, rng) for side, rng in zip(sides, rngs, strict=False)]
    text = source.y_train.ndim > 1
    return Federation(
        ids=ids,
        train=points[0],
        test=points[1] if len(points) > 1 else None,
        task="next-character" if text else "classification",
        n_outputs=hidden.n_classes,
        classes=hidden.classes,
        distributions=_of_clusters(deal, points) if deal.clustered else _of_distributions(hidden.test),
        normalise=source.normalise,
        augment=deal.augment,
    )


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


# sizes and mixtures


def _mixture(deal: Deal, hidden: Hidden, clients: int, seed: int) -> Tensor:
    """(client, distribution). A pattern of two mixes the two of the first name, and the rest evenly."""
    n = len(hidden.train.parts)
    if deal.pattern == "structured":
        return structured(clients, n, deal.per_client or 1, deal.m0, seed)
    if len(hidden.factors) > 1 and mixes_two(deal.pattern):
        first = mixtures(deal.pattern, clients, hidden.factors[0], seed)
        rest = n // hidden.factors[0]
        return first.repeat_interleave(rest, 1) / rest
    return mixtures(deal.pattern, clients, n, seed)


def _sizes(deal: Deal, weight: Tensor, ratio: float, seed: int) -> list[Tensor | None]:
    """(client,) points of each side; None: all that there is. There may be no test side."""
    train: Tensor | None = None
    if isinstance(deal.train_points, tuple):
        drawn = generator(seed, "sizes").integers(*deal.train_points, endpoint=True, size=len(weight))
        train = torch.from_numpy(drawn)
    elif deal.train_points is not None:
        train = (weight * deal.train_points).round().long().clamp(min=1)
    if deal.test_points == 0:
        return [train]
    if deal.test_points is not None:
        return [train, torch.full((len(weight),), deal.test_points)]
    return [train, None if train is None else (train * ratio).round().long().clamp(min=1)]


def _weight(deal: Deal, clients: int, seed: int) -> Tensor:
    return partitions.weights(clients, deal.imbalance, deal.power_law, generator(seed, "weights"))


# whatever their class


def _mixed(
    deal: Deal, hidden: Hidden, clients: int, rngs: Sequence[np.random.Generator], seed: int
) -> list[Side]:
    mixture, weight = _mixture(deal, hidden, clients, seed), _weight(deal, clients, seed)
    ratio = len(hidden.test.part) / len(hidden.train.part)
    sides = []
    for pool, sizes, rng in zip(
        (hidden.train, hidden.test), _sizes(deal, weight, ratio, seed), rngs, strict=False
    ):
        parts = torch.tensor(pool.parts)
        stocks = [pool.stock(part) for part in range(int(parts.max()) + 1)]
        stock = torch.tensor([len(s) for s in stocks])
        if deal.pattern == "iid":
            whole = _iid(deal, mixture, weight, sizes, parts, stock, rng)
        elif sizes is not None:
            whole = counts(mixture, sizes)
        elif deal.pattern == "structured":
            whole = partitions.divided((mixture > 0) * weight[:, None], _of_each(parts, stock))
        else:
            whole = partitions.filled(mixture, weight, parts, stock)
        component, offset = components(whole, rng)
        sides.append(Side(pool, parts[component], component, offset, stocks))
    return sides


def _of_each(parts: Tensor, stock: Tensor) -> Tensor:
    """(distribution,) images of each, where those of the same part share its stock."""
    sharing = parts == torch.arange(len(stock))[:, None]  # (part, distribution)
    return counts(sharing.double() / sharing.sum(1, keepdim=True), stock).sum(0)


def _iid(
    deal: Deal,
    mixture: Tensor,
    weight: Tensor,
    sizes: Tensor | None,
    parts: Tensor,
    stock: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """(client, distribution): what comes of giving images away with no regard to their distribution."""
    if sizes is None:
        sizes = counts((weight / weight.sum())[None], stock.sum()[None])[0]
    every = torch.arange(len(parts)).repeat_interleave(_of_each(parts, stock)).numpy()
    total = int(sizes.sum())
    fits = deal.draw == "once" and total <= len(every)  # if not, that is refused when images are looked for
    component = torch.from_numpy(rng.permutation(every)[:total] if fits else rng.choice(every, total))
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    return (owner * len(parts) + component).bincount(minlength=mixture.numel()).view_as(mixture)


# by class


def _by_class(
    deal: Deal, hidden: Hidden, clients: int, rngs: Sequence[np.random.Generator], seed: int
) -> list[Side]:
    clusters = _clusters(deal, hidden, clients)
    groups = [(clusters == s).nonzero().flatten() for s in range(int(clusters.max()) + 1)]
    labels = [pool.y[0] for pool in (hidden.train, hidden.test)]
    stocks = [[(y == label).nonzero().flatten() for label in range(hidden.n_classes)] for y in labels]
    held = _class_counts(deal, stocks, groups, clients, seed)
    mixture = None if deal.clustered else _mixture(deal, hidden, clients, seed)
    sides = []
    for pool, whole, stock, rng in zip((hidden.train, hidden.test), held, stocks, rngs, strict=False):
        cell, offset = components(whole, rng)
        if mixture is None:
            component = clusters.repeat_interleave(whole.sum(1))
        else:
            component, _ = components(counts(mixture, whole.sum(1)), rng)
        sides.append(Side(pool, cell, component, offset, stock))
    return sides


def _clusters(deal: Deal, hidden: Hidden, clients: int) -> Tensor:
    """(client,) whose classes are drawn together; clusters take turns."""
    if not deal.clustered:
        return torch.zeros(clients, dtype=torch.long)
    said = f"a number of clusters from 1 to {clients}, the number of clients, as there are two values"
    require(deal.clusters is not None and deal.clusters <= clients, "clusters", deal.clusters, said)
    return torch.arange(clients) % (deal.clusters or 1)


def _class_counts(
    deal: Deal, stocks: Sequence[Sequence[Tensor]], groups: Sequence[Tensor], clients: int, seed: int
) -> list[Tensor]:
    """(client, class) of each side, drawn until every client has something on both."""
    rng, weight = generator(seed, "classes"), _weight(deal, clients, seed)
    stock = [torch.tensor([len(s) for s in side]) for side in stocks]
    sizes = _sizes(deal, weight, int(stock[1].sum()) / int(stock[0].sum()), seed)
    _check_class_numbers(deal, len(stock[0]))
    for _ in range(_TRIES):
        share = _shares(deal, groups, len(stock[0]), sizes[0] is None, rng)
        held = [
            partitions.divided(share * weight[:, None], have)
            if size is None
            else counts(share / share.sum(1, keepdim=True), size)
            for have, size in zip(stock, sizes, strict=False)
        ]
        if all((side.sum(1) > 0).all() for side in held):
            return held
    key = "alpha" if deal.alpha is not None else "classes"
    raise SettingError(
        key,
        f"is {getattr(deal, key)!r}, which left one of {clients} clients without images in each of {_TRIES} draws; "
        "allowed is a larger value, fewer clients, or train_points for each",
    )


def _shares(
    deal: Deal, groups: Sequence[Tensor], classes: int, divide: bool, rng: np.random.Generator
) -> Tensor:
    if deal.alpha is not None:
        return partitions.dirichlet(groups, classes, deal.alpha, divide, rng)
    return partitions.n_class(groups, classes, deal.classes or 1, rng)


def _check_class_numbers(deal: Deal, classes: int) -> None:
    if deal.classes is None:
        return
    outer, inner = deal.classes if isinstance(deal.classes, tuple) else (classes, deal.classes)
    allowed = f"at most {classes}, the number of classes, and for a client at most those of its cluster"
    require(inner <= outer <= classes, "classes", deal.classes, allowed)


# by owner


def _by_owner(
    deal: Deal, source: Source, hidden: Hidden, rngs: Sequence[np.random.Generator], seed: int
) -> tuple[tuple[str, ...], list[Side]]:
    """Every client is a writer or a role that has images on both sides."""
    owners = [source.owner_train, source.owner_test][: 1 if deal.test_points == 0 else 2]
    if not source.owners or any(owner is None for owner in owners):
        raise SettingError(
            "by_owner", f"is True; allowed is that for a source with owners, not {source.name}"
        )
    have = [owner.bincount(minlength=len(source.owners)) for owner in owners if owner is not None]
    full = (torch.stack(have) > 0).all(0).nonzero().flatten()
    clients = len(full) if deal.clients is None else deal.clients
    known = f"1 to {len(full)}, the owners with images to train on and to be tested on"
    require(1 <= clients <= len(full), "clients", clients, known)
    chosen = np.sort(generator(seed, "owners").choice(full.numpy(), clients, replace=False))
    held = _owned(deal, [each[torch.from_numpy(chosen)] for each in have])
    mixture = _mixture(deal, hidden, clients, seed)
    sides = []
    for pool, owner, sizes, rng in zip((hidden.train, hidden.test), owners, held, rngs, strict=False):
        assert owner is not None
        order = owner.argsort(stable=True).split(owner.bincount(minlength=len(source.owners)).tolist())
        cell = torch.arange(clients).repeat_interleave(sizes)
        component, offset = components(counts(mixture, sizes), rng)
        sides.append(Side(pool, cell, component, offset, [order[k] for k in chosen]))
    return tuple(source.owners[k] for k in chosen), sides


def _owned(deal: Deal, have: Sequence[Tensor]) -> list[Tensor]:
    """(client,) points of each side: all of the owner's, or at most so many."""
    most = deal.train_points
    require(not isinstance(most, tuple), "train_points", most, "the most points of an owner, one number")
    train = have[0] if not isinstance(most, int) else have[0].clamp(max=most)
    if len(have) == 1:
        return [train]
    if deal.test_points is not None:
        return [train, have[1].clamp(max=deal.test_points)]
    return [train, (have[1] * (train / have[0])).ceil().long()]


# points


def _points(deal: Deal, side: Side, rng: np.random.Generator) -> Points:
    image = partitions.draw(deal.draw, side.cell, side.offset, side.stocks, side.pool.y[0], rng)
    shown = side.component if len(side.pool.parts) > 1 else torch.zeros_like(side.component)
    at, y = torch.empty_like(image), side.pool.y[0].new_empty((len(image), *side.pool.y[0].shape[1:]))
    for s in range(len(side.pool.parts)):
        mine = shown == s
        at[mine], y[mine] = side.pool.at[s][image[mine]], side.pool.y[s][image[mine]]
    return Points(side.pool.x, at, y, side.offset, side.component)


def _check_stock(deal: Deal, side: Side, which: int) -> None:
    """Refuse to give more images than there are."""
    key, kind = ("train_points", "training") if which == 0 else ("test_points", "test")
    stock = torch.tensor([len(images) for images in side.stocks])
    owner = torch.arange(len(side.offset) - 1).repeat_interleave(side.offset.diff())
    asked = side.cell.bincount(minlength=len(stock))
    if deal.draw == "shared":
        own, each = (owner * len(stock) + side.cell).unique(return_counts=True)
        asked = torch.zeros_like(stock).scatter_reduce(0, own % len(stock), each, "amax")
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
