"""Recipes: parts of the library put together for one purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie.algorithms.fedavg import FedAvg
from coterie.api import run
from coterie.clustering.kfed import KFed
from coterie.clustering.local import Whole, nearest
from coterie.data import from_arrays
from coterie.data.federation import Federation, Points
from coterie.engine.rows import Build
from coterie.errors import CoterieError
from coterie.runs.result import Run

NUMBER = 8  # bytes of a number that k-FED sends


@dataclass(frozen=True)
class Personalised:
    """A model for every cluster of points, and which of them each client has."""

    ids: tuple[str, ...]
    clustering: KFed  # its devices are the clients, in the order of `ids`
    runs: dict[int, Run]  # by cluster: a run of those clients that have points of it

    def clusters(self, client: str, x: Any) -> Whole:
        """(point,) the cluster of the client's own mean that is nearest to each input."""
        if str(client) not in self.ids:
            raise CoterieError(f"there is no client {client!r}; allowed are the {len(self.ids)} of the data")
        at = self.ids.index(str(client))
        flat = torch.as_tensor(x).flatten(1).cpu().double().numpy()
        found: Whole = self.clustering.device_clusters_[at][
            nearest(flat, self.clustering.device_centers_[at])
        ]
        return found

    def predict(self, client: str, x: Any) -> Tensor:
        """The class or number of each input, by the model of its cluster."""
        x, clusters = torch.as_tensor(x), torch.as_tensor(self.clusters(client, x))
        parts = [(r, (clusters == r).nonzero()[:, 0]) for r in sorted(set(clusters.tolist()))]
        said = torch.cat([self.runs[r].personal[client].predict(x[own]).cpu() for r, own in parts])
        return said[torch.cat([own for _, own in parts]).argsort()]

    @property
    def megabytes(self) -> float:
        """Sent in all: k-FED's means up and their clusters down, once, and the runs' models."""
        trained = sum(float(each.summary["megabytes"]) for each in self.runs.values())
        return kfed_megabytes(self.clustering) + trained


def kfed_megabytes(clustering: KFed) -> float:
    """Sent by k-FED: the means up, and their clusters down."""
    means = sum(map(len, clustering.device_centers_))
    return NUMBER * means * (int(clustering.n_features_in_) + 1) / 1e6


def kfed_personalise(
    model: nn.Module | Build,
    data: Federation | Sequence[Any] | Mapping[str, Any],
    n_clusters: int | None = None,
    n_local_clusters: int | Literal["auto"] | Sequence[int] = 1,
    *,
    n_init: int = 10,
    seed: int = 0,
    out: Path | str | None = None,
    **settings: Any,
) -> Personalised:
    """k-FED on the inputs, once, then FedAvg for each cluster. Dennis, Li & Smith, ICML 2021, section 4.2.2.

    With n_local_clusters = 1 clients are clustered; with more, points are: a client with points of two clusters trains
    both models, each on its own points, and a new point uses the model of its nearest mean. `settings` are those of
    `coterie.run`: rounds, training, participation and so on; with `out`, a folder below it for each cluster.
    Choice: inputs are clustered as they are, flattened; `n_init` initialisations at a client, where the paper has one.
    """
    federation = data if isinstance(data, Federation) else from_arrays(data)
    clustering = KFed(n_clusters, n_local_clusters, n_init=n_init, random_state=seed)
    clustering.fit(_inputs(federation.train))
    tested = None if federation.test is None else _tested(federation.test, clustering)
    runs = {}
    for r in sorted(set(clustering.labels_.tolist())):
        part = _part(federation, clustering.labels_ == r, None if tested is None else tested == r)
        folder = None if out is None else Path(out) / f"cluster-{r}"
        runs[r] = run(model, part, FedAvg(), seed=seed, out=folder, **settings)
    return Personalised(federation.ids, clustering, runs)


def _inputs(points: Points) -> list[Any]:
    """(point, feature) of each client."""
    x = points.x.flatten(1).cpu().double()
    return [x[own].numpy() for own in torch.split(points.at.cpu(), points.sizes.tolist())]


def _tested(test: Points, clustering: KFed) -> Whole:
    """(point,) the cluster of each test point: that of its client's nearest mean."""
    local = zip(_inputs(test), clustering.device_centers_, clustering.device_clusters_, strict=True)
    return np.concatenate([clusters[nearest(x, means)] for x, means, clusters in local])


def _part(data: Federation, train: Any, test: Any) -> Federation:
    """The points of one cluster (point,) bool, and the clients that have some to train on."""
    held = torch.as_tensor(train)
    some = torch.bincount(data.train.owner[held], minlength=len(data)) > 0
    here = some.nonzero()[:, 0]
    return replace(
        data,
        ids=tuple(data.ids[i] for i in here.tolist()),
        train=data.train.only(held).take(here),
        test=data.test.only(torch.as_tensor(test)).take(here) if data.test and test.any() else None,
        distributions=None,
    )
