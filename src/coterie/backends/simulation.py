"""Clients on this machine, computed together."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from shutil import disk_usage
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from coterie.backends.processes import ProcessGroup, here
from coterie.backends.sharded import Sharded
from coterie.data.federation import Federation, check_range
from coterie.engine.batches import warn_of_small_batches
from coterie.engine.compile.policy import Compile, Compiler
from coterie.engine.model import Loss
from coterie.engine.rows import Build
from coterie.errors import CoterieError
from coterie.memory import in_words, machine, require_memory
from coterie.protocol.build import cohort_of, functional_model
from coterie.protocol.client import Client
from coterie.protocol.client_state import ClientState
from coterie.protocol.clients import Clients, Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator, check
from coterie.protocol.message import ALONE, Group, Messages, RoundContext
from coterie.protocol.privacy import warn_of_buffers
from coterie.protocol.stages import Stages

log = logging.getLogger("coterie")


@dataclass
class Together:
    """All clients as one cohort."""

    client: Client
    group: Group = ALONE
    peers: bool = False

    @property
    def cohort(self) -> Cohort:
        return self.client.cohort

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        return Messages(offer.clients, self.client.answer(question, offer, context))

    def deliver(self, sent: Messages, edges: Tensor, context: RoundContext) -> None:
        raise CoterieError(
            "these clients hold no aggregators; their rounds over a graph are computed for them"
        )

    def save(self, context: RoundContext) -> dict[str, Tensor]:
        return self.client.save()

    def load(self, tensors: dict[str, Tensor], order: Tensor, context: RoundContext) -> None:
        self.client.load(tensors, order)


class Simulation:
    """A model and the data of all clients on one device, tried together once; plays any number of methods."""

    def __init__(
        self,
        build: Build,
        data: Federation,
        *,
        seed: int = 0,
        loss: Loss | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        chunk: int | None = None,
        compile: Compile = "auto",
        tf32: bool = False,
        group: ProcessGroup | None = None,
    ):
        check_range(data, dtype)
        self.data, self.seed, self.compile = data, seed, compile
        self.group = here() if group is None else group
        self.model = functional_model(
            build,
            data,
            loss=loss,
            device=self.group.device(device),
            dtype=dtype,
            seed=seed,
            chunk=chunk,
            tf32=tf32,
        )
        self.cohort = cohort_of(self.model, data, seed)
        self.more_rounds = 0  # that other methods are to play with the same steps
        self._compiler: Compiler | None = None

    def coordinator(self, stages: Stages) -> Coordinator:
        """At the beginning of the first stage."""
        check(stages, len(self.data))
        self.check_memory(stages)
        warn_of_many_clusters(stages, len(self.data))
        warn_of_buffers((stage.privacy for stage in stages), self.model.rows)
        if self.model.needs_two:
            warn_of_small_batches((stage.training for stage in stages), self.data.train)
        return Coordinator(self.model, stages, self.clients(stages), self.data.ids, self.seed)

    def check_memory(self, stages: Stages) -> None:
        """Will the centers fit into memory, and the clients' rows into memory and the disk behind it?"""
        row, clusters = (
            self.model.rows.width * self.model.dtype.itemsize,
            max(s.algorithm.clusters() for s in stages),
        )
        graph = any(not stage.topology.is_server for stage in stages)
        require_memory(2 * row * clusters, f"{clusters} centers of {self.model.rows.width} numbers")
        table, disk = row * len(self.data) * (clusters if graph else 1), disk_usage(gettempdir()).free
        if table > machine() + disk:
            raise CoterieError(
                f"the rows of {len(self.data)} clients would take {in_words(table)} or more; this machine has "
                f"{in_words(machine())} of memory, and {in_words(disk)} are free in {gettempdir()}"
            )

    def clients(self, stages: Stages) -> Clients:
        """Of one process, or of several that share the work."""
        each = -(-len(self.data) // self.group.size)  # clients that a process has
        cohort = replace(
            self.cohort, compiler=self._compiled(each), client_state=ClientState(len(self.cohort))
        )
        if self.group.size == 1:
            return Together(Client(cohort, stages), self.group)
        return Sharded(cohort, stages, self.group)

    def _compiled(self, each: int) -> Compiler:
        """On a GPU methods share their compiled steps.

        Not on a CPU: there a run has the same bits whatever was run before it, and compiled steps round otherwise.
        """
        shared = self.model.device.type == "cuda"
        if self._compiler is None or not shared:
            points = self.cohort.points
            self._compiler = Compiler(self.model, self.compile, points.x, each, int(points.sizes.max()))
        self._compiler.more_rounds = self.more_rounds if shared else 0
        return self._compiler


def warn_of_many_clusters(stages: Stages, clients: int) -> None:
    """Where every point has a cluster there may be more clusters than clients; it is hardly meant."""
    clusters = max(stage.algorithm.clusters() for stage in stages)
    if clusters > clients and not stages[-1].algorithm.votes:
        log.warning(
            "there are %d clusters and %d clients; some cluster will be nobody's largest", clusters, clients
        )


def simulate(build: Build, data: Federation, stages: Stages, **how: Any) -> Coordinator:
    """One method on clients computed together; the settings are those of `Simulation`."""
    check(stages, len(data))
    return Simulation(build, data, **how).coordinator(stages)
