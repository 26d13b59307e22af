"""Clients one at a time in this process, each alone in a cohort of its own; all that passes between them is bytes.

Slow, for tests: what comes out equal here and in a simulation uses nothing that a real client would not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.engine.rows import Build
from coterie.protocol.build import cohort_of, functional_model, peer_of
from coterie.protocol.coordinator import Coordinator, check
from coterie.protocol.message import RoundContext
from coterie.protocol.peer import Peer
from coterie.protocol.remote import Parts, RemoteClients, Responder
from coterie.protocol.stages import Stages


class Loopback(RemoteClients):
    """Every client has a `Responder`; over a graph it is its own aggregator."""

    def __init__(self, clients: Sequence[Peer], ids: Sequence[str], stages: Stages, seed: int):
        super().__init__(ids, stages, seed, clients[0].cohort.model, peers=True)
        self.responders = {id: Responder(client, id, seed) for id, client in zip(ids, clients, strict=True)}

    def carry(self, parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        return {id: self.responders[id].reply(parts) for id, parts in parcels.items()}

    def save(self, context: RoundContext) -> dict[str, Tensor]:
        kept = {}
        for i, responder in enumerate(self.responders.values()):
            kept.update({f"client {i}.{name}": t for name, t in responder.client.save().items()})
        return kept

    def load(self, tensors: dict[str, Tensor], order: Tensor, context: RoundContext) -> None:
        for i, responder in zip(order.tolist(), self.responders.values(), strict=True):
            mine = f"client {i}."
            own = {n.removeprefix(mine): t for n, t in tensors.items() if n.startswith(mine)}
            responder.client.load(own, torch.zeros(1, dtype=torch.long))


def loopback(
    build: Build, data: Federation, stages: Stages, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Coordinator:
    """A run over such clients, on the CPU."""
    check(stages, len(data))
    model = functional_model(build, data, seed=seed, dtype=dtype, device=torch.device("cpu"))
    cohort = cohort_of(model, data, seed)
    clients = [peer_of(cohort, i, stages) for i in range(len(data))]
    return Coordinator(model, stages, Loopback(clients, data.ids, stages, seed), data.ids, seed)
