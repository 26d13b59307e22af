"""Clusters with their members, and the clients that are served worst: what `coterie show` and the end of a run say."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from coterie.runs.client_table import SCORES, ClientLine

_ABSENT = "–"
_LONGEST = 40  # letters of an id that are shown
_MOST = 12  # lines of clusters at the end of a run
_LINE = 100  # columns of a line with the first members of a cluster, where there is room


@dataclass(frozen=True)
class Cluster:
    """The clients whose largest importance is that of this cluster."""

    number: int
    members: tuple[ClientLine, ...]

    @property
    def points(self) -> int | None:
        """None where some member's are not known."""
        known = [line.points for line in self.members if line.points is not None]
        return sum(known) if len(known) == len(self.members) else None

    def mean(self, name: str) -> float | None:
        """Over the members of whom it is known."""
        known = [value for line in self.members if (value := getattr(line, name)) is not None]
        return fmean(known) if known else None

    def named(self) -> dict[str, Any]:
        """For JSON."""
        means = {name: self.mean(name) for name in ("importance", "margin", *SCORES)}
        counts = {"cluster": self.number, "clients": len(self.members), "points": self.points}
        return {**counts, **means, "members": [line.id for line in self.members if line.id]}


def clusters_of(lines: Sequence[ClientLine], count: int) -> list[Cluster]:
    """All, with those that are empty; none where no client has one, or all have the same because there is one."""
    if count < 2 or all(line.cluster is None for line in lines):
        return []
    members: list[list[ClientLine]] = [[] for _ in range(count)]
    for line in lines:
        if line.cluster is not None:
            members[line.cluster].append(line)
    return [Cluster(number, tuple(each)) for number, each in enumerate(members)]


def worst(lines: Sequence[ClientLine], count: int) -> list[ClientLine]:
    """The clients of least accuracy, or of highest loss where there is no accuracy."""
    scored = [line for line in lines if line.loss is not None]
    return sorted(scored, key=lambda line: (line.accuracy or 0.0, -(line.loss or 0.0)))[:count]


# tables


def clusters_table(clusters: Sequence[Cluster], wide: bool = False) -> Table:
    """A line per cluster."""
    names = _known([line for cluster in clusters for line in cluster.members], wide)
    means = [name for name in names if name not in ("cluster", "points", "way")]
    own = ", ".join(_HEADING.get(name, name) for name in means if name in SCORES)
    note = "means over clients" + (f"; {own}: of their own models on their held-out points" if own else "")
    points = ["points"] if "points" in names else []
    table = _table(["cluster", "clients", *points, *means], note)
    for one in clusters:
        counts = [str(one.number), str(len(one.members)), *(_cell(one.points) for _ in points)]
        table.add_row(*counts, *(_cell(one.mean(name)) for name in means))
    return table


def clients_table(lines: Sequence[ClientLine], clustered: bool, wide: bool = False) -> Table:
    """A line per client."""
    names = [name for name in _known(lines, wide) if clustered or name not in _OF_CLUSTERS]
    table = _table(["client", *names])
    table.columns[0].justify = "left"
    for line in lines:
        table.add_row(escape(_short(line.id)), *(_cell(getattr(line, name)) for name in names))
    return table


_HEADING = {"f1": "F1"}
_OF_CLUSTERS = ("cluster", "importance", "margin")


def _known(lines: Sequence[ClientLine], wide: bool) -> list[str]:
    """The columns of which anything is known, in their order.

    Unless the table is to be wide: importance of soft clusters only, for hard ones the margin; and no F1.
    """
    hard = all(line.importance in (1, None) for line in lines)
    left_out = () if wide else ("importance" if hard else "margin", "f1")
    names = ("cluster", "points", "importance", "margin", "accuracy", "f1", "loss", "way")
    return [n for n in names if n not in left_out and any(getattr(line, n) is not None for line in lines)]


def _table(headings: Sequence[str], note: str | None = None) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=note, caption_justify="left")
    for name in headings:
        table.add_column(_HEADING.get(name, name), justify="right", overflow="fold")
    return table


def _cell(value: float | str | None) -> str:
    if value is None or isinstance(value, int | str):
        return _ABSENT if value is None else str(value)
    return f"{value:.3f}" if value < 1000 else f"{value:.4g}"


# sentences


def readable(id: str) -> str:
    """An id with nothing in it that a terminal would take for a command, or that cannot be seen."""
    return id if id and id.isprintable() and id == id.strip() else repr(id)


def _short(id: str) -> str:
    plain = readable(id)
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def first_members(cluster: Cluster, begins: str, width: int) -> str:
    """How many clients a cluster has, and the first of them, in a line that is no wider."""
    width = min(width, _LINE)
    ids = [_short(line.id) for line in cluster.members]
    line = begins = begins + _count(cluster)
    for shown in range(min(len(ids), width // 3), 0, -1):
        rest = f" and {len(ids) - shown} more" if shown < len(ids) else ""
        line = begins + ", ".join(ids[:shown]) + rest
        if len(line) <= width:
            break
    return line


def all_members(cluster: Cluster, begins: str, width: int) -> str:
    """The same with all of them, in as many lines as it takes."""
    ids = ", ".join(readable(line.id) for line in cluster.members)
    return textwrap.fill(
        begins + _count(cluster) + ids,
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(cluster: Cluster) -> str:
    count = len(cluster.members)
    return f"{count} client{'' if count == 1 else 's'}" + (": " if count else "")


def at_the_end(methods: Mapping[str, Sequence[Cluster]], width: int) -> list[str]:
    """Of each clustered method its clusters, in a few lines; where that would be many, their sizes alone."""
    methods = {label: clusters for label, clusters in methods.items() if clusters}
    if sum(len(clusters) + 1 for clusters in methods.values()) > _MOST:
        return [f"{label}: {_sizes(clusters)}" for label, clusters in methods.items()]
    lines = []
    for label, clusters in methods.items():
        lines += [f"{label}:", *(first_members(one, f"  cluster {one.number}, ", width) for one in clusters)]
    return lines


def _sizes(clusters: Sequence[Cluster]) -> str:
    if len(clusters) <= _MOST:
        every = ", ".join(f"{one.number}: {len(one.members)}" for one in clusters)
        return f"{len(clusters)} clusters, with so many clients each: {every}"
    sizes = [len(one.members) for one in clusters]
    largest = clusters[sizes.index(max(sizes))].number
    return f"{len(sizes)} clusters, of {min(sizes)} to {max(sizes)} clients; the largest is cluster {largest}"
