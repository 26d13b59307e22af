"""An item's results as a picture: a number by round, or by variant, one line per method."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole
from coterie.reproduction.items import Column, Item
from coterie.reproduction.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 9  # panels of a picture
WIDE, HIGH = 4.2, 3.0  # inches of a panel


def draw(item: Item, results: Results, path: Path) -> None:
    """Curves have a panel per variant and column, other numbers one per column with the variants side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise CoterieError(
            "the picture needs matplotlib, which is not installed: pip install 'coterie[plot]'"
        ) from problem
    panels = _panels(item, results)[:MOST]
    if not panels:
        raise CoterieError(f"{item.name} has no results to draw; run it first: coterie reproduce {item.name}")
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(WIDE * across, HIGH * down), layout="constrained")
    all_axes = figure.subplots(down, across, squeeze=False).ravel()
    for axes, (variant, column) in zip(all_axes, panels, strict=False):
        _draw_curves(axes, results, variant, column) if column.by_round else _draw_variants(
            axes, item, results, column
        )
        axes.set_ylabel(column.name, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    make_folder(path.parent)
    write_whole(path, picture.getvalue())


def _panels(item: Item, results: Results) -> list[tuple[str, Column]]:
    ours = {cell for cell, (mean, _, _) in results.over_seeds().items() if math.isfinite(mean)}
    curves = [
        (variant, column)
        for column in item.columns
        for variant in item.variants
        if column.by_round and results.curves(variant, column.name)
    ]
    return curves or [("", column) for column in item.columns if any(cell[2] == column.name for cell in ours)]


def _draw_curves(axes: Axes, results: Results, variant: str, column: Column) -> None:
    for method, points in results.curves(variant, column.name).items():
        axes.plot([at for at, _ in points], [value for _, value in points], label=method, lw=1.2)
    axes.set_xlabel("round", fontsize=8)
    axes.set_title(variant, fontsize=8)


def _draw_variants(axes: Axes, item: Item, results: Results, column: Column) -> None:
    """Dashed is what the paper has."""
    ours, theirs = results.over_seeds(), item.values()
    variants = list(item.variants)
    for method in dict.fromkeys(line.method for line in results.lines):
        mean, std = [], []
        for variant in variants:
            found = ours.get((variant, method, column.name), (math.nan, None, 0))
            mean.append(found[0])
            std.append(found[1] or 0.0)
        bars: Any = axes.errorbar(
            range(len(variants)), mean, std, fmt="o-", ms=3, lw=1.2, capsize=2, label=method
        )
        paper = [theirs.get((variant, method, column.name), (math.nan, None))[0] for variant in variants]
        axes.plot(range(len(variants)), paper, "x--", ms=4, lw=0.8, color=bars[0].get_color())
    turned = sum(map(len, variants)) > 40
    axes.set_xticks(
        range(len(variants)), variants, rotation=30 if turned else 0, ha="right" if turned else "center"
    )
