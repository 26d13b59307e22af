"""Sources by name, dealt out: what `[data]` in an experiment says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coterie.data.federation import Federation, Points
from coterie.data.partition.settings import Deal
from coterie.data.sources import digits as handwritten
from coterie.data.sources.catalogue import KNOWN, data_folder, load
from coterie.data.sources.joined import Labels, joined
from coterie.data.sources.source import Source
from coterie.errors import SettingError
from coterie.validation import nearest

if TYPE_CHECKING:
    from coterie.experiment.schema import Setting

DEALT: dict[str, Deal] = {  # every data set, with what it says where nothing is said
    **{name: Deal() for name in KNOWN},
    "femnist": Deal(by_owner=True),
    "shakespeare": Deal(by_owner=True),
    "digits": Deal(distributions="relabel", pattern="linear", train_points=80, test_points=20, draw="shared"),
}


def named(
    source: str, seed: int = 0, image: bool = False, labels: Labels = "shared", **settings: Any
) -> Federation:
    """A source by its name, or several as 'cifar10+mnist', dealt out as `Deal` says.

    `labels` of several sources are shared (class 0 of each is class 0), or offset (each has its own classes).
    The inputs of digits are 64 numbers, or with `image` (1, 8, 8).
    """
    deal = replace(defaults(source), **settings)
    parts = [_load(name, seed) for name in source.split("+")]
    made = deal.of(parts[0] if len(parts) == 1 else joined(parts, labels), seed)
    return made if source != "digits" or image else _flat(made)


def digits(seed: int = 0, **settings: Any) -> Federation:
    """The digits, 80 to train on and 20 to test on for each of 100 clients, under two labelings, if nothing is said."""
    return named("digits", seed, **settings)


def known(source: str) -> dict[str, Setting]:
    """What may be said of a source, and what it is if nothing is said."""
    from coterie.experiment.schema import Setting, parameters  # here, since it needs pydantic

    usual = defaults(source)
    found = {key: replace(one, default=getattr(usual, key)) for key, one in parameters(Deal).items()}
    if source == "digits":
        found["image"] = Setting(bool, False)
    if "+" in source:
        found["labels"] = Setting(Labels, "shared")
    return {**found, "seed": Setting(int, 0)}


def defaults(source: str) -> Deal:
    """The settings that a source has of itself; several sources are distributions of their own."""
    for name in source.split("+"):
        if name not in DEALT:
            raise SettingError(
                "source", f"is {source!r}{nearest(name, DEALT)}; allowed is {', '.join(DEALT)}"
            )
    return DEALT[source] if source in DEALT else Deal(distributions="datasets")


def _load(name: str, seed: int) -> Source:
    return handwritten.read(seed) if name == "digits" else load(name, data_folder())


def _flat(made: Federation) -> Federation:
    def flat(points: Points | None) -> Any:
        return None if points is None else replace(points, x=points.x.flatten(1))

    return replace(made, train=flat(made.train), test=flat(made.test), distributions=flat(made.distributions))
