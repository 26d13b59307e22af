"""Draws what `make run` found: `python examples/picture.py runs/two-labelings docs/tutorial/two-labelings.png`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from coterie.experiment.experiment import load
from coterie.runs.folder import RunFolder

BLUE, ORANGE, GREY = "#1f6fb2", "#d9772b", "#9a9a9a"


def draw(run: Path, picture: Path) -> None:
    experiment = load(run / "experiment.toml")
    truth = experiment.federation().mixture[:, 0]
    stores = {method.label: RunFolder(run / method.label) for method in experiment.methods}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")

    left.plot(truth, color=GREY, lw=6, alpha=0.5, label="true share", zorder=0)
    for label, color, mark in (("FedSoft", BLUE, "o"), ("FedSPD", ORANGE, "x")):
        own = stores[label].summary()["centers"]["center_of_distribution"][0]
        found = stores[label].result()[0]["importance"][:, own]
        left.plot(found, mark, color=color, ms=4, label=f"found by {label}")
    left.set(
        xlabel="client", ylabel="share of the first labeling", title="How much of each labeling a client has"
    )
    left.legend(frameon=False)

    bars = []
    for label, store in stores.items():
        centers = store.summary().get("centers")
        if centers:
            own = [centers["accuracy"][s][d] for d, s in enumerate(centers["center_of_distribution"])]
            name = f"{label}'s\n{'centers' if len(centers['loss']) > 1 else 'one model'}"
            bars.append((name, own))
    for i, (_, own) in enumerate(bars):
        for k, (value, color) in enumerate(zip(own, (BLUE, ORANGE), strict=True)):
            bar = right.bar(i + 0.36 * (k - 0.5), value, 0.34, color=color)
            right.bar_label(bar, [f"{value:.2f}"], padding=2, fontsize=8)
    right.set_xticks(range(len(bars)), [name for name, _ in bars])
    right.set(ylim=(0, 1.05), ylabel="accuracy", title="The centers, each on its own labeling")
    right.legend(
        [plt.Rectangle((0, 0), 1, 1, color=c) for c in (BLUE, ORANGE)],
        ["first labeling", "second labeling"],
        frameon=False,
        loc="upper left",
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
