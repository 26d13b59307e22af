"""The meters read off a simulation: what is measured each round, and what only when models are evaluated."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from coterie.backends.evaluation import Snapshot
from coterie.backends.simulation import Simulation
from coterie.engine import storage
from coterie.engine.scores import Scores
from coterie.prng import mix, uniform
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Messages
from coterie.protocol.topology import Server
from coterie.runs import metrics
from coterie.runs.result import Record
from coterie.runs.summary import found_ari, importance_error_of

Columns = dict[str, Tensor]

PROJECTED = 8  # dimensions of the picture of client rows
EACH_ROUND = (
    "center_distance_min",
    "center_distance_max",
    "cosine_between",
    "cosine_within",
    "clustering_objective",
    "consensus_distance",
    "spectral_gap",
)
EVALUATED = (
    "learning_objective",
    "clusterability",
    "importance_error",
    "ari",
    "test_accuracy_std",
    "test_accuracy_worst_tenth",
    "test_loss_std",
    "test_loss_worst_tenth",
)


class Monitor:
    """Looks at a simulation between rounds and leaves it as it is."""

    def __init__(self, simulation: Simulation):
        self.simulation = simulation
        self._gaps: dict[int, float] = {}  # of the stages whose graph stays as it is
        self._projection: Tensor | None = None

    def each_round(self, sent: Messages) -> tuple[Record, Columns]:
        """What takes no more than a pass over the rows: one number each, and columns (client, ...) or (cluster,)."""
        state = self.simulation.state
        every = state.centers[..., : state.rows.n_parameters]
        centers = storage.mean(every)
        columns = self._picture(sent, centers)
        if not sent.fields:
            return {}, columns
        found: Record = {}
        if len(centers) > 1:
            found["center_distance_min"], found["center_distance_max"] = metrics.center_distances(centers)
            found["cosine_between"] = metrics.cosine_between(centers)
        if (clustered := self._clustered(sent)) is not None:
            rows, label = clustered
            columns["cosine_within"] = metrics.cosine_within(rows, label, len(centers), self._add)
            found["cosine_within"] = float(columns["cosine_within"].nanmean())
            if self._is_hard(sent):
                weight = self._weights()[sent.clients]
                own, _ = sent.held("row")
                each = columns["clustering_objective"] = metrics.clustering_objective(
                    rows, label, weight[own], centers, self._add
                )
                found["clustering_objective"] = metrics.over_clusters(each, sent.each(label), weight)
        if not state.at_server:
            columns["consensus_distance"] = metrics.consensus_distance(every)
            found["consensus_distance"] = float(columns["consensus_distance"].mean())
            found["spectral_gap"] = self._gap()
        return written(found), columns

    def _picture(self, sent: Messages, centers: Tensor) -> Columns:
        """A fixed random projection of the rows told, and how alike the centers (cluster, parameter) are."""
        unit = functional.normalize(centers, dim=1)
        columns = {"client": sent.clients, "similarity": unit @ unit.T}
        if "row" in sent.fields:
            _, rows = sent.held("row")
            if self._projection is None:
                self._projection = projection(centers.shape[1], rows.dtype, rows.device)
            seen = rows.new_empty(*rows.shape[:-1], PROJECTED)
            for some in storage.blocks(len(rows), rows[:1].nbytes, rows.device):
                seen[some] = functional.linear(rows[some, ..., : centers.shape[1]], self._projection)
            columns["projection"] = sent.each(seen)
        return columns

    def evaluated(self, sent: Messages, result: Snapshot) -> tuple[Record, Columns]:
        """What needs models on data."""
        found, columns = self._of_hard_clusters(sent, result) if self._is_hard(sent) else ({}, {})
        known = {
            "importance_error": importance_error_of(self.simulation, result),
            "ari": found_ari(self.simulation, result),
        }
        found.update({name: value for name, value in known.items() if value is not None})
        if result.scores is not None:
            found.update(_spreads(result.scores))
        return written(found), columns

    def _of_hard_clusters(self, sent: Messages, result: Snapshot) -> tuple[Record, Columns]:
        """R, and B of those heard."""
        main, weight, clusters = result.importance.argmax(1), self._weights(), result.importance.shape[1]
        known = result.losses
        losses = self._center_losses(main) if known is None else known.gather(1, main[:, None])[:, 0]
        each = metrics.mean_by_cluster(losses, main, weight, clusters)
        found: Record = {"learning_objective": metrics.over_clusters(each, main, weight)}
        columns: Columns = {"learning_objective": each}
        gradients, clustered = self._gradients(sent), self._clustered(sent)
        if gradients is not None and clustered is not None:
            own, _ = sent.held("row")
            weight = weight[sent.clients[own]]
            most = self.simulation.group.most
            each = metrics.clusterability(gradients, clustered[1], weight, clusters, self._add, most)
            columns["clusterability"] = each
            found["clusterability"] = float(torch.where(each.isnan(), -torch.inf, each).max())
        return found, columns

    def _is_hard(self, sent: Messages) -> bool:
        """Was anything told, and is every client of one cluster, as WeCFL's objectives have it?"""
        if not sent.fields or self.simulation.stage.algorithm.soft:
            return False
        return "row" not in sent.fields or sent.held("row")[1].dim() == 2

    def _add(self, part: Tensor) -> Tensor:
        return self.simulation.group.add(part)

    def _weights(self) -> Tensor:
        """(client,) λ, as the algorithm weighs clients."""
        sizes = self.simulation.sizes
        equal = getattr(self.simulation.stage.algorithm, "weights", "size") == "equal"
        return torch.ones_like(sizes) if equal else sizes

    def _clustered(self, sent: Messages) -> tuple[Tensor, Tensor] | None:
        """Rows told that are here (row, parameter), and the cluster that each was trained for (row,)."""
        state = self.simulation.state
        if "row" not in sent.fields or not len(sent):
            return None
        own, rows = sent.held("row")
        rows = rows[..., : state.rows.n_parameters]
        if rows.dim() == 3:  # a row for each cluster
            return rows.flatten(0, 1), torch.arange(rows.shape[1], device=rows.device).repeat(len(rows))
        for name in ("choice", "drew"):
            if name in sent.fields:
                return rows, sent.fields[name][own]
        if "member" in state.fields:
            return rows, state.member[sent.clients[own]]
        if "share" in sent.fields:
            return rows, sent.share[own].argmax(1)
        return rows, torch.zeros(len(rows), dtype=torch.long, device=rows.device)

    def _center_losses(self, main: Tensor) -> Tensor:
        """(client,) the mean loss of its cluster's center on a client's training points."""
        cohort, clients, state = self._cohort(), self.simulation.clients, self.simulation.state
        shown = clients.mine(state.for_everyone().offer(centers=state.centers))
        main = main[shown.clients]
        losses = shown.centers.new_empty(len(main))
        for cluster in range(state.centers.shape[1]):
            own = (main == cluster).nonzero()[:, 0]
            for some in storage.blocks(len(own), state.centers[0, 0].nbytes, own.device):
                members, centers = cohort.take(own[some]), shown.take(own[some]).centers
                losses[own[some]] = members.means(members.losses(centers[:, cluster : cluster + 1]))[:, 0]
        return clients.of_all(losses)

    def _gradients(self, sent: Messages) -> metrics.RowBlocks | None:
        """∇l(ω_i, D_i) (letter, parameter) at the rows told that are here, where points are enough for one."""
        if "row" not in sent.fields or not len(sent):
            return None
        simulation = self.simulation
        if simulation.model.needs_two and int(simulation.sizes[sent.clients].min()) < 2:
            return None
        _, rows = sent.held("row")
        if not len(rows):
            none = [(slice(0, 0), rows[:, : simulation.state.rows.n_parameters])]
            return lambda: none
        clients = simulation.clients.of_these(sent).when(simulation.state.context)
        if rows.nbytes > storage.budget(rows.device):
            # twice: that is faster than to have them on a disk, and a GPU may not hold them all
            return lambda: clients.gradients(rows)
        found = list(clients.gradients(rows))
        return lambda: found

    def _cohort(self) -> Cohort:
        return self.simulation.clients.cohort.when(self.simulation.state.context)

    def _gap(self) -> float:
        """Once for a graph that stays; each round, if it is small, for one that changes."""
        simulation, stage = self.simulation, self.simulation.progress.stage
        topology, context, ids = simulation.stage.topology, simulation.state.context, simulation.data.ids
        assert not isinstance(topology, Server)
        if topology.rewire and len(ids) > metrics.DENSE:
            return math.nan
        if topology.rewire or stage not in self._gaps:
            edges = topology.edges(ids, context.seed, context.of_run)
            self._gaps[stage] = metrics.spectral_gap(edges, len(ids))
        return self._gaps[stage]


def last(records: list[Record], stage: int) -> Record:
    """The last reading of each meter in a stage."""
    found: Record = {}
    for record in records:
        if record["stage"] == stage:
            found.update({name: record[name] for name in (*EACH_ROUND, *EVALUATED) if name in record})
    return found


def written(found: Record) -> Record:
    """For JSON, which has no word for what is not finite."""
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def projection(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(dimension, parameter) Gaussian rows, the same in every run, so that pictures can be compared."""
    place = torch.arange(n, device=device) * PROJECTED + torch.arange(PROJECTED, device=device)[:, None]
    radius = torch.sqrt(-2 * torch.log(uniform(mix("projection radius", place))))
    angle = 2 * torch.pi * uniform(mix("projection angle", place))
    scaled: Tensor = radius * torch.cos(angle) / PROJECTED**0.5
    return scaled.to(dtype)


def _spreads(scores: Scores) -> Record:
    found: Record = {}
    name, each = ("loss", scores.loss) if scores.accuracy is None else ("accuracy", scores.accuracy)
    found[f"test_{name}_std"], found[f"test_{name}_worst_tenth"] = metrics.spread(
        each, low_is_bad=name == "accuracy"
    )
    return found
