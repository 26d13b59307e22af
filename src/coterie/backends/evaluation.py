"""How a simulation stands: its centers, what clients have of them, and how good the clients' models are.

Clients are looked at block by block, so that their models need not be in memory all at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coterie.engine import storage
from coterie.engine.scores import Scores
from coterie.protocol import blocks
from coterie.protocol.cohort import Personal, is_shared

if TYPE_CHECKING:
    from coterie.backends.simulation import Simulation

Columns = dict[str, Tensor]  # (client, ...)


@dataclass(frozen=True)
class Snapshot:
    """How things stand now."""

    centers: Tensor  # (cluster, width); over a graph the mean over its listeners
    importance: Tensor  # (client, cluster)
    losses: Tensor | None = field(
        default=None, kw_only=True
    )  # (client, cluster) of centers in training, if known
    scores: Scores | None = field(default=None, kw_only=True)  # of clients' models on their held-out points


@dataclass(frozen=True)
class Result(Snapshot):
    """What clients and listeners have in the end, or now."""

    personal: Personal  # of the clients that this process computes, until `Simulation.whole`
    fit: Tensor | None = None  # (client,) how well the centers fit each; see onboarding.py


def look(simulation: Simulation) -> Snapshot:
    """Without keeping the clients' models."""
    columns = _joined([columns for _, columns, _ in _models(simulation, final=False)])
    return Snapshot(**_seen(simulation, columns))


def result(simulation: Simulation, final: bool) -> Result:
    """With the clients' models; `final`: after the algorithm's last phase."""
    parts, models = [], Models(len(simulation.clients.cohort))
    for some, columns, personal in _models(simulation, final):
        parts.append({**columns, "weights": personal.weights})
        models.put(some, personal.rows)
    columns = _joined(parts)
    own = Personal(models.rows, columns.pop("weights").to(models.rows.device))
    return Result(**_seen(simulation, columns), personal=own)


def _models(simulation: Simulation, final: bool) -> Iterator[tuple[slice, Columns, Personal]]:
    """Some clients, what is known of them, and their models."""
    algorithm = simulation.stage.algorithm
    offer = simulation.clients.mine(algorithm.final_offer(simulation.state.for_everyone()))
    cohort = simulation.clients.cohort.when(simulation.state.context)
    for some, clients, letters in blocks.parts(cohort, offer):
        columns = {"importance": algorithm.importance(clients, letters)}
        personal = (algorithm.finish if final else algorithm.personal)(clients, letters)
        if clients.knows_losses(letters.fields.get("centers")):
            columns["losses"] = clients.means(clients.losses(letters.centers))
        if simulation.test is not None:
            columns.update(clients.score(personal, simulation.test.take(clients.at)).named())
        yield some, columns, personal


def _seen(simulation: Simulation, columns: Columns) -> dict[str, Any]:
    """Centers, and the columns of the clients of every process."""
    known = {name: simulation.clients.of_all(value) for name, value in columns.items()}
    seen = {"importance": known.pop("importance"), "losses": known.pop("losses", None)}
    scores = Scores(**known) if known else None
    return {"centers": storage.mean(simulation.state.centers), **seen, "scores": scores}


def _joined(parts: list[Columns]) -> Columns:
    """One block after another."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class Models:
    """The rows of all clients' models, put together block by block; one model for all is kept once."""

    rows: Tensor  # (client, part, width)

    def __init__(self, clients: int):
        self.clients = clients

    def put(self, some: slice, rows: Tensor) -> None:
        """Rows (client, part, width) of some of the clients, in their order."""
        shared = is_shared(rows)
        if shared and (some.start == 0 or (is_shared(self.rows) and torch.equal(rows[0], self.rows[0]))):
            self.rows = rows[:1].expand(self.clients, -1, -1)
            return
        home = storage.home(rows.shape[1:], self.clients, rows.dtype, rows.device)
        if len(rows) == self.clients:
            self.rows = rows.to(home)
            return
        if some.start == 0 or is_shared(self.rows):
            table = storage.table((self.clients, *rows.shape[1:]), rows.dtype, home)
            if some.start:
                table[: some.start] = self.rows[: some.start]
            self.rows = table
        self.rows[some] = rows.to(home)
