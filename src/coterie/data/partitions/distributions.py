"""The distributions that clients' data are mixtures of: what the images of a source are under each, on either side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.data.partitions.settings import Partition
from coterie.data.partitions.transforms import Pool, cases, oracle, relabel
from coterie.data.sources.source import Source
from coterie.errors import CoterieError, SettingError, require
from coterie.prng import numpy_generator
from coterie.validation import nearest

_SHOWN = ("rotate", "relabel", "permute")  # the same images in every distribution
_DIVIDED = ("case", "groups", "datasets", "oracle")  # images of its own in every distribution
_FREE = (*_SHOWN, "oracle")  # of which there may be any number of distributions
NAMES = (*_SHOWN, *_DIVIDED, "none")


@dataclass(frozen=True)
class Distributions:
    """The images under every distribution; the labels may be others than the source's."""

    train: Pool
    test: Pool
    n_classes: int
    classes: tuple[str, ...]
    factors: tuple[int, ...] = ()  # how many distributions each of the names made

    def each(self, change: Callable[[Pool], Pool], n: int) -> Distributions:
        return replace(self, train=change(self.train), test=change(self.test), factors=(*self.factors, n))

    def divide(self, train: Tensor, test: Tensor, n: int) -> Distributions:
        """By the part of every image of either side."""
        empty = [s for s in range(n) if not ((train == s).any() and (test == s).any())]
        if empty:
            raise CoterieError(
                f"distribution {empty[0]} has no images on one side; every one needs some on both"
            )
        train_pool, test_pool = self.train.divide(train, n), self.test.divide(test, n)
        return replace(self, train=train_pool, test=test_pool, factors=(*self.factors, n))


def distributions_of(settings: Partition, source: Source, seed: int) -> Distributions:
    """What the settings make of a source."""
    _check_names(settings)
    train, test = Pool.of(source.x_train, source.y_train), Pool.of(source.x_test, source.y_test)
    made = Distributions(train, test, source.n_classes, source.classes)
    number = _number(settings, source)
    for name in settings.names:
        made = _MAKERS[name](made, settings, source, number, seed)
    return made


def _check_names(settings: Partition) -> None:
    for name in settings.names:
        if name not in NAMES:
            allowed = f"allowed is {', '.join(NAMES)}, or a list of them"
            raise SettingError("distributions", f"is {name!r}{nearest(name, NAMES)}; {allowed}")
    one = len(settings.names) <= 1
    two = len(settings.names) == 2 and settings.names[0] in _DIVIDED[:3] and settings.names[1] in _SHOWN
    first, then = ", ".join(_DIVIDED[:3]), ", ".join(_SHOWN)
    allowed = f"one of {', '.join(NAMES)}, or a list of two: first one of {first}, then one of {then}"
    require(one or two, "distributions", settings.distributions, allowed)


def _number(settings: Partition, source: Source) -> int:
    """How many distributions the free one of the names makes."""
    free = [name for name in settings.names if name in _FREE]
    fixed = {"case": 2, "groups": len(settings.groups or (0, 1)), "datasets": len(source.owners)}
    others = math.prod(fixed[name] for name in settings.names if name in fixed)
    if not settings.names or settings.clusters is None:
        return 2
    if not free:
        require(settings.clusters == others, "clusters", settings.clusters, f"{others}, as many as there are")
        return 1
    allowed = f"a multiple of {others}" if others > 1 else "a whole number from 1"
    require(settings.clusters % others == 0, "clusters", settings.clusters, allowed)
    return settings.clusters // others


# the same images, seen or called otherwise


def _rotate(
    made: Distributions, settings: Partition, source: Source, number: int, seed: int
) -> Distributions:
    if made.train.x.ndim != 4:
        raise SettingError(
            "distributions", f"is 'rotate'; allowed is that for images, and {source.name} has none"
        )
    angles = [s * (90.0 if settings.angle is None else settings.angle) % 360 for s in range(number)]
    if settings.angle is None:
        require(number <= 4, "clusters", settings.clusters, "1 to 4 turns by 90 degrees, or another angle")
    different = len(set(angles)) == number
    require(different, "angle", settings.angle, f"an angle of which {number} multiples are different turns")
    return made.each(lambda pool: pool.turn(angles), number)


def _relabel(
    made: Distributions, settings: Partition, source: Source, number: int, seed: int
) -> Distributions:
    shift, classes = 4 if settings.shift is None else settings.shift, made.n_classes
    different = len({s * shift % classes for s in range(number)}) == number
    require(
        different, "shift", shift, f"a shift that gives {number} different labelings of {classes} classes"
    )

    def named(s: int) -> Callable[[Tensor], Tensor]:
        return lambda y: relabel(y, s, shift, classes)

    return made.each(lambda pool: pool.label([named(s) for s in range(number)]), number)


def _permute(
    made: Distributions, settings: Partition, source: Source, number: int, seed: int
) -> Distributions:
    """The first distribution has the source's names; every other draws an order of the classes that none has yet."""
    classes = made.n_classes
    most = math.factorial(min(classes, 12))  # nobody has more clusters than that
    require(number <= most, "clusters", settings.clusters, f"at most {most} orders of {classes} classes")
    rng = numpy_generator(seed, "permutations")
    orders = [list(range(classes))]
    while len(orders) < number:
        drawn = rng.permutation(classes).tolist()
        orders += [drawn] if drawn not in orders else []
    return made.each(lambda pool: pool.label([torch.tensor(order).__getitem__ for order in orders]), number)


# other images


def _case(made: Distributions, settings: Partition, source: Source, number: int, seed: int) -> Distributions:
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


def _groups(
    made: Distributions, settings: Partition, source: Source, number: int, seed: int
) -> Distributions:
    _need_labels(source, "groups")
    given = settings.groups or tuple(tuple(range(first, made.n_classes, 2)) for first in (0, 1))
    flat = [label for group in given for label in group]
    once = len(set(flat)) == len(flat) and all(0 <= label < made.n_classes for label in flat)
    require(
        once and all(given), "groups", given, f"lists of labels from 0 to {made.n_classes - 1}, each once"
    )
    part = torch.full((made.n_classes,), -1)
    for s, group in enumerate(given):
        part[list(group)] = s
    return made.divide(part[source.y_train], part[source.y_test], len(given))


def _datasets(
    made: Distributions, settings: Partition, source: Source, number: int, seed: int
) -> Distributions:
    if "+" not in source.name or source.owner_train is None or source.owner_test is None:
        raise SettingError(
            "distributions",
            "is 'datasets'; allowed is that for several sources, such as source = 'cifar10+mnist'",
        )
    return made.divide(source.owner_train, source.owner_test, len(source.owners))


def _oracle(
    made: Distributions, settings: Partition, source: Source, number: int, seed: int
) -> Distributions:
    drawn = int(numpy_generator(seed, "oracle").integers(2**31))
    return made.divide(*oracle(source.x_train, source.x_test, number, drawn), number)


def _need_labels(source: Source, what: str) -> None:
    if source.y_train.ndim > 1:
        raise SettingError(
            "distributions",
            f"is {what!r}; allowed is that for points of one label each, and {source.name} has next characters",
        )


Maker = Callable[[Distributions, Partition, Source, int, int], Distributions]
_MAKERS: dict[str, Maker] = {
    "rotate": _rotate,
    "relabel": _relabel,
    "permute": _permute,
    "oracle": _oracle,
    "case": _case,
    "groups": _groups,
    "datasets": _datasets,
}
