"""The picture of a choice: losses against the number of clusters."""

from __future__ import annotations

import io
import math
from pathlib import Path

from coterie.choice import PLOT, Choice
from coterie.errors import CoterieError
from coterie.store import make_folder, write_whole

HELD_OUT, TRAINING, CHOSEN = "#0b5fa5", "#8a8a8a", "#c8501e"
STEEP = 8  # times the best: beyond that the flat part is seen only on a logarithmic axis


def draw(choice: Choice, folder: Path) -> Path:
    """choice.png in the folder."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as problem:
        raise CoterieError(
            "the plot needs matplotlib, which is not installed: pip install 'coterie[plot]'"
        ) from problem
    lines = [line for line in choice.lines if math.isfinite(line.held_out_loss)]
    numbers = [line.n_clusters for line in lines]
    held_out, error = [line.held_out_loss for line in lines], [line.standard_error for line in lines]
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(numbers, [line.training_loss for line in lines], "--", color=TRAINING, label="training")
    axes.errorbar(
        numbers, held_out, error, fmt="o-", color=HELD_OUT, capsize=3, label="held out, ± 1 standard error"
    )
    best = next(line for line in lines if line.chosen)
    label = f"chosen: {best.n_clusters}"
    axes.plot(
        [best.n_clusters], [best.held_out_loss], "o", ms=13, mfc="none", mew=2, color=CHOSEN, label=label
    )
    if min(held_out) > 0 and max(held_out) > STEEP * min(held_out):
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="number of clusters", ylabel="loss, mean over clients")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    make_folder(folder)
    write_whole(folder / PLOT, picture.getvalue())
    return folder / PLOT
