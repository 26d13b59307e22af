"""The hidden distributions of a source: how its images look under each, on either side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.data.draws import generator
from coterie.data.partition.transforms import Pool, cases, oracle, relabel
from coterie.data.sources.source import Source
from coterie.errors import CoterieError, SettingError, require
from coterie.validation import nearest

if TYPE_CHECKING:
    from coterie.data.partition.settings import Deal

_SHOWN = ("rotate", "relabel", "permute")  # the same images in every distribution
_DIVIDED = ("case", "groups", "datasets", "oracle")  # images of its own in every distribution
_FREE = (*_SHOWN, "oracle")  # of which there may be any number of distributions
NAMES = (*_SHOWN, *_DIVIDED, "none")


@dataclass(frozen=True)
class Hidden:
    """The images under every distribution; the labels may be others than the source's."""

    train: Pool
    test: Pool
    n_classes: int
    classes: tuple[str, ...]
    factors: tuple[int, ...] = ()  # how many distributions each of the names made

    def each(self, change: Callable[[Pool], Pool], n: int) -> Hidden:
        return replace(self, train=change(self.train), test=change(self.test), factors=(*self.factors, n))

    def divide(self, train: Tensor, test: Tensor, n: int) -> Hidden:
        """By the part of every image of either side."""
        empty = [s for s in range(n) if not ((train == s).any() and (test == s).any())]
        if empty:
            raise CoterieError(
                f"distribution {empty[0]} has no images on one side; every one needs some on both"
            )
        train_pool, test_pool = self.train.divide(train, n), self.test.divide(test, n)
        return replace(self, train=train_pool, test=test_pool, factors=(*self.factors, n))


def hidden(deal: Deal, source: Source, seed: int) -> Hidden:
    """What the deal's distributions make of a source."""
    _check_names(deal)
    train, test = Pool.of(source.x_train, source.y_train), Pool.of(source.x_test, source.y_test)
    made = Hidden(train, test, source.n_classes, source.classes)
    number = _number(deal, source)
    for name in deal.names:
        made = _MAKERS[name](made, deal, source, number, seed)
    return made


def _check_names(deal: Deal) -> None:
    for name in deal.names:
        if name not in NAMES:
            allowed = f"allowed is {', '.join(NAMES)}, or a list of them"
            raise SettingError("distributions", f"is {name!r}{nearest(name, NAMES)}; {allowed}")
    one = len(deal.names) <= 1
    two = len(deal.names) == 2 and deal.names[0] in _DIVIDED[:3] and deal.names[1] in _SHOWN
    first, then = ", ".join(_DIVIDED[:3]), ", ".join(_SHOWN)
    allowed = f"one of {', '.join(NAMES)}, or a list of two: first one of {first}, then one of {then}"
    require(one or two, "distributions", deal.distributions, allowed)


def _number(deal: Deal, source: Source) -> int:
    """How many distributions the free one of the names makes."""
    free = [name for name in deal.names if name in _FREE]
    fixed = {"case": 2, "groups": len(deal.groups or (0, 1)), "datasets": len(source.owners)}
    others = math.prod(fixed[name] for name in deal.names if name in fixed)
    if not deal.names or deal.clusters is None:
        return 2
    if not free:
        require(deal.clusters == others, "clusters", deal.clusters, f"{others}, as many as there are")
        return 1
    allowed = f"a multiple of {others}" if others > 1 else "a whole number from 1"
    require(deal.clusters % others == 0, "clusters", deal.clusters, allowed)
    return deal.clusters // others


# the same images, seen or called otherwise


def _rotate(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    if made.train.x.ndim != 4:
        raise SettingError(
            "distributions", f"is 'rotate'; allowed is that for images, and {source.name} has none"
        )
    angles = [s * (90.0 if deal.angle is None else deal.angle) % 360 for s in range(number)]
    if deal.angle is None:
        require(number <= 4, "clusters", deal.clusters, "1 to 4 turns by 90 degrees, or another angle")
    different = len(set(angles)) == number
    require(different, "angle", deal.angle, f"an angle of which {number} multiples are different turns")
    return made.each(lambda pool: pool.turn(angles), number)


def _relabel(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    shift, classes = 4 if deal.shift is None else deal.shift, made.n_classes
    different = len({s * shift % classes for s in range(number)}) == number
    require(
        different, "shift", shift, f"a shift that gives {number} different labelings of {classes} classes"
    )

    def named(s: int) -> Callable[[Tensor], Tensor]:
        return lambda y: relabel(y, s, shift, classes)

    return made.each(lambda pool: pool.label([named(s) for s in range(number)]), number)


def _permute(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    """The first distribution has the source's names; every other draws an order of the classes that none has yet."""
    classes = made.n_classes
    most = math.factorial(min(classes, 12))  # nobody has more clusters than that
    require(number <= most, "clusters", deal.clusters, f"at most {most} orders of {classes} classes")
    rng = generator(seed, "permutations")
    orders = [list(range(classes))]
    while len(orders) < number:
        drawn = rng.permutation(classes).tolist()
        orders += [drawn] if drawn not in orders else []
    return made.each(lambda pool: pool.label([torch.tensor(order).__getitem__ for order in orders]), number)


# other images


def _case(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    _need_labels(source, "case")
    letter, lower, both = cases(made.classes)
    if not both:
        raise SettingError(
            "distributions",
            f"is 'case'; allowed is that for labels of both cases, and {source.name} has none",
        )
    letters, case = torch.tensor(letter), torch.tensor(lower)
    sides = [torch.where(letters[y] < 0, -1, case[y]) for y in (source.y_train, source.y_test)]
    made = made.divide(sides[0], sides[1], 2)
    named = [lambda y: letters[y]]
    train, test = made.train.label(named), made.test.label(named)
    return replace(made, train=train, test=test, n_classes=len(both), classes=tuple(both))


def _groups(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    _need_labels(source, "groups")
    given = deal.groups or tuple(tuple(range(first, made.n_classes, 2)) for first in (0, 1))
    flat = [label for group in given for label in group]
    once = len(set(flat)) == len(flat) and all(0 <= label < made.n_classes for label in flat)
    require(
        once and all(given), "groups", given, f"lists of labels from 0 to {made.n_classes - 1}, each once"
    )
    part = torch.full((made.n_classes,), -1)
    for s, group in enumerate(given):
        part[list(group)] = s
    return made.divide(part[source.y_train], part[source.y_test], len(given))


def _datasets(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    if "+" not in source.name or source.owner_train is None or source.owner_test is None:
        raise SettingError(
            "distributions",
            "is 'datasets'; allowed is that for several sources, such as source = 'cifar10+mnist'",
        )
    return made.divide(source.owner_train, source.owner_test, len(source.owners))


def _oracle(made: Hidden, deal: Deal, source: Source, number: int, seed: int) -> Hidden:
    drawn = int(generator(seed, "oracle").integers(2**31))
    return made.divide(*oracle(source.x_train, source.x_test, number, drawn), number)


def _need_labels(source: Source, what: str) -> None:
    if source.y_train.ndim > 1:
        raise SettingError(
            "distributions",
            f"is {what!r}; allowed is that for points of one label each, and {source.name} has next characters",
        )


Maker = Callable[[Hidden, "Deal", Source, int, int], Hidden]
_MAKERS: dict[str, Maker] = {
    "rotate": _rotate,
    "relabel": _relabel,
    "permute": _permute,
    "oracle": _oracle,
    "case": _case,
    "groups": _groups,
    "datasets": _datasets,
}
