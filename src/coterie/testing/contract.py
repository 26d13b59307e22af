"""The contracts of one algorithm, as things to call."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import SkipTest

from coterie.errors import CoterieError
from coterie.protocol.algorithm import Algorithm
from coterie.testing.case import Case, Make, Place, maker
from coterie.testing.checks import AT_SERVER, CHECKS, Check


@dataclass(frozen=True)
class Contract:
    """A promise that the algorithm must keep, at a server or over a graph. A call that returns says that it does."""

    check: Check
    case: Case

    @property
    def name(self) -> str:
        return _name(self.check)

    def __call__(self) -> None:
        """Raises AssertionError if the promise is broken, and SkipTest if the algorithm is exempt."""
        kind = self.case.kind
        if self.name in kind.exempt:
            raise SkipTest(f"{kind.title()}: {kind.exempt[self.name]}")
        self.check(self.case)

    def __str__(self) -> str:
        return f"{self.case.kind.title()}-{self.case.place}-{self.name}".replace(" ", "-")


def contracts(algorithm: type[Algorithm] | Make) -> list[Contract]:
    """All that apply. `algorithm` is its class or, if that needs settings, a function of the number of clusters."""
    make = maker(algorithm) if isinstance(algorithm, type) else algorithm
    kind = type(make(2))
    _check_exempt(kind)
    places: tuple[Place, ...] = ("server",) if kind.needs_server else ("server", "graph")
    return [
        Contract(check, Case(make, place))
        for place in places
        for check in CHECKS
        if place == "server" or check not in AT_SERVER
    ]


def _check_exempt(kind: type[Algorithm]) -> None:
    names = [_name(check) for check in CHECKS]
    for name in kind.exempt:
        if name not in names:
            raise CoterieError(f"{kind.title()} is exempt from {name!r}; allowed is {', '.join(names)}")


def _name(check: Check) -> str:
    return check.__name__.replace("_", " ")
