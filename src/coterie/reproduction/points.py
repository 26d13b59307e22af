"""What a figure shows that no number per run can: clients as points, or centers as a matrix; of one seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.runs.folder import RunFolder

Row = tuple[float, ...]
HEADS = {  # of each kind of figure that has any, what a row holds
    "scatter": ("client", "cluster", "x", "y"),
    "importance": ("client", "cluster", "importance"),
    "heatmap": ("cluster", "other", "cosine"),
}


@dataclass(frozen=True)
class Point:
    variant: str
    method: str
    settings: str  # a hash, as of a line of results
    round: int  # from 1
    row: Row


def rows_of(figure: str, store: RunFolder, every_round: bool) -> list[tuple[int, Row]]:
    """From a finished run: the rows of all rounds or of the last, each with its round."""
    rounds = len(store.records())
    shown = range(rounds) if every_round else [rounds - 1]
    return [(number + 1, row) for number in shown for row in FIGURES[figure](store, number)]


def _scatter(store: RunFolder, number: int) -> list[Row]:
    """t-SNE of the projected models that clients sent, with the cluster of each."""
    columns = store.columns(number)
    clients, seen = columns["client"], columns["projection"].flatten(1)
    cluster = columns["importance"].argmax(1)[clients]
    return list(zip(clients.tolist(), cluster.tolist(), *_tsne(seen), strict=True))


def _tsne(seen: Tensor) -> list[list[float]]:
    """Two dimensions, each with a number for every point."""
    from sklearn.manifold import TSNE

    near = min(30.0, (len(seen) - 1) / 3)  # 30 is usual, for more points than these
    found: list[list[float]] = (
        TSNE(perplexity=near, random_state=0).fit_transform(seen.double().numpy()).T.tolist()
    )
    return found


def _importance(store: RunFolder, number: int) -> list[Row]:
    """What each client has of the first distribution's cluster; clusters come in the order of distributions."""
    own = store.summary()["centers"]["center_of_distribution"]
    importance = store.result()[0]["importance"]
    order = [*own, *(one for one in range(importance.shape[1]) if one not in own)]
    ordered = importance[:, order]
    clients = range(len(ordered))
    return list(zip(clients, ordered.argmax(1).tolist(), ordered[:, 0].tolist(), strict=True))


def _heatmap(store: RunFolder, number: int) -> list[Row]:
    """The cosine of every two centers; on the diagonal the mean over two clients' models in the cluster."""
    columns = store.columns(number)
    cosine = columns["similarity"].clone()
    within = columns.get("cosine_within", torch.full((len(cosine),), torch.nan))
    cosine.diagonal().copy_(within)
    return [(i, j, value) for i, row in enumerate(cosine.tolist()) for j, value in enumerate(row)]


FIGURES: dict[str, Callable[[RunFolder, int], list[Row]]] = {
    "scatter": _scatter,
    "importance": _importance,
    "heatmap": _heatmap,
}
