"""The metrics of a run: what is measured each round, and what only when models are evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Description
from coterie.engine import storage
from coterie.engine.scores import Scores
from coterie.engine.solver import chunk_size, one_pass
from coterie.prng import mix, uniform
from coterie.protocol.clients import Question, Refused
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Messages
from coterie.protocol.result import Snapshot
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
    """Measures a run between rounds and leaves it as it is. What clients are not to be asked stays empty."""

    def __init__(self, coordinator: Coordinator, about: Description):
        self.coordinator, self.about = coordinator, about
        self.refused: dict[str, str] = {}  # questions that clients were not asked, and why
        self._gaps: dict[int, float] = {}  # of the stages whose graph stays as it is
        self._projection: Tensor | None = None
        self._sizes: Tensor | None = None

    def ask(self, question: Question, offer: Messages) -> Messages | None:
        """None, where the backend refuses the question."""
        try:
            return self.coordinator.clients.ask(question, offer, self.coordinator.state.context)
        except Refused as why:
            self.refused[question] = str(why)
            return None

    def each_round(self, sent: Messages) -> tuple[Record, Columns]:
        """What takes no more than a pass over the rows: one number each, and columns (client, ...) or (cluster,)."""
        state = self.coordinator.state
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
            columns["cosine_within"] = metrics.cosine_within(rows, label, len(centers), self._sum)
            found["cosine_within"] = float(columns["cosine_within"].nanmean())
            if self._is_hard(sent) and (weights := self._weights()) is not None:
                weight = weights[sent.clients]
                own, _ = sent.held("row")
                each = columns["clustering_objective"] = metrics.clustering_objective(
                    rows, label, weight[own], centers, self._sum
                )
                found["clustering_objective"] = metrics.over_clusters(each, sent.each(label), weight)
        if len(centers) > 1 and "member" in state.fields:  # the server itself knows who is where
            found.update(_sizes(torch.bincount(state.member, minlength=len(centers)).tolist()))
        if not state.at_server:
            columns["consensus_distance"] = metrics.consensus_distance(every)
            found["consensus_distance"] = float(columns["consensus_distance"].mean())
            found["spectral_gap"] = self._gap()
        return written(found), columns

    def _picture(self, sent: Messages, centers: Tensor) -> Columns:
        """A fixed random projection of the rows sent, and how alike the centers (cluster, parameter) are."""
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
            "importance_error": importance_error_of(self.coordinator, self.about, result),
            "ari": found_ari(self.about, result),
        }
        found.update({name: value for name, value in known.items() if value is not None})
        if result.scores is not None:
            found.update(_spreads(result.scores))
        sizes = metrics.cluster_sizes(result.importance)
        if len(sizes) > 1 and any(sizes):
            found.update(_sizes(sizes))
        return written(found), columns

    def _of_hard_clusters(self, sent: Messages, result: Snapshot) -> tuple[Record, Columns]:
        """R, and B of those received."""
        main, weight, clusters = result.importance.argmax(1), self._weights(), result.importance.shape[1]
        known = result.losses
        losses = self._center_losses(main) if known is None else known.gather(1, main[:, None])[:, 0]
        if weight is None or losses is None:
            return {}, {}
        each = metrics.mean_by_cluster(losses, main, weight, clusters)
        found: Record = {"learning_objective": metrics.over_clusters(each, main, weight)}
        columns: Columns = {"learning_objective": each}
        gradients, clustered = self._gradients(sent), self._clustered(sent)
        if gradients is not None and clustered is not None:
            own, _ = sent.held("row")
            weight = weight[sent.clients[own]]
            most = self.coordinator.clients.group.max
            each = metrics.clusterability(gradients, clustered[1], weight, clusters, self._sum, most)
            columns["clusterability"] = each
            found["clusterability"] = float(torch.where(each.isnan(), -torch.inf, each).max())
        return found, columns

    def _is_hard(self, sent: Messages) -> bool:
        """Was anything sent, and is every client of one cluster, as WeCFL's objectives have it?"""
        if not sent.fields or self.coordinator.stage.algorithm.soft:
            return False
        return "row" not in sent.fields or sent.held("row")[1].dim() == 2

    def _sum(self, part: Tensor) -> Tensor:
        return self.coordinator.clients.group.sum(part)

    def _weights(self) -> Tensor | None:
        """(client,) λ, as the algorithm weighs clients; None where sizes are not to be asked for."""
        if self._sizes is None:
            found = self._ask_sizes()
            everybody = found is not None and len(found) == len(self.coordinator)
            self._sizes = found.size if found is not None and everybody else None  # asked again, if not
        equal = getattr(self.coordinator.stage.algorithm, "weights", "size") == "equal"
        return torch.ones_like(self._sizes) if equal and self._sizes is not None else self._sizes

    def _ask_sizes(self) -> Messages | None:
        return self.ask("size", self.coordinator.state.for_everyone().offer())

    def sizes(self) -> Tensor | None:
        """(client,) how many points each trains on, nan where one does not answer.

        None where sizes are not to be asked for, or privacy withholds them.
        """
        every = (stage.privacy for stage in self.coordinator.stages)
        if any(privacy is not None and privacy.withholds_sizes for privacy in every):
            return None
        if self._sizes is not None:
            return self._sizes.double()
        found = self._ask_sizes()
        if found is None or not len(found):
            return None
        return Messages(found.clients, {"size": found.size.double()}).scattered("size", len(self.coordinator))

    def _clustered(self, sent: Messages) -> tuple[Tensor, Tensor] | None:
        """Rows sent that are here (row, parameter), and the cluster that each was trained for (row,)."""
        state, algorithm = self.coordinator.state, self.coordinator.stage.algorithm
        if "row" not in sent.fields or not len(sent):
            return None
        own, rows = sent.held("row")
        rows = rows[..., : state.rows.n_parameters]
        if rows.dim() == 3:  # a row for each cluster
            return rows.flatten(0, 1), torch.arange(rows.shape[1], device=rows.device).repeat(len(rows))
        return rows, algorithm.trained_for(state, sent)[own]

    def _center_losses(self, main: Tensor) -> Tensor | None:
        """(client,) the mean loss of its cluster's center on a client's training points."""
        state = self.coordinator.state.for_everyone()
        losses = state.centers.new_full((state.n_clients,), torch.nan)
        for cluster in range(state.centers.shape[1]):
            offer = state.offer(main == cluster, center=state.centers[:, cluster])
            found = self.ask("center_loss", offer) if len(offer) else offer
            if found is None:
                return None
            if len(found):
                losses[found.clients] = found.loss
        return losses

    def _gradients(self, sent: Messages) -> metrics.RowBlocks | None:
        """∇l(ω_i, D_i) (message, parameter) at the rows sent that are here, where points are enough for one."""
        if "row" not in sent.fields or not len(sent) or self._sizes is None:
            return None
        coordinator = self.coordinator
        if coordinator.model.needs_two and int(self._sizes[sent.clients].min()) < 2:
            return None
        group, (_, rows) = coordinator.clients.group, sent.held("row")
        whole = one_pass(coordinator.model, coordinator.stage.training)
        row_bytes = coordinator.model.rows.width * rows.element_size()
        at_once = chunk_size(coordinator.model, whole, int(self._sizes[sent.clients].max())) * row_bytes
        # all processes ask for the same blocks
        blocks = group.once(lambda: list(storage.blocks(len(sent), row_bytes, rows.device, at_once)))

        def made() -> Iterator[tuple[slice, Tensor]]:
            begin, just_rows = 0, sent.just("row")
            for some in blocks:
                which = torch.arange(some.start, some.stop, device=sent.clients.device)
                found = self.ask("gradient", just_rows if len(blocks) == 1 else just_rows.take(which))
                if found is not None and len(found):
                    gradient = found.held("gradient")[1]
                    yield slice(begin, begin + len(gradient)), gradient
                    begin += len(gradient)

        if rows.nbytes > storage.budget(rows.device):
            # twice: that is faster than to have them on a disk, and a GPU may not hold them all
            return made
        found = list(made())
        known = sum(len(gradient) for _, gradient in found)
        return (lambda: found) if found and known == len(rows) else None  # of all who sent a row, or of none

    def _gap(self) -> float:
        """Once for a graph that stays; each round, if it is small, for one that changes."""
        coordinator, stage = self.coordinator, self.coordinator.progress.stage
        topology, context, ids = coordinator.stage.topology, coordinator.state.context, coordinator.ids
        assert not isinstance(topology, Server)
        if topology.rewire and len(ids) > metrics.DENSE:
            return math.nan
        if topology.rewire or stage not in self._gaps:
            edges = topology.edges(ids, context.seed, context.of_run)
            self._gaps[stage] = metrics.spectral_gap(edges, len(ids))
        return self._gaps[stage]


def last(records: list[Record], stage: int) -> Record:
    """The last value of each metric in a stage."""
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


def _sizes(sizes: Sequence[int]) -> Record:
    return {f"cluster_size_{s}": size for s, size in enumerate(sizes)}


def _spreads(scores: Scores) -> Record:
    found: Record = {}
    name, each = ("loss", scores.loss) if scores.accuracy is None else ("accuracy", scores.accuracy)
    found[f"test_{name}_std"], found[f"test_{name}_worst_tenth"] = metrics.spread(
        each, low_is_bad=name == "accuracy"
    )
    return found
