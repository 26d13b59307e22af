"""Tables for people: the end of a run, runs compared, a client taken in, a number of clusters chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from coterie.model_selection.choice import Choice
from coterie.report.compare import Line, Numbers
from coterie.runs.onboarding import Onboarded

_ABSENT = "–"
_BETWEEN = 3  # spaces from one column to the next


def end_of_run(methods: Mapping[str, Numbers], width: int) -> Table:
    """One line per method."""
    headings = _headings(methods.values())
    headings = [h for h in headings if h not in ("personal F1", "personal loss")]  # these are in the folder
    rows = [
        [label, *(_number(h, numbers[h]) if h in numbers else _ABSENT for h in headings)]
        for label, numbers in methods.items()
    ]
    return _table(headings, rows, width)


def compared(lines: Sequence[Line], width: int) -> Table:
    """One line per group of runs that differ in the seed alone."""
    columns = [line.over_seeds() for line in lines]
    headings = [heading for heading in _headings(columns) if not heading.startswith("others")]
    rows = [
        [
            line.name,
            *(_spread(h, *found[h]) if h in found else _ABSENT for h in headings),
            str(len(line.runs)),
        ]
        for line, found in zip(lines, columns, strict=True)
    ]
    return _table([*headings, "seeds"], rows, width, "mean ± sample standard deviation over seeds")


def onboarded(found: Onboarded) -> Table:
    """A line per cluster."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for heading in ("cluster", "importance", "loss"):
        table.add_column(heading, justify="right")
    for s, share in enumerate(found.importance):
        table.add_row(str(s), f"{share:.3f}", f"{found.losses[s]:.4g}" if found.losses else _ABSENT)
    return table


def chosen(choice: Choice) -> Table:
    """A line per number of clusters."""
    legend = (
        "losses: mean over clients ± standard error; excess: of the held-out loss over the least, ± its error"
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, caption=legend, caption_justify="left")
    for heading in (
        "clusters",
        "training loss",
        "held-out loss",
        "excess",
        "allowed",
        "parameters",
        "MB sent",
        "",
    ):
        table.add_column(heading, justify="right")
    for line in choice.lines:
        losses = (
            f"{line.training_loss:.4g}",
            f"{line.held_out_loss:.4g} ± {line.standard_error:.2g}",
            f"{line.excess:.3g} ± {line.excess_error:.2g}",
            f"{line.allowed:.2g}",
        )
        mark = "chosen" if line.chosen else ""
        table.add_row(str(line.n_clusters), *losses, str(line.parameters), f"{line.megabytes:.3g}", mark)
    return table


def swept(lines: Sequence[Mapping[str, Any]]) -> Table:
    """A line per value that was tried."""
    legend = "personal models on points held out of training: mean ± sample standard deviation over seeds"
    table = Table(box=SIMPLE_HEAD, show_edge=False, caption=legend, caption_justify="left")
    table.add_column("method", overflow="fold")
    for heading in ("values", f"held-out {lines[0]['score']}", "seeds", ""):
        table.add_column(heading, justify="right", overflow="fold")
    for line in lines:
        values = ", ".join(f"{key}={value}" for key, value in line["values"].items())
        mean = math.inf if line["mean"] is None else line["mean"]
        score = f"{mean:.4g}" + ("" if line["std"] is None else f" ± {line['std']:.2g}")
        mark = "chosen" if line["chosen"] else "diverged" if line.get("diverged") else ""
        table.add_row(escape(line["method"]), escape(values), score, str(line["seeds"]), mark)
    return table


def plain(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """Texts as they are, the first columns to the left."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, title=title or None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(escape(heading), justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _headings(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """All headings, in the order of the row that has most."""
    longest = sorted(rows, key=len, reverse=True)
    return list(dict.fromkeys(heading for row in longest for heading in row))


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int, note: str = "") -> Table:
    """A line per method; where that would break numbers, a line per heading."""
    grid = [["method", *headings], *map(list, rows)]
    turned = [list(column) for column in zip(*grid, strict=True)]
    if _width(grid) > max(width, _width(turned)):
        grid = turned
    legend = "; ".join([*_explained(headings), *([note] if note else [])])
    table = Table(box=SIMPLE_HEAD, show_edge=False, caption=legend or None, caption_justify="left")
    table.add_column(grid[0][0], overflow="fold")
    whole = sum(_BETWEEN + max(map(len, column)) for column in zip(*grid, strict=True))
    for column in list(zip(*grid, strict=True))[1:]:
        most = None if whole <= width else _least(column)
        table.add_column(escape(column[0]), justify="right", overflow="fold", max_width=most)
    for row in grid[1:]:
        table.add_row(*map(escape, row))
    return table


def _width(grid: Sequence[Sequence[str]]) -> int:
    """The least that a table needs."""
    return sum(_BETWEEN + _least(column) for column in zip(*grid, strict=True))


def _least(column: Sequence[str]) -> int:
    """Of a column: its heading may be broken between words, but neither words nor numbers."""
    return max(map(len, [*column[0].split(), *column[1:]]))


def _explained(headings: Sequence[str]) -> Iterator[str]:
    """What the columns mean that this table has."""
    ends = {" on 1": " on 1, 2, ...", " (mean)": " (mean, worst)"}
    centers = next((h.removesuffix(e) + ends[e] for h in headings for e in ends if h.endswith(e)), None)
    if centers:
        yield f"{centers}: of each distribution's own center, on points of that distribution"
    if any(h.startswith("others") for h in headings):
        yield "others: the best of the other centers there"
    if any(h.startswith("personal") for h in headings):
        yield "personal: mean over clients on their held-out points"


def _number(heading: str, value: float) -> str:
    if math.isnan(value):
        return "diverged"
    return f"{value:.1f}" if heading == "MB sent" else f"{value:.3f}"


def _spread(heading: str, mean: float, deviation: float | None) -> str:
    return _number(heading, mean) + ("" if deviation is None else f" ± {_number(heading, deviation)}")
