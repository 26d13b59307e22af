"""How a run stands, and what it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.engine.scores import Scores
from coterie.protocol.fit import Fit
from coterie.protocol.message import Messages
from coterie.protocol.personal import Personal


@dataclass(frozen=True)
class Snapshot:
    """How things stand after a round. Clients that did not answer have nan."""

    centers: Tensor  # (cluster, width); over a graph the mean over its aggregators
    importance: Tensor  # (client, cluster)
    losses: Tensor | None = field(
        default=None, kw_only=True
    )  # (client, cluster) of centers in training, if known
    scores: Scores | None = field(default=None, kw_only=True)  # of clients' models on their held-out points

    @staticmethod
    def of(centers: Tensor, evaluated: Messages, clients: int) -> Snapshot:
        importance, losses, scores = _columns(centers, evaluated, clients)
        return Snapshot(centers, importance, losses=losses, scores=scores)


@dataclass(frozen=True)
class Result(Snapshot):
    """What clients and aggregators have in the end."""

    personal: Personal
    fit: Fit | None = None  # how well the centers fit the clients, for those that come later
    margin: Tensor | None = None  # (client,) how much more loss the second best center has than the best
    sizes: Tensor | None = None  # (client,) how many points each trains on; nan: not known
    common: Tensor | None = None  # (width,) the model that all clients have in common, beside the centers
    prior: Tensor | None = None  # (way,) what clients found of the ways to personal models

    @property
    def way(self) -> Tensor | None:
        """(client,) how each made its model, where it chose that."""
        return self.personal.way

    @staticmethod
    def of(centers: Tensor, evaluated: Messages, clients: int) -> Result:
        importance, losses, scores = _columns(centers, evaluated, clients)
        if not len(evaluated):
            return Result.unknown(centers, importance)
        rows, weights = (evaluated.scattered(name, clients) for name in ("rows", "weights"))
        way = evaluated.scattered("way", clients) if "way" in evaluated.fields else None
        personal = Personal(rows, weights.to(rows.device), way)
        return Result(centers, importance, personal, losses=losses, scores=scores)

    @staticmethod
    def unknown(centers: Tensor, importance: Tensor) -> Result:
        """Where clients keep their models to themselves, or none of them answered."""
        nothing = centers.new_full((1, 1, centers.shape[1]), torch.nan).expand(len(importance), -1, -1)
        return Result(centers, importance, Personal(nothing, nothing.new_ones(len(importance), 1)))


def _columns(
    centers: Tensor, evaluated: Messages, clients: int
) -> tuple[Tensor, Tensor | None, Scores | None]:
    known = {
        name: evaluated.scattered(name, clients)
        for name in ("importance", "losses", "loss", "accuracy", "f1")
        if name in evaluated.fields
    }
    nothing = centers.new_full((clients, len(centers)), torch.nan)  # where nobody answered
    importance, losses = known.pop("importance", nothing), known.pop("losses", None)
    return importance, losses, Scores(**known) if known else None
