"""Ours beside the paper's: an item's results as tables of text, for the terminal and for docs/."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from coterie.reproduction.claims import Outcome, check
from coterie.reproduction.items import Item, Row
from coterie.reproduction.results import Results

if TYPE_CHECKING:
    from coterie.reproduction.play import Wanted


@dataclass(frozen=True)
class Block:
    """One variant: a line per method."""

    variant: str
    headings: list[str]
    rows: list[list[str]]


def blocks(item: Item, results: Results) -> Iterator[Block]:
    """Each cell is ours, mean ± deviation over seeds, and the paper's in brackets. Empty columns are left out."""
    ours, theirs = results.over_seeds(), item.values()
    for variant in item.variants:
        methods = item.in_order(line.method for line in results.lines if line.variant == variant)
        if not methods:
            continue
        columns = [
            column.name
            for column in item.columns
            if any(_known(ours.get((variant, method, column.name))) for method in methods)
        ]
        rows = []
        for method in methods:
            cells = [(variant, method, column) for column in columns]
            seeds = max((ours[cell][2] for cell in cells if cell in ours), default=0)
            rows.append([method, *(_cell(ours.get(c), theirs.get(c)) for c in cells), str(seeds)])
        yield Block(item.heading(variant), ["method", *columns, "seeds"], rows)


def _known(found: tuple[float, float | None, int] | None) -> bool:
    return found is not None and not math.isnan(found[0])


def _cell(ours: tuple[float, float | None, int] | None, theirs: tuple[float, float | None] | None) -> str:
    mine = "–" if ours is None or math.isnan(ours[0]) else _spread(ours[0], ours[1])
    return mine if theirs is None else f"{mine} ({_spread(*theirs)})"


def _spread(mean: float, std: float | None) -> str:
    return _digits(mean) + ("" if std is None else f" ± {_digits(std)}")


def _digits(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def claims(item: Item, results: Results) -> list[tuple[str, Outcome, str]]:
    """What the paper says, whether it held, and the numbers behind that."""
    cells = {cell: mean for cell, (mean, _, _) in results.over_seeds().items()}
    return [(f"{c.says} ({c.where})", *check(c, cells, list(item.variants))) for c in item.claims()]


def distances(item: Item, results: Results) -> list[str]:
    """How far ours are from the paper's numbers, column by column; of the full size, which alone is the paper's."""
    ours, theirs = results.over_seeds(), item.values()
    said = []
    for column in item.columns:
        off = {
            cell: abs(ours[cell][0] - mean)
            for cell, (mean, _) in theirs.items()
            if cell[2] == column.name and _known(ours.get(cell))
        }
        if off:
            farthest = max(off, key=lambda cell: off[cell])
            where = " / ".join(filter(None, farthest[:2]))
            said.append(
                f"{column.name}: {_digits(median(off.values()))} from the paper's in the median of {len(off)} "
                f"cell{'s' if len(off) > 1 else ''}, {_digits(off[farthest])} at most ({where})"
            )
    return said


# as Markdown


def markdown(item: Item, found: Sequence[tuple[str, Results]]) -> str:
    """A section of a page; `found` are the sizes that were run."""
    text = [f"## {item.name}: {item.title}", "", item.table["shows"], ""]
    if not found:
        return "\n".join([*text, "Not run.", ""])
    for size, results in found:
        if not results.lines:
            again = f"`{command(item, size)}` runs it again"
            text += [f"**{size.capitalize()}**: made with former settings, and not shown; {again}.", ""]
            continue
        text += [f"**{size.capitalize()}**: {_made(item, size, results)}", ""]
        text += [f"![{item.title}]({item.name}.png)", ""] if item.figure and size == found[0][0] else []
        for block in blocks(item, results):
            text += [f"*{block.variant}*", ""] if block.variant else []
            text += [_row(block.headings), _row(["---"] * len(block.headings)), *map(_row, block.rows), ""]
        for says, outcome, numbers in claims(item, results):
            text.append(f"- **{outcome}**: {says}" + (f": {numbers}" if numbers else ""))
        how_far = distances(item, results) if size == "full" else []
        text += [*(f"- {one}" for one in (*how_far, *item.found(size))), ""]
    text += ["Departures from the paper:", ""] if item.table["departures"] else []
    text += [*(f"- {one}" for one in item.table["departures"]), ""]
    return "\n".join(text)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _made(item: Item, size: str, results: Results) -> str:
    """By which command, at which commits, on which machines; and what is missing."""
    from coterie.reproduction.play import missing

    made = [results.makers[number] for number in sorted({line.made for line in results.lines})]
    makers = list(dict.fromkeys(f"commit {m['commit']}, {m['machine']}, {m['versions']}" for m in made))
    smaller: dict[str, list[str]] = {}
    for variant in item.variants:
        changes = ", ".join(f"{key} = {value}" for key, value in item.changes(variant, size).items())
        smaller.setdefault(changes, []).append(variant)
    each = [f"{what} ({', '.join(of)})" if len(smaller) > 1 else what for what, of in smaller.items() if what]
    changed = f"; in place of the full size's: {'; '.join(each)}" if each else ""
    wanting = f"; not run: {_named(item, size, left)}" if (left := missing(item, size, results)) else ""
    former = f"; not shown: {former_runs(results)}" if results.former else ""
    return f"`{command(item, size)}`; {'; '.join(makers)}{changed}{wanting}{former}."


def _named(item: Item, size: str, left: Sequence[Wanted]) -> str:
    """Such as: 10:90 (seeds 1, 2); linear: FedAvg, Local. What lacks the same seeds stands together."""
    seeds: dict[Row, list[str]] = {}
    for one in left:
        seeds.setdefault((one.variant, one.method), []).append(str(one.seed))
    alike: dict[tuple[str, str], list[str]] = {}
    for (variant, method), each in seeds.items():
        which = "" if len(each) == len(item.seeds(size)) else f" (seeds {', '.join(each)})"
        alike.setdefault((variant, which), []).append(method)
    said = []
    for (variant, which), methods in alike.items():
        every = len(methods) == sum(row[0] == variant for row in item.hashes(size))
        parts = [variant, "" if every else ", ".join(methods)]
        said.append((": ".join(filter(None, parts)) or "all") + which)
    return "; ".join(said)


def command(item: Item, size: str) -> str:
    return f"coterie reproduce {item.name}" + ("" if size == "full" else f" --{size}")


def former_runs(results: Results) -> str:
    """How many there are that the item's settings of today did not make."""
    number = len({line.run for line in results.former})
    return f"{number} run{'s' if number > 1 else ''} made with former settings"
