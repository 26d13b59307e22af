"""Pictures, and the table behind one: losses against the number of clusters, and who has what."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from coterie.data.federation import Federation
from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole
from coterie.model_selection.choice import PLOT, Choice

HELD_OUT, TRAINING, CHOSEN = "#0b5fa5", "#8a8a8a", "#c8501e"
STEEP = 8  # times the best: beyond that the flat part is seen only on a logarithmic axis

_BESIDE, _BETWEEN = 42, 4  # columns of the terminal: those beside the classes, and between two
_ROWS, _COLUMNS, _DRAWN = 40, 12, 200  # clients and classes in a table, clients in a picture
_LISTED = 6  # distributions whose shares are spelled out


# how many clusters


def draw_choice(choice: Choice, folder: Path) -> Path:
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


# who has what


def held(data: Federation) -> Tensor:
    """(client, distribution, class): training points; characters, of a text. All are of class 0 in a regression."""
    points, clients = data.train, len(data)
    component = torch.zeros_like(points.at) if points.component is None else points.component
    n = int(component.max()) + 1 if data.mixture is None else data.mixture.shape[1]
    classes = 1 if data.task == "regression" else data.n_outputs
    label = (
        torch.zeros_like(points.at)[:, None]
        if data.task == "regression"
        else points.y.view(len(points.y), -1)
    )
    cell = ((points.owner * n + component)[:, None] * classes + label).flatten()
    return cell.bincount(minlength=clients * n * classes).view(clients, n, classes)


def by_cluster(whole: Tensor) -> list[int]:
    """Clients, those with most of the same distribution beside each other."""
    order: list[int] = whole.sum(2).argmax(1).argsort(stable=True).tolist()
    return order


def clients_table(data: Federation, width: int = 200) -> Table:
    """A line per client, with a column for each class where so many columns of the terminal have room for them."""
    whole = held(data)
    classes = whole.shape[2]
    wide = data.task != "regression" and classes <= _COLUMNS
    wide = wide and _BESIDE + sum(_BETWEEN + len(word) for word in _words(data)) <= width
    many = data.task != "regression" and not wide
    words = map(escape, _words(data)) if wide else ["classes"] if many else []
    made = Table(box=SIMPLE_HEAD, show_edge=False, caption=_caption(data), caption_justify="left")
    made.add_column("client")
    for heading in ("distribution", "train", "test", *words):
        made.add_column(heading, justify="right")
    for k in by_cluster(whole)[:_ROWS]:
        of_class = whole[k].sum(0)
        counted = [f"{int((of_class > 0).sum())} of {classes}"] if many else []
        held_classes = map(str, of_class.tolist()) if wide else counted
        tested = "–" if data.test is None else str(int(data.test.sizes[k]))
        sizes = str(int(data.train.sizes[k])), tested
        made.add_row(
            escape(data.ids[k]),
            _shares(whole[k].sum(1)),
            *sizes,
            *(c if c != "0" else "·" for c in held_classes),
        )
    return made


def _shares(points: Tensor) -> str:
    """1, where all is of one distribution; else how much is of each."""
    share = points / points.sum()
    if share.max() == 1:
        return str(int(share.argmax()) + 1)
    if len(share) <= _LISTED:
        return " ".join(f"{float(s):.0%}" for s in share)
    has = share.argsort(descending=True, stable=True)[: int((share > 0).sum())].tolist()
    best = " ".join(f"{s + 1}:{float(share[s]):.0%}" for s in has[:3])
    return f"{best} …" if len(has) > 3 else best


def _words(data: Federation) -> list[str]:
    return list(data.classes or data.names) or [str(label) for label in range(data.n_outputs)]


def _caption(data: Federation) -> str:
    left_out = f"; {len(data) - _ROWS} more clients are not listed" if len(data) > _ROWS else ""
    tested = 0 if data.test is None else len(data.test.at)
    return f"{len(data)} clients, {len(data.train.at)} points to train on, {tested} to test on{left_out}"


def draw_clients(data: Federation, out: Path) -> None:
    """Clients by classes, a disc for the points of each, and below how many points; colors are distributions."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise CoterieError(
            "a picture needs matplotlib, which is not installed: pip install 'coterie[plot]'"
        ) from problem
    whole = held(data)
    order = by_cluster(whole)
    chosen = [order[i * len(order) // min(len(order), _DRAWN)] for i in range(min(len(order), _DRAWN))]
    whole = whole[chosen]
    clients, n, classes = whole.shape
    plain = data.task == "regression"
    tall = 0.0 if plain else min(8.0, max(2.0, 0.28 * classes))
    figure = Figure(figsize=(min(16.0, max(6.0, 0.075 * clients + 2)), tall + 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    panes = figure.subplots(
        1 if plain else 2, 1, sharex=True, squeeze=False, height_ratios=[1.6] if plain else [tall, 1.6]
    )[:, 0]
    colors = _colors(n)
    if not plain:
        _discs(panes[0], whole, colors, data)
    _bars(panes[-1], whole.sum(2), colors)
    if data.task == "next-character":
        panes[0].set_ylabel("character")
        panes[-1].set_ylabel("characters")
    some = f"{clients} of {len(data)}" if clients < len(data) else str(clients)
    panes[0].set_title(f"{some} clients, {len(data.train.at)} points to train on", loc="left", fontsize=10)
    if n > 1:
        handles = [panes[-1].bar([0], [0], color=color) for color in colors]
        names = [f"distribution {s + 1}" for s in range(n)]
        figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
    try:
        figure.savefig(out, dpi=150)
    except OSError as problem:
        raise CoterieError(
            f"{out} cannot be written ({problem.strerror}); allowed is a file in a folder that exists"
        ) from problem


def _discs(pane: Any, whole: Tensor, colors: Sequence[Any], data: Federation) -> None:
    """The area of a disc is a number of points; what is of further distributions lies inside."""
    _, n, classes = whole.shape
    most = float(whole.sum(1).max())
    outer = whole.flip(1).cumsum(1).flip(1)  # of this distribution and those after it
    for s in range(n):
        client, label = (whole[:, s] > 0).nonzero().T.tolist()
        area = [70 * float(outer[i, s, c]) / most for i, c in zip(client, label, strict=True)]
        pane.scatter(client, label, s=area, color=[colors[s]], linewidths=0)
    step = 1 if classes <= 30 else classes // 20
    words = [repr(word)[1:-1] for word in _words(data)[::step]]  # a line's end is a character too
    pane.set_yticks(range(0, classes, step), words, fontsize=8)
    pane.set(ylabel="class", ylim=(classes - 0.4, -0.6))


def _bars(pane: Any, points: Tensor, colors: Sequence[Any]) -> None:
    below = torch.zeros(len(points))
    for s, color in enumerate(colors):
        pane.bar(range(len(points)), points[:, s].tolist(), 0.9, bottom=below.tolist(), color=color)
        below = below + points[:, s]
    pane.set(xlabel="client, by distribution", ylabel="points", xlim=(-0.8, len(points) - 0.2))
    pane.locator_params(axis="x", integer=True)


def _colors(n: int) -> list[Any]:
    from matplotlib import colormaps

    few = colormaps["tab10" if n <= 10 else "tab20"]
    return [few(s) if n <= 20 else colormaps["hsv"](s / n) for s in range(n)]
