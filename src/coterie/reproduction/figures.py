"""An item's results as a picture: numbers by round or by variant, one line per method; points; or a matrix."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole
from coterie.reproduction.items import Column, Item
from coterie.reproduction.points import HEADS, Row
from coterie.reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, HIGH = 4.2, 3.0  # inches of a panel
Name = TypeVar("Name", bound=Hashable)


def needs_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise CoterieError("a figure needs matplotlib, which is not installed: pip install 'coterie[plot]'")


def drawable(item: Item, results: Results) -> bool:
    """Is it a figure, and is there something to draw? Points are kept of the first seed alone."""
    if item.figure in HEADS:
        return bool(results.points)
    return item.figure is not None and bool(_panels(item, results))


def draw(item: Item, results: Results, path: Path) -> None:
    """As the item says, with a legend below."""
    needs_matplotlib()
    drawn = _draw_points(item, results) if item.figure in HEADS else _draw_numbers(item, results)
    picture = io.BytesIO()
    drawn.savefig(picture, format="png", dpi=110)
    make_folder(path.parent)
    write_whole(path, picture.getvalue())


def _grid(panels: int, across: int, wide: float = WIDE, high: float = HIGH) -> tuple[Figure, list[Axes]]:
    """A figure with room for these panels; what is left of the last row stays empty."""
    from matplotlib.figure import Figure

    down = math.ceil(panels / across)
    figure = Figure(figsize=(wide * across, high * down), layout="constrained")
    all_axes = list(figure.subplots(down, across, squeeze=False).ravel())
    for axes in all_axes:
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in all_axes[panels:]:
        axes.set_visible(False)
    return figure, all_axes[:panels]


def _nothing(item: Item) -> CoterieError:
    return CoterieError(
        f"{item.name} has no results to draw: its runs diverged, or are still to be made: "
        f"coterie reproduce {item.name}"
    )


# numbers


def _draw_numbers(item: Item, results: Results) -> Figure:
    """Curves have a panel per variant and column, other numbers one per series of variants and column.

    Of a single variant the methods stand one below the other.
    """
    panels = _panels(item, results)
    if not panels:
        raise _nothing(item)
    names = len(dict.fromkeys(name for name, _ in panels))
    # variants or series stand side by side, columns one below the other
    across = 3 if names == 1 else min(3, names)
    figure, all_axes = _grid(len(panels), min(across, len(panels)))
    methods = item.in_order(line.method for line in results.lines)
    color_of = _colors(methods)  # the same in all panels
    for axes, (variant, column) in zip(all_axes, panels, strict=True):
        if not column.by_round and len(item.variants) == 1:
            _draw_methods(axes, item, results, column, color_of)
            continue
        if column.by_round:
            _draw_curves(axes, item, results, variant, column, color_of)
        else:
            _draw_variants(axes, item, results, variant, column, color_of)
        axes.set_ylabel(column.name, fontsize=8)
        if _spans_decades(axes):
            axes.set_yscale("log")
    shown: dict[str, Any] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        shown.update(zip(labels, handles, strict=True))
    if legend := [shown[method] for method in methods if method in shown]:
        figure.legend(handles=legend, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _spans_decades(axes: Axes) -> bool:
    """Would small numbers all lie on the axis?"""
    shown = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    shown = shown[np.isfinite(shown)]
    return bool(shown.min(initial=np.inf) > 0 and shown.max(initial=0) > 30 * shown.min(initial=np.inf))


def _panels(item: Item, results: Results) -> list[tuple[str, Column]]:
    ours = {cell for cell, (mean, _, _) in results.over_seeds().items() if math.isfinite(mean)}
    curves = [
        (variant, column)
        for column in item.columns
        for variant in item.variants
        if column.by_round and results.curves(variant, column.name)
    ]
    return curves or [
        (name, column)
        for column in item.columns
        for name, variants in _series(item).items()
        if any(cell[0] in variants and cell[2] == column.name for cell in ours)
    ]


def _series(item: Item) -> dict[str, dict[str, str]]:
    """Variants that differ in their last number, by what they have in common: MNIST, S = 2 and MNIST, S = 3."""
    found: dict[str, dict[str, str]] = {}
    for variant in item.variants:
        common, _, last = variant.rpartition(", ")
        found.setdefault(common, {})[variant] = last
    if all(len(each) > 1 for each in found.values()):
        return found
    return {"": {variant: variant for variant in item.variants}}


def _draw_curves(
    axes: Axes, item: Item, results: Results, variant: str, column: Column, color_of: dict[str, Any]
) -> None:
    curves = results.curves(variant, column.name)
    for method in item.in_order(curves):
        axes.plot(*zip(*curves[method], strict=True), label=method, lw=1.2, color=color_of[method])
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("round", fontsize=8)
    axes.set_title(variant, fontsize=8)


def _draw_methods(axes: Axes, item: Item, results: Results, column: Column, color_of: dict[str, Any]) -> None:
    """A cross is what the paper has."""
    (variant,), ours, theirs = item.variants, results.over_seeds(), item.values()
    for place, (method, color) in enumerate(color_of.items()):
        mean, std, _ = ours.get((variant, method, column.name), (math.nan, None, 0))
        axes.errorbar(mean, place, xerr=std or 0.0, fmt="o", ms=4, lw=1.2, capsize=2, color=color)
        paper, _ = theirs.get((variant, method, column.name), (math.nan, None))
        axes.plot(paper, place, "x", ms=5, color=color)
    axes.set_yticks(range(len(color_of)), list(color_of))
    axes.invert_yaxis()
    axes.set_xlabel(column.name, fontsize=8)


def _draw_variants(
    axes: Axes, item: Item, results: Results, series: str, column: Column, color_of: dict[str, Any]
) -> None:
    """Dashed is what the paper has."""
    ours, theirs = results.over_seeds(), item.values()
    variants = _series(item)[series]
    for method, color in color_of.items():
        mean, std = [], []
        for variant in variants:
            found = ours.get((variant, method, column.name), (math.nan, None, 0))
            mean.append(found[0])
            std.append(found[1] or 0.0)
        look: dict[str, Any] = {"fmt": "o-", "ms": 3, "lw": 1.2, "capsize": 2, "color": color}
        axes.errorbar(range(len(variants)), mean, std, label=method, **look)
        paper = [theirs.get((variant, method, column.name), (math.nan, None))[0] for variant in variants]
        axes.plot(range(len(variants)), paper, "x--", ms=4, lw=0.8, color=color)
    turned = sum(map(len, variants.values())) > 40
    axes.set_title(series, fontsize=8)
    axes.set_xlabel(item.table.get("varied", ""), fontsize=8)
    axes.set_xticks(
        range(len(variants)),
        list(variants.values()),
        rotation=30 if turned else 0,
        ha="right" if turned else "center",
    )


# points


def _draw_points(item: Item, results: Results) -> Figure:
    """A panel for each variant, method and round; rounds lie side by side."""
    panels: dict[tuple[str, str, int], list[Row]] = {}
    methods = item.in_order(point.method for point in results.points)
    variants = list(item.variants)
    for point in sorted(results.points, key=lambda p: (variants.index(p.variant), methods.index(p.method))):
        panels.setdefault((point.variant, point.method, point.round), []).append(point.row)
    if not panels:
        raise _nothing(item)
    by_round = len(panels) > len({(variant, method) for variant, method, _ in panels})
    rounds = len({number for _, _, number in panels})
    across = rounds if by_round else min(2 if item.figure == "importance" else 3, len(panels))
    wide, high = (WIDE, 2.2) if item.figure == "importance" else (2.6, 2.6)
    figure, all_axes = _grid(len(panels), across, wide, high)
    clusters = _clusters(panels.values())
    least = min((row[-1] for rows in panels.values() for row in rows if row[-1] == row[-1]), default=0.0)
    for axes, ((variant, method, number), rows) in zip(all_axes, panels.items(), strict=True):
        titles = (variant, method, f"round {number}" if by_round else "")
        axes.set_title("\n".join(filter(None, titles)), fontsize=8)
        if item.figure == "heatmap":
            shown = _draw_heatmap(axes, rows, least)
        else:
            (_draw_scatter if item.figure == "scatter" else _draw_importance)(axes, rows, clusters)
    if item.figure == "heatmap":
        bar = figure.colorbar(shown, ax=all_axes, shrink=0.7)
        bar.set_label(
            "cosine of centers; on the diagonal of two\nclients in the cluster (gray: has no two)", fontsize=8
        )
        bar.ax.tick_params(labelsize=7)
    else:
        word = "mostly cluster" if item.figure == "importance" else "cluster"
        handles = [_disc(color, f"{word} {cluster + 1}") for cluster, color in clusters.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def _clusters(panels: Iterable[list[Row]]) -> dict[int, Any]:
    """Those that clients are in, each with its color."""
    return _colors(sorted({int(row[1]) for rows in panels for row in rows}))


def _colors(names: Sequence[Name]) -> dict[Name, Any]:
    from matplotlib import colormaps

    few = colormaps["tab10" if len(names) <= 10 else "tab20"]
    return {name: few(number % few.N) for number, name in enumerate(names)}


def _disc(color: Any, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", marker="o", ms=5, color=color, label=label)


def _draw_scatter(axes: Axes, rows: list[Row], clusters: dict[int, Any]) -> None:
    """What t-SNE's axes measure has no meaning, so that they have no numbers."""
    colors = [clusters[int(cluster)] for _, cluster, _, _ in rows]
    axes.scatter([row[2] for row in rows], [row[3] for row in rows], s=14, c=colors, linewidths=0)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel("t-SNE 1", fontsize=7)
    axes.set_ylabel("t-SNE 2", fontsize=7)


