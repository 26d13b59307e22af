"""Tables for people: the end of a run, runs compared, a client taken in, a number of clusters chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from coterie.model_selection.choice import Choice
from coterie.report.compare import Line, Numbers
from coterie.runs.onboarding import Onboarded

_ABSENT = "–"


def end_of_run(methods: Mapping[str, Numbers]) -> Table:
    """One line per method."""
    headings = _headings(methods.values())
    headings = [h for h in headings if h not in ("personal F1", "personal loss")]  # these are in the folder
    table = _table("method", headings)
    for label, numbers in methods.items():
        table.add_row(label, *(_number(h, numbers[h]) if h in numbers else _ABSENT for h in headings))
    return table


def compared(lines: Sequence[Line]) -> Table:
    """One line per group of runs that differ in the seed alone."""
    columns = [line.over_seeds() for line in lines]
    headings = [heading for heading in _headings(columns) if not heading.startswith("others on")]
    table = _table("method", [*headings, "seeds"], "mean ± sample standard deviation over seeds")
    for line, column in zip(lines, columns, strict=True):
        cells = [_spread(h, *column[h]) if h in column else _ABSENT for h in headings]
        table.add_row(escape(line.name), *cells, str(len(line.runs)))
    return table


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


def _headings(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """All headings, in the order of the row that has most."""
    longest = sorted(rows, key=len, reverse=True)
    return list(dict.fromkeys(heading for row in longest for heading in row))


def _table(first: str, headings: Sequence[str], note: str = "") -> Table:
    legend = "; ".join([*_explained(headings), *([note] if note else [])])
    table = Table(box=SIMPLE_HEAD, show_edge=False, caption=legend or None, caption_justify="left")
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _explained(headings: Sequence[str]) -> Iterator[str]:
    """What the columns mean that this table has."""
    centers = next((h.partition(" ")[0] for h in headings if h.endswith(" on 1")), None)
    if centers:
        yield f"{centers} on 1, 2, ...: of each distribution's own center, on points of that distribution"
    if "others on 1" in headings:
        yield "others: the best of the other centers there"
    if any(h.startswith("personal") for h in headings):
        yield "personal: mean over clients on their held-out points"


def _number(heading: str, value: float) -> str:
    if math.isnan(value):
        return "diverged"
    return f"{value:.1f}" if heading == "MB sent" else f"{value:.3f}"


def _spread(heading: str, mean: float, deviation: float | None) -> str:
    return _number(heading, mean) + ("" if deviation is None else f" ± {_number(heading, deviation)}")
