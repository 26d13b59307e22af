"""The picture of a choice: losses against the number of clusters."""

from __future__ import annotations

import io
import math
from pathlib import Path

from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole
from coterie.model_selection.choice import PLOT, Choice

HELD_OUT, TRAINING, CHOSEN = "#0b5fa5", "#8a8a8a", "#c8501e"
STEEP = 8  # times the best: beyond that the flat part is seen only on a logarithmic axis


def draw(choice: Choice, folder: Path) -> Path:
    """choice.png in the folder."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
    except ImportError as problem:
        raise CoterieError(
            "the plot needs matplotlib, which is not installed: pip install 'coterie[plot]'"
        ) from problem
    lines = [line for line in choice.lines if math.isfinite(line.held_out_loss)]
    numbers, held_out = [line.n_clusters for line in lines], [line.held_out_loss for line in lines]
    errors, training = [line.standard_error for line in lines], [line.training_loss for line in lines]
    at = numbers.index(choice.n_clusters)
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    held = axes.errorbar(numbers, held_out, errors, fmt="o-", color=HELD_OUT, capsize=3)
    (trained,) = axes.plot(numbers, training, "--", color=TRAINING)
    (ring,) = axes.plot(numbers[at], held_out[at], "o", ms=13, mfc="none", mew=2, color=CHOSEN)
    names = ["held out, ± 1 standard error", "training", f"chosen: {choice.n_clusters}"]
    axes.legend([held, trained, ring], names, frameon=False)
    if min(held_out) > 0 and max(held_out) > STEEP * min(held_out):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="number of clusters", ylabel="loss, mean over clients")
    axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    make_folder(folder)
    write_whole(folder / PLOT, picture.getvalue())
    return folder / PLOT
