"""What aggregators know.

A server is one aggregator, which receives from every participant; in a graph every client is one, which receives from
its neighbours and itself. Centers carry the aggregator axis first: (1, cluster, width) at a server, (client, cluster,
width) in a graph. Everything else that an aggregator knows is per client, client axis first, in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.engine.rows import Rows
from coterie.errors import CoterieError
from coterie.prng import gumbel, mix
from coterie.protocol.message import Messages, Named, RoundContext


@dataclass(frozen=True)
class State(Named):
    """What the aggregators know between rounds; checkpointed whole."""

    centers: Tensor  # (aggregator, cluster, width)
    keys: Tensor  # (client,) from the ids of the clients they know
    rows: Rows  # which columns of a row are what
    at_server: bool
    context: RoundContext
    invited: Tensor  # (client,) bool: whom this round's offers may go to
    fields: Mapping[str, Tensor] = field(default_factory=dict)  # (client, ...)

    @property
    def n_clients(self) -> int:
        return len(self.keys)

    def update(self, centers: Tensor | None = None, **changed: Tensor) -> State:
        """With other centers, and with fields (client, ...) that are new or changed."""
        for name, value in changed.items():
            if value.shape[:1] != self.keys.shape:
                raise CoterieError(
                    f"{name} has the shape {tuple(value.shape)}; what an aggregator keeps besides centers is per "
                    f"client, so its first axis must be {self.n_clients}"
                )
        centers = self.centers if centers is None else centers
        return replace(self, centers=centers, fields={**self.fields, **changed})

    def note(self, reports: Messages | None) -> State:
        """Remember what clients reported; for the others it stays as it was."""
        if reports is None or not len(reports):
            return self
        changed = {}
        for name, sent in reports.fields.items():
            changed[name] = self.fields[name].clone()
            changed[name][reports.clients] = sent
        return self.update(**changed)

    def offer(self, to: Tensor | None = None, **shown: Tensor) -> Messages:
        """A message to each client that is meant (client,) bool, or to all that are invited.

        What is per aggregator goes to the clients of that aggregator: from a server to all of them.
        """
        clients = everyone.positions(self.n_clients, self.keys.device)
        expanded = {n: t.expand(self.n_clients, *t.shape[1:]) for n, t in shown.items()}
        return Messages(clients, expanded).only(
            self.invited if to is None else everyone.both(to, self.invited)
        )

    def for_everyone(self) -> State:
        """With nobody left out, as at the end of a run."""
        return replace(self, invited=everyone.mask(len(self.invited), self.invited.device))

    def draw(self, chance: Tensor, times: int, replacement: bool) -> Tensor:
        """(client, cluster) how often each client is drawn for each cluster, `times` draws among those invited.

        A race of keyed Gumbel numbers, so who is drawn does not depend on the order of the clients.
        """
        m, device = self.context, chance.device
        key = mix(m.seed, m.stage, m.round, "drawn").to(device)
        cluster = torch.arange(chance.shape[1], device=device)
        races = torch.arange(times if replacement else 1, device=device)
        key = mix(key, self.keys[:, None, None], cluster[:, None], races)  # (client, cluster, race)
        chance = torch.where(self.invited[:, None], chance, 0)
        order = chance.to(torch.float64).log()[:, :, None] + gumbel(key)
        drawn = torch.zeros_like(chance)
        if replacement:
            winners = order.argmax(0)  # (cluster, race)
            drawn.scatter_add_(0, winners.T, torch.ones_like(winners.T, dtype=drawn.dtype))
        else:
            times = min(times, int(self.invited.sum()))
            drawn.scatter_(0, order[:, :, 0].topk(times, dim=0).indices, 1.0)
        return torch.where(chance > 0, drawn, 0)  # for a cluster that nobody can be drawn for, nobody is
