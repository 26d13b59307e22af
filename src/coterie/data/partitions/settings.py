"""How a source is partitioned among clients: its distributions, who has how much of each, and which images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from coterie.errors import SettingError, require
from coterie.validation import Checked

Draw = Literal["once", "shared", "replace"]
Holders = Literal["even", "random"]
Number = float | tuple[float, float]
Count = int | tuple[int, int]


@dataclass(frozen=True)
class Partition(Checked):
    """How a source is partitioned among clients; nobody trains on an image that anybody is tested on."""

    clients: int | None = None  # none: 100, or every owner
    distributions: str | tuple[str, ...] = "none"  # what makes them: one way, or two that multiply
    clusters: int | None = None  # how many distributions; none: 2, or as many as there must be
    angle: float | None = None  # rotate: distribution s is turned by s times this; none: 90 degrees
    shift: int | None = None  # relabel: distribution s calls class y by the name of y + s * shift; none: 4
    groups: tuple[tuple[int, ...], ...] | None = None  # groups: classes of each; none: even, odd
    mixture: str = "pure"  # how much of each distribution a client has
    per_client: int | None = None  # structured: how many distributions a client has, k' of k-FED
    m0: int | None = None  # structured: how many clients have the same ones; none: they are drawn
    alpha: Number | None = None  # Dirichlet over classes: of clients, or [of clusters, of clients in one]
    classes: Count | None = None  # classes of a client, or [of a cluster, of a client in it]
    class_holders: Holders | None = (
        None  # classes: even (none), equally many of each; random: each draws alone
    )
    by_owner: bool = False  # a client is a writer or a role
    train_points: Count | None = None  # of a client, or [fewest, most]; none: all images there are
    test_points: int | None = None  # of a client; none: in proportion to the training points
    imbalance: float | None = None  # a third of the clients has this times the data of a third, r of FedSPD
    power_law: float | None = None  # data of a client falls with this power of its rank
    draw: Draw = "once"  # an image is given once; shared: once to a client; replace: any number of times
    augment: bool = False  # are images moved by up to 4 pixels and mirrored, at random, in training?

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value in vars(self).items():
            object.__setattr__(self, key, _frozen(value))
        self._check_numbers()
        self._check_together()

    def _check_numbers(self) -> None:
        whole = "a whole number from 1"
        for key, value in vars(self).items():
            finite = not isinstance(value, float) or math.isfinite(value)
            require(finite, key, value, "a finite number")
        for key in ("clients", "clusters", "per_client", "m0"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, value, whole)
        least = all(n >= 1 for n in _pair(self.train_points))
        ordered = least and list(_pair(self.train_points)) == sorted(_pair(self.train_points))
        require(ordered, "train_points", self.train_points, f"{whole}, or the fewest and the most")
        require(self.test_points is None or self.test_points >= 0, "test_points", self.test_points, "from 0")
        above = all(math.isfinite(a) and a > 0 for a in _pair(self.alpha))
        require(above, "alpha", self.alpha, "a number above 0, or two of them")
        require(all(n >= 1 for n in _pair(self.classes)), "classes", self.classes, f"{whole}, or two of them")
        for key in ("train_points", "alpha", "classes"):
            value = getattr(self, key)
            require(not isinstance(value, tuple) or len(value) == 2, key, value, "one number or two")

    def _check_together(self) -> None:
        """Refuse settings that contradict each other, or that would have no effect."""
        for one, other in (("alpha", "classes"), ("alpha", "by_owner"), ("classes", "by_owner")):
            _refuse(self, one, other, "only one of them, which says what a client has")
        _refuse(self, "imbalance", "power_law", "only one of them, which says who has more")
        for key in ("imbalance", "power_law"):
            if isinstance(self.train_points, tuple):
                _refuse(self, key, "train_points", "the mean number of training points beside it")
            _refuse(self, key, "by_owner", "neither: an owner has what it has")
        for key, name in (("angle", "rotate"), ("shift", "relabel"), ("groups", "groups")):
            _needs(self, key, name in self.names, f"distributions = {name!r}")
        _needs(self, "class_holders", self.classes is not None, "classes")
        in_sets = self.mixture == "structured"
        _needs(self, "per_client", in_sets, "mixture = 'structured'")
        _needs(self, "m0", in_sets, "mixture = 'structured'")
        said = not in_sets or self.per_client is not None
        require(said, "per_client", None, "how many distributions a client has, for the mixture 'structured'")
        made = bool(self.names) or self.clustered
        _needs(self, "clusters", made, "distributions, or beside alpha or classes with two values")
        if self.clustered and self.mixture != "pure":
            pair = "alpha" if self.alpha is not None else "classes"
            raise SettingError(
                "mixture", f"is {self.mixture!r}; allowed is 'pure' beside {pair} with two values"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The distributions that are multiplied."""
        given = (self.distributions,) if isinstance(self.distributions, str) else self.distributions
        return tuple(name for name in given if name != "none")

    @property
    def clustered(self) -> bool:
        """Are there clusters of clients that have classes in common?"""
        return isinstance(self.alpha, tuple) or isinstance(self.classes, tuple)

    @property
    def by_class(self) -> bool:
        return self.alpha is not None or self.classes is not None


def _frozen(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _pair(value: Any) -> tuple[Any, ...]:
    """The numbers that were given, if any."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _refuse(settings: Partition, one: str, other: str, allowed: str) -> None:
    a, b = getattr(settings, one), getattr(settings, other)
    if a not in (None, False) and b not in (None, False):
        raise SettingError(one, f"is {a!r} and {other} is {b!r}; allowed is {allowed}")


def _needs(settings: Partition, key: str, given: bool, what: str) -> None:
    value = getattr(settings, key)
    if value is not None and not given:
        raise SettingError(key, f"is {value!r}, which has no effect; allowed is {key} beside {what}")
