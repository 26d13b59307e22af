"""The report for people: a table at the terminal, or in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

HEADINGS = (
    "workload",
    "baseline",
    "client-steps/s",
    "times the first",
    "s/round",
    "spread",
    "start-up, s",
    "memory, MB",
    "loss",
    "accuracy",
)
ROOFLINE = "of the roofline"


def lines(report: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Each baseline's workload and cells; one that was skipped has its reason."""
    for workload in report.get("workloads", {}).values():
        for baseline, row in workload["baselines"].items():
            yield workload["settings"]["title"], _cells(baseline, row)


def _cells(baseline: str, row: dict[str, Any]) -> list[str]:
    if "skipped" in row:
        return [baseline, f"skipped: {row['skipped']}"]
    memory = row["peak_device_memory_bytes"] or row["peak_memory_bytes"]
    return [
        baseline,
        _number(row["client_steps_per_second"]),
        _number(row["times_usual"]),
        _number(row["seconds_a_round"]),
        f"{100 * row['spread']:.0f} %" if len(row["all_seconds"]) > 1 else "",
        _number(row["start_up_seconds"]),
        _number(memory and memory / 1e6),
        _number(row["loss"], 4) + (f" ({row['differs']})" if row["differs"] else ""),
        _number(row["accuracy"], 3),
        *([f"{100 * row['share_of_floor']:.0f} %"] if "share_of_floor" in row else []),
    ]


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def headings(report: dict[str, Any]) -> list[str]:
    return [*HEADINGS, *([ROOFLINE] if "ceilings" in report else [])]


def shown(report: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings(report)):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    before = None
    for name, cells in lines(report):
        if before not in (None, name):
            table.add_section()
        table.add_row("" if name == before else name, *cells)
        before = name
    return table


def markdown(report: dict[str, Any]) -> list[str]:
    """The same in Markdown, with where the numbers come from."""
    heads = headings(report)
    found = [f"| {' | '.join(heads)} |", "|---" * 2 + "|---:" * (len(heads) - 2) + "|"]
    before = None
    for name, cells in lines(report):
        padded = [*cells, *[""] * (len(heads) - 1 - len(cells))]
        found.append(f"| {' | '.join(['' if name == before else name, *padded])} |")
        before = name
    return [*found, "", *origin(report)]


def origin(report: dict[str, Any]) -> list[str]:
    """Sentences."""
    said = report["provenance"]
    versions = _versions(report)
    tf32 = ", tf32" if said["tf32"] else ""
    found = [
        f"{said['machine']}; {said['threads']} threads for every baseline, device {said['device']}{tf32}; median of "
        f"{_rounds(report)}. {said['versions']}{versions}. "
        f"Commit {said['commit'] or 'unknown'}, {said['date']}, `{said['command']}`."
    ]
    if "ceilings" in report:
        limits = report["ceilings"]
        found.append(
            f"Seen in the same run: copy {limits['bytes_per_second'] / 1e12:.2f} TB/s, matrix product "
            f"{limits['flops_per_second'] / 1e12:.1f} TFLOP/s."
        )
    return found


def noisy(report: dict[str, Any], most: float) -> list[str]:
    """A sentence, if some times vary by more than this share."""
    found = [
        f"{workload['settings']['title']}, {baseline}"
        for workload in report["workloads"].values()
        for baseline, row in workload["baselines"].items()
        if row.get("spread", 0) > most
    ]
    if not found:
        return []
    return [
        f"The rounds of {'; '.join(found)} vary by more than {100 * most:.0f} %: perhaps other programs are busy here. "
        "Measure again when they are not, or with fewer --threads."
    ]


def _rounds(report: dict[str, Any]) -> str:
    """How many were timed: not all, if it was interrupted."""
    rows = [row for workload in report["workloads"].values() for row in workload["baselines"].values()]
    timed = {len(row["all_seconds"]) for row in rows if "all_seconds" in row} or {0}
    least, most = min(timed), max(timed)
    many = str(most) if least == most else f"{least} to {most}"
    return f"{many} round{'' if most == 1 else 's'}"


def _versions(report: dict[str, Any]) -> str:
    """Of the other packages; those of coterie itself are said already."""
    found: dict[str, str] = {}
    for workload in report["workloads"].values():
        for row in workload["baselines"].values():
            found |= {name: number for name, number in row.get("versions", {}).items() if name != "Python"}
    return "".join(f", {name} {number}" for name, number in sorted(found.items()) if name != "torch")