def _draw_importance(axes: Axes, rows: list[Row], clusters: dict[int, Any]) -> None:
    colors = [clusters[int(cluster)] for _, cluster, _ in rows]
    axes.scatter([row[0] for row in rows], [row[2] for row in rows], s=14, c=colors, linewidths=0)
    axes.set_ylim(-0.04, 1.04)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("client", fontsize=8)
    axes.set_ylabel("importance of cluster 1", fontsize=8)


def _draw_heatmap(axes: Axes, rows: list[Row], least: float) -> Any:
    """Colors run from the least cosine in the whole picture to 1."""
    clusters = 1 + int(max(row[0] for row in rows))
    matrix = [[math.nan] * clusters for _ in range(clusters)]
    for one, other, cosine in rows:
        matrix[int(one)][int(other)] = cosine
    numbers = range(0, clusters, 1 if clusters <= 12 else 5)
    for set_ticks in (axes.set_xticks, axes.set_yticks):
        set_ticks(list(numbers), [str(number + 1) for number in numbers])
    axes.set_xlabel("cluster", fontsize=8)
    axes.set_ylabel("cluster", fontsize=8)
    axes.set_facecolor("0.8")  # behind what is not there
    return axes.imshow(matrix, cmap="Blues", vmin=least, vmax=1)
