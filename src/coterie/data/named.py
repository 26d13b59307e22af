"""Data sets by name, partitioned among clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.data.federation import Federation, Points
from coterie.data.partitions.build import partitioned
from coterie.data.partitions.settings import Partition
from coterie.data.sources import digits as handwritten
from coterie.data.sources.catalogue import KNOWN, data_folder, load
from coterie.data.sources.joined import Labels, joined
from coterie.data.sources.source import Source
from coterie.errors import SettingError
from coterie.validation import nearest

DATA_SETS: dict[str, Partition] = {  # each with its default settings
    **{name: Partition() for name in KNOWN},
    "femnist": Partition(by_owner=True),
    "shakespeare": Partition(by_owner=True),
    "digits": Partition(
        distributions="relabel", mixture="linear", train_points=80, test_points=20, draw="shared"
    ),
}


def named(
    source: str, seed: int = 0, image: bool = False, labels: Labels = "shared", **settings: Any
) -> Federation:
    """A source by its name, or several as 'cifar10+mnist', partitioned as `Partition` says.

    `labels` of several sources are shared (class 0 of each is class 0), or offset (each has its own classes).
    The inputs of digits are 64 numbers, or with `image` (1, 8, 8).
    """
    how = replace(defaults(source), **settings)
    parts = [_load(name, seed) for name in source.split("+")]
    made = partitioned(parts[0] if len(parts) == 1 else joined(parts, labels), how, seed)
    return made if source != "digits" or image else _flat(made)


def digits(seed: int = 0, **settings: Any) -> Federation:
    """The digits, 80 to train on and 20 to test on for each of 100 clients, under two labelings, if nothing is said."""
    return named("digits", seed, **settings)


def defaults(source: str) -> Partition:
    """The default settings of a source; several sources are distributions of their own."""
    for name in source.split("+"):
        if name not in DATA_SETS:
            raise SettingError(
                "source", f"is {source!r}{nearest(name, DATA_SETS)}; allowed is {', '.join(DATA_SETS)}"
            )
    return DATA_SETS[source] if source in DATA_SETS else Partition(distributions="datasets")


def _load(name: str, seed: int) -> Source:
    return handwritten.read(seed) if name == "digits" else load(name, data_folder())


def _flat(made: Federation) -> Federation:
    def flat(points: Points | None) -> Any:
        return None if points is None else replace(points, x=points.x.flatten(1))

    return replace(made, train=flat(made.train), test=flat(made.test), distributions=flat(made.distributions))
