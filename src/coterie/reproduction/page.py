"""Ours beside the paper's: an item's results as tables of text, for the terminal and for docs/."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from coterie import toml
from coterie.reproduction.claims import Outcome, check
from coterie.reproduction.figures import drawable
from coterie.reproduction.items import Item, Row
from coterie.reproduction.points import HEADS
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
            lines = [line for line in results.lines if (line.variant, line.method) == (variant, method)]
            seeds = len({line.seed for line in lines})
            shown = [_cell(ours.get(cell), theirs.get(cell)) for cell in cells]
            lost = seeds - len({line.seed for line in lines if not math.isnan(line.value)})
            some = f" ({lost} diverged)" if 0 < lost < seeds else ""
            rows.append([method, *(shown or ["–" if some else "diverged"]), f"{seeds}{some}"])
        yield Block(item.heading(variant), ["method", *(columns or [""]), "seeds"], rows)


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


def distances(item: Item, size: str, results: Results) -> list[str]:
    """How far ours are from the paper's numbers, column by column; of the full size, which alone is the paper's."""
    if size != "full":
        return []
    ours, theirs = results.over_seeds(), item.values()
    said = []
    for column in item.columns:
        if column.name in item.published.get("misprinted", ()):
            continue
        off = {
            cell: abs(ours[cell][0] - mean)
            for cell, (mean, _) in theirs.items()
            if cell[2] == column.name and _known(ours.get(cell))
        }
        if off:
            farthest = max(off, key=lambda cell: off[cell])
            said.append(
                f"{column.name}: the median distance to the paper's {len(off)} values is "
                f"{_digits(median(off.values()))}, the largest {_digits(off[farthest])} "
                f"({' / '.join(filter(None, farthest[:2]))})"
            )
    return said


def lacking(item: Item, size: str, results: Results) -> str:
    """What was not run, such as: '10:90' (seeds 1, 2); 'linear': FedAvg, Local; and what lacks a column."""
    from coterie.reproduction.play import missing

    there = {line.run for line in results.lines}
    left = missing(item, size, results)
    absent = [one for one in left if (one.variant, one.method, one.seed) not in there]
    partly = [one for one in left if (one.variant, one.method, one.seed) in there]
    if not partly:
        return _named(item, size, absent)
    has = {line.column for line in results.lines}
    columns = ", ".join(column.name for column in item.columns if column.name not in has)
    why = f"shown, but to be run again for {columns or 'all columns'}: {_named(item, size, partly)}"
    return "; ".join(filter(None, [_named(item, size, absent), why]))


def _named(item: Item, size: str, runs: Sequence[Wanted]) -> str:
    """Runs by variant, method and seed; what lacks the same stands together."""
    seeds: dict[Row, list[str]] = {}
    for one in runs:
        seeds.setdefault((one.variant, one.method), []).append(str(one.seed))
    alike: dict[tuple[str, str], list[str]] = {}
    for (variant, method), each in seeds.items():
        word = "seeds" if len(each) > 1 else "seed"
        which = "" if len(each) == len(item.seeds(size)) else f" ({word} {', '.join(each)})"
        alike.setdefault((variant, which), []).append(method)
    methods_of = Counter(variant for variant, _ in item.hashes(size))
    said = []
    for (variant, which), methods in alike.items():
        parts = [
            repr(variant) if variant else "",
            "" if len(methods) == methods_of[variant] else ", ".join(methods),
        ]
        said.append((": ".join(filter(None, parts)) or "all") + which)
    return "; ".join(said)


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
        if results is pictured(item, found):
            seed = f" The picture is of seed {item.seeds(size)[0]}." if item.figure in HEADS else ""
            text += [f"![{item.title}]({item.name}.png){seed}", ""]
        for block in blocks(item, results):
            text += [f"*{block.variant}*", ""] if block.variant else []
            text += [_row(block.headings), _row(["---"] * len(block.headings)), *map(_row, block.rows), ""]
        for says, outcome, numbers in claims(item, results):
            text.append(f"- **{outcome}**: {says}" + (f": {numbers}" if numbers else ""))
        text += [*(f"- {one}" for one in (*distances(item, size, results), *item.found(size))), ""]
    text += ["Departures from the paper:", ""] if item.table["departures"] else []
    text += [*(f"- {one}" for one in item.table["departures"]), ""]
    return "\n".join(text)


def pictured(item: Item, found: Sequence[tuple[str, Results]]) -> Results | None:
    """What the picture of a page shows: of what can be drawn, the size with the fewest runs missing."""
    from coterie.reproduction.play import missing

    some = [(size, results) for size, results in found if drawable(item, results)]
    left = [len(missing(item, size, results)) / item.runs(size) for size, results in some]
    return some[left.index(min(left))][1] if some else None


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _made(item: Item, size: str, results: Results) -> str:
    """By which command, at which commits, on which machines; and what is missing."""
    made = [results.makers[number] for number in sorted({line.made for line in results.lines})]
    makers = list(dict.fromkeys(f"commit {m['commit']}, {m['machine']}, {m['versions']}" for m in made))
    about = {
        "in place of the full size's": _changed(item, size),
        "not run": lacking(item, size, results),
        "not shown": former_runs(results) if results.former else "",
    }
    lines = [f"- {what}: {said}" for what, said in about.items() if said]
    head = f"`{command(item, size)}`; {'; '.join(makers)}."
    return "\n".join([head, *([""] if lines else []), *lines])


def _changed(item: Item, size: str) -> str:
    """What a size has in place of the full one; with the variants, if they differ in that."""
    alike: dict[str, list[str]] = {}
    for variant in item.variants:
        full = item.settings(variant, "full")
        changes = {k: v for k, v in item.changes(variant, size).items() if _with(full, k, v) != full}
        text = ", ".join(f"{key} = {value}" for key, value in changes.items())
        alike.setdefault(text, []).append(repr(variant))
    return "; ".join(
        f"{text} ({', '.join(variants)})" if len(alike) > 1 else text
        for text, variants in alike.items()
        if text
    )


def _with(settings: toml.Table, key: str, value: object) -> toml.Table:
    changed = deepcopy(settings)
    toml.put(changed, key.split("."), value)
    return changed


def command(item: Item, size: str) -> str:
    return f"coterie reproduce {item.name}" + ("" if size == "full" else f" --{size}")


def former_runs(results: Results) -> str:
    """How many there are that the item's settings of today did not make."""
    number = len({line.run for line in results.former})
    return f"{number} run{'s' if number > 1 else ''} made with former settings"
