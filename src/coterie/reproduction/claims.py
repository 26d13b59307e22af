"""What a paper claims of a table, as comparisons of its cells that can hold or not.

    VARIANT / METHOD / COLUMN > VARIANT / METHOD / COLUMN + 0.02
    * / FedSoft / accuracy ~ * / IFCA / accuracy ± 0.01

`*` is every variant that has both sides, the same on both. Either side may be a number. Cells are means over seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Cell = tuple[str, str, str]
Outcome = Literal["held", "not held", "not testable", "not run"]

_COMPARISON = re.compile(
    r"(?P<left>.+?) (?P<sign>[<>~]) (?P<right>.+?)(?: (?P<margin_sign>[+±]) (?P<margin>-?[\d.]+))?"
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


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
        return Comparison(found["left"], found["sign"], found["right"], float(found["margin"] or 0))

    def references(self) -> list[list[str]]:
        """(variant, method, column) of the sides that are no numbers."""
        return [side.split(" / ") for side in (self.left, self.right) if not _NUMBER.fullmatch(side)]

    def check(self, cells: Mapping[Cell, float], variants: Sequence[str]) -> tuple[bool | None, str]:
        """Whether it holds, None where nothing of it was run; and the numbers behind that."""
        everywhere = any(reference[0] == "*" for reference in self.references())
        outcomes, said = [], []
        for variant in variants if everywhere else [""]:
            left, right = (_value(side, variant, cells) for side in (self.left, self.right))
            if left is None or right is None or math.isnan(left) or math.isnan(right):
                continue
            held = {
                ">": left > right + self.margin,
                "<": left < right + self.margin,
                "~": abs(left - right) <= self.margin,
            }[self.sign]
            outcomes.append(held)
            margin = f" {'±' if self.sign == '~' else '+'} {self.margin:g}" if self.margin else ""
            said.append(f"{left:.4g} {self.sign} {right:.4g}{margin}" + ("" if held else " (not)"))
        if not outcomes:
            return None, ""
        return all(outcomes), ", ".join(said)


def _value(side: str, variant: str, cells: Mapping[Cell, float]) -> float | None:
    if _NUMBER.fullmatch(side):
        return float(side)
    where, method, column = side.split(" / ")
    return cells.get((variant if where == "*" else where, method, column))


def check(claim: Claim, cells: Mapping[Cell, float], variants: Sequence[str]) -> tuple[Outcome, str]:
    """All its comparisons together; one that was not run leaves it open, unless another does not hold."""
    if claim.not_testable:
        return "not testable", claim.not_testable
    found = [Comparison.of(text).check(cells, variants) for text in claim.holds]
    numbers = "; ".join(said for _, said in found if said)
    if any(held is False for held, _ in found):
        return "not held", numbers
    return ("not run" if any(held is None for held, _ in found) else "held"), numbers
