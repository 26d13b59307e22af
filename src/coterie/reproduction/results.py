"""Raw results of an item: one line per number, with its seed; and which command, commit and machine made them.

A line has a hash of the settings that its run had. Those that the item has no more, or has otherwise today, are kept
as `former`: they are not shown, and what is missing in their place is run again.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from coterie.errors import CoterieError
from coterie.files import make_folder, write_json, write_whole
from coterie.reproduction.items import Cell, Item, Row
from coterie.reproduction.points import HEADS, Point

HEAD = ("variant", "method", "column", "seed", "round", "value", "made", "settings")
OF_POINT = ("variant", "method", "settings", "round")


@dataclass(frozen=True)
class Line:
    variant: str
    method: str
    column: str
    seed: int
    round: int | None  # of a curve
    value: float
    made: int  # which of the makers in the file beside
    settings: str  # a hash (Item.hashes); empty where it is not known

    @property
    def run(self) -> tuple[str, str, int]:
        return self.variant, self.method, self.seed


@dataclass
class Results:
    """What has been run of an item in one size."""

    path: Path  # without a suffix: .csv has the numbers, .json who made them
    lines: list[Line] = field(default_factory=list)  # made with the settings that the item has today
    former: list[Line] = field(default_factory=list)  # made with others
    makers: list[dict[str, Any]] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)  # of today's settings, in -points.csv
    head: tuple[str, ...] = ()  # what a row of these holds

    @staticmethod
    def load(path: Path, item: Item, size: str) -> Results:
        found = Results(path, head=HEADS.get(item.figure or "", ()))
        if not path.with_suffix(".csv").is_file():
            return found
        today = item.hashes(size)
        if not path.with_suffix(".json").is_file():
            raise CoterieError(
                f"{path}.csv has no {path.name}.json beside it, which says who made its numbers"
            )
        found.makers = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                number = int(row["round"]) if row["round"] else None
                value = float(row["value"]) if row["value"] else math.nan
                key = (row["variant"], row["method"], row["column"], int(row["seed"]))
                line = Line(*key, number, value, int(row["made"]), row.get("settings") or "")
                (found.lines if _made_with(line, today) else found.former).append(line)
        if found.head and found.points_path.is_file():
            with found.points_path.open(newline="", encoding="utf-8") as file:
                points = [_point(row, found.head) for row in csv.DictReader(file)]
            found.points = [point for point in points if _made_with(point, today)]
        return found

    @property
    def points_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}-points.csv")

    def save(self) -> None:
        make_folder(self.path.parent)
        write_json(self.path.with_suffix(".json"), self.makers)
        if self.points:
            _write(self.points_path, (*OF_POINT, *self.head), map(_cells_of_point, self.points))
        _write(self.path.with_suffix(".csv"), HEAD, map(_cells_of_line, (*self.lines, *self.former)))

    def maker(self, about: dict[str, Any]) -> int:
        """The number of what makes lines from now on."""
        if about not in self.makers:
            self.makers.append(about)
        return self.makers.index(about)

    def add(self, lines: Iterable[Line]) -> None:
        """Lines of whole runs, in place of what there was of these; numbers as they are kept in the file."""
        new = [replace(line, value=float(_text(line.value) or "nan")) for line in lines]
        runs = {line.run for line in new}
        self.former = [line for line in self.former if line.run not in runs]
        self.lines = [line for line in self.lines if line.run not in runs] + new

    def add_points(self, points: Sequence[Point]) -> None:
        """Those of a run, in place of what there was of it."""
        rows = {(point.variant, point.method) for point in points}
        self.points = [one for one in self.points if (one.variant, one.method) not in rows] + [*points]

    def over_seeds(self) -> dict[Cell, tuple[float, float | None, int]]:
        """Of every cell that is a number: mean, deviation and how many seeds."""
        each: dict[Cell, list[float]] = {}
        for line in self.lines:
            if line.round is None:
                each.setdefault((line.variant, line.method, line.column), []).append(line.value)
        return {cell: (fmean(values), _deviation(values), len(values)) for cell, values in each.items()}

    def curves(self, variant: str, column: str) -> dict[str, list[tuple[int, float]]]:
        """By method, the mean over seeds of every round that was measured."""
        found: dict[str, dict[int, list[float]]] = {}
        for line in self.lines:
            if (
                line.round is not None
                and (line.variant, line.column) == (variant, column)
                and not math.isnan(line.value)
            ):
                found.setdefault(line.method, {}).setdefault(line.round, []).append(line.value)
        return {m: [(r, fmean(v)) for r, v in sorted(rounds.items())] for m, rounds in found.items()}


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    write_whole(path, text.getvalue().encode())


def _cells_of_line(one: Line) -> tuple[object, ...]:
    place = (one.variant, one.method, one.column, one.seed, "" if one.round is None else one.round)
    return *place, _text(one.value), one.made, one.settings


def _cells_of_point(one: Point) -> tuple[object, ...]:
    return one.variant, one.method, one.settings, one.round, *map(_text, one.row)


def _point(row: Mapping[str, str], head: Sequence[str]) -> Point:
    numbers = tuple(float(row[name]) if row[name] else math.nan for name in head)
    return Point(row["variant"], row["method"], row["settings"], int(row["round"]), numbers)


def _text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _made_with(line: Line | Point, today: Mapping[Row, str]) -> bool:
    rows = (line.variant, line.method), (line.variant, "")
    return line.settings in [today[row] for row in rows if row in today]


def _deviation(values: list[float]) -> float | None:
    return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def place(folder: Path, item: Item, size: str) -> Path:
    """Where the results of an item are kept in a folder: PAPER/table-1-bounded."""
    paper, _, rest = item.name.partition("-")
    return folder / paper / f"{rest}-{size}"
