"""What a paper claims of a table, as comparisons of its cells that can hold or not.

    VARIANT / METHOD / COLUMN > VARIANT / METHOD / COLUMN + 0.02
    * / FedSoft / accuracy ~ * / IFCA / accuracy ± 0.01
    a / IFCA / accuracy − b / IFCA / accuracy > a / FedSoft / accuracy − b / FedSoft / accuracy
    * / FedSPD / megabytes < 0.55 × * / FedEM / megabytes

`*` is every variant, the same on both sides. A side is a number, a cell, a multiple of one or a difference of two.
Cells are means over seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Cell = tuple[str, str, str]
Outcome = Literal["held", "not held", "not testable", "open"]

_DIGITS = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_COMPARISON = re.compile(
    rf"(?P<left>.+?) (?:(?P<sign>[<>]) (?P<right>.+?)(?: \+ (?P<margin>{_DIGITS}))?"
    rf"|~ (?P<about>.+?) ± (?P<within>{_DIGITS}))"
)
_NUMBER = re.compile(_DIGITS)


@dataclass(frozen=True)
class Claim:
    says: str
    where: str
    holds: tuple[str, ...]
    not_testable: str | None = None


@dataclass(frozen=True)
class Comparison:
    left: str
    sign: str
    right: str
    margin: float

    @staticmethod
    def of(text: str) -> Comparison:
        found = _COMPARISON.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no comparison")
        right, margin = found["right"] or found["about"], float(found["margin"] or found["within"] or 0)
        comparison = Comparison(found["left"], found["sign"] or "~", right, margin)
        if any(len(reference) != 3 for reference in comparison.references()):
            raise ValueError(f"{text!r} has a side that is neither a number nor VARIANT / METHOD / COLUMN")
        return comparison

    @property
    def _margin(self) -> str:
        sign = "±" if self.sign == "~" else "+" if self.margin > 0 else "−"
        return f" {sign} {abs(self.margin):g}" if self.margin else ""

    def references(self) -> list[list[str]]:
        """(variant, method, column) of all cells."""
        sides = [side for side in (self.left, self.right) if not _NUMBER.fullmatch(side)]
        return [cell for side in sides for _, cell in _terms(side)]

    def check(self, cells: Mapping[Cell, float], variants: Sequence[str]) -> tuple[bool | None, str]:
        """Whether it holds everywhere, None while a part of it was not run; and the numbers behind that.

        A number that was run and is none, since a run diverged or never came so far, holds nothing.
        """
        everywhere = any(reference[0] == "*" for reference in self.references())
        outcomes: list[bool | None] = []
        said = []
        for variant in variants if everywhere else [""]:
            left, right = (_value(side, variant, cells) for side in (self.left, self.right))
            if left is None or right is None:
                outcomes.append(None)
                continue
            held = {
                ">": left > right + self.margin,
                "<": left < right + self.margin,
                "~": abs(left - right) <= self.margin,
            }[self.sign]
            outcomes.append(held)
            said.append(
                f"{_shown(left)} {self.sign} {_shown(right)}{self._margin}" + ("" if held else " (not)")
            )
        if False in outcomes:
            return False, ", ".join(said)
        return (None if None in outcomes else True), ", ".join(said)


def _shown(value: float) -> str:
    return "no number" if math.isnan(value) else f"{value:.4g}"


def _value(side: str, variant: str, cells: Mapping[Cell, float]) -> float | None:
    if _NUMBER.fullmatch(side):
        return float(side)
    total = 0.0
    for factor, (where, method, column) in _terms(side):
        value = cells.get((variant if where == "*" else where, method, column))
        if value is None:
            return None
        total += factor * value
    return total


def _terms(side: str) -> list[tuple[float, list[str]]]:
    """What is added up: each a factor, negative after a minus, and (variant, method, column)."""
    found, terms = [], side.split(" − ")
    if len(terms) > 2:
        raise ValueError(
            f"{side!r} is no side of a comparison: it is a difference of {len(terms)}, not of two"
        )
    for number, term in enumerate(terms):
        factor, _, cell = term.rpartition(" × ")
        if factor and not _NUMBER.fullmatch(factor):
            raise ValueError(f"{side!r} is no side of a comparison: {factor!r} is no number")
        found.append((float(factor or 1) * (-1 if number else 1), cell.split(" / ")))
    return found


def check(claim: Claim, cells: Mapping[Cell, float], variants: Sequence[str]) -> tuple[Outcome, str]:
    """All its comparisons together; one that was not run leaves it open, unless another does not hold."""
    if claim.not_testable:
        return "not testable", claim.not_testable
    compared = [Comparison.of(text) for text in claim.holds]
    found = [one.check(cells, variants) for one in compared]
    by_column: dict[str, list[str]] = {}
    for one, (_, said) in zip(compared, found, strict=True):
        if said:
            by_column.setdefault(one.references()[0][2], []).append(said)
    numbers = "; ".join(f"{column} {', '.join(each)}" for column, each in by_column.items())
    if any(held is False for held, _ in found):
        return "not held", numbers
    return ("open" if any(held is None for held, _ in found) else "held"), numbers
