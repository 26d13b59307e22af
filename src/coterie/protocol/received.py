"""The listener's half: what it knows, and what it heard.

A server is one listener that hears every participant; a graph is N listeners, each hearing its neighbours and
itself. Centers carry the listener axis first: (1, cluster, width) at a server, (client, cluster, width) in a
graph. Everything else that a listener knows is per client, client axis first, in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.engine import storage
from coterie.engine.rows import Rows
from coterie.prng import gumbel, mix
from coterie.protocol.cohort import RoundContext
from coterie.protocol.message import Messages, Named

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


@dataclass(frozen=True)
class State(Named):
    """What the listeners know between rounds; checkpointed whole."""

    centers: Tensor  # (listener, cluster, width)
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
        """A letter to each client that is meant (client,) bool, or to all that are invited.

        What is per listener goes to the clients of that listener: from a server to all of them.
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
            return drawn.scatter_add_(0, winners.T, torch.ones_like(winners.T, dtype=drawn.dtype))
        times = min(times, int(self.invited.sum()))
        return drawn.scatter_(0, order[:, :, 0].topk(times, dim=0).indices, 1.0)


@dataclass(frozen=True)
class Received:
    """What listeners heard in a round: the letters, and who heard which."""

    messages: Messages
    aggregators: int
    edges: Tensor  # (2, edge): listener, letter; sorted by listener
    at_server: bool

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Tensor = getattr(self.messages, name)
        return value

    @staticmethod
    def by_server(messages: Messages) -> Received:
        letters = torch.arange(len(messages), device=messages.clients.device)
        return Received(messages, 1, torch.stack([torch.zeros_like(letters), letters]), True)

    @staticmethod
    def by_peers(messages: Messages, aggregators: int, edges: Tensor) -> Received:
        """`edges` (2, edge) are (listener, speaker) positions; speakers that told nothing are not heard."""
        letter = torch.full((aggregators,), -1, device=edges.device)
        letter[messages.clients] = torch.arange(len(messages), device=edges.device)
        sent = letter[edges[1]] >= 0
        return Received(messages, aggregators, torch.stack([edges[0][sent], letter[edges[1]][sent]]), False)

    def mean(self, name: str, weight: Tensor, otherwise: Tensor, per_edge: bool = False) -> Tensor:
        """(listener, cluster, width) the weighted mean of the rows heard; where none weighs, `otherwise`.

        Weights are (letter, cluster); `per_edge`, where listeners weigh a letter differently, (edge, cluster).
        Rows are (letter, width), or (letter, cluster, width).
        """
        aggregator, letter = self.edges
        # a server hears every letter once, in their order
        weight = (weight if per_edge or self.at_server else weight[letter]).to(otherwise.dtype)
        total = otherwise.new_zeros(self.aggregators, weight.shape[1]).index_add_(0, aggregator, weight)
        weighs = total > 0
        whole = torch.where(weighs, total, 1)
        share = weight / (whole if self.at_server else whole[aggregator])
        if self.at_server:
            return torch.where(weighs[:, :, None], self._sums_at_server(name, share), otherwise)
        rows, found = self.messages.fields[name], None
        for some in storage.blocks(self.aggregators, 4 * otherwise[0].nbytes, rows.device):
            sums = self._sums_at_peers(rows, share, some)
            sums = torch.where(weighs[some, :, None], sums, otherwise[some])
            if len(sums) == self.aggregators:
                return sums
            found = storage.table(otherwise.shape, rows.dtype, rows.device) if found is None else found
            found[some] = sums
        assert found is not None
        return found

    def _sums_at_server(self, name: str, share: Tensor) -> Tensor:
        """(1, cluster, width) the rows heard, times their shares (letter, cluster): one sum over all processes."""
        letters, rows = self.messages.held(name)
        share = share[letters]
        total = rows.new_zeros(1, share.shape[1], rows.shape[-1])
        for some in storage.blocks(len(rows), rows[:1].nbytes, rows.device):
            received = by_cluster(rows[some], share)
            parts = [one[None] @ each for one, each in zip(share[some].T, received, strict=True)]
            total += torch.stack(parts, 1)
        return self.messages.group.add(total)

    def _sums_at_peers(self, rows: Tensor, share: Tensor, some: slice) -> Tensor:
        """(listener, cluster, width) the same for some of the listeners, with shares (edge, cluster)."""
        aggregator, letter = self.edges
        wanted = torch.arange(some.start, some.stop + 1, device=aggregator.device)
        begins = torch.searchsorted(aggregator, wanted)
        edges = slice(int(begins[0]), int(begins[-1]))
        size = (some.stop - some.start, len(rows))
        parts = [
            torch.sparse_csr_tensor(
                begins - begins[0], letter[edges], one[edges].contiguous(), size, check_invariants=False
            )
            @ each
            for one, each in zip(share.T, by_cluster(rows, share), strict=True)
        ]
        return torch.stack(parts, 1)

    def decided(self, how: Callable[[], Tensor]) -> Tensor:
        """What listeners find out with much work: by one process, and the same for all."""
        found = self.messages.group.once(lambda: how().cpu())
        return found.to(self.messages.clients.device)

    def own(self, values: Tensor) -> Tensor:
        """(listener, ...) of values (letter, ...) those of the listener's own letter; 0 where it told none."""
        aggregator, letter = self.edges
        mine = self.messages.clients[letter] == aggregator
        result = values.new_zeros(self.aggregators, *values.shape[1:])
        result[aggregator[mine]] = values[letter[mine]]
        return result

    def cosines(self, name: str, centers: Tensor, n_parameters: int) -> Tensor:
        """(edge, cluster) how alike the row heard is to each of the listener's centers."""
        rows = torch.nn.functional.normalize(self.messages.fields[name][:, :n_parameters], dim=1)
        centers = torch.nn.functional.normalize(centers[:, :, :n_parameters], dim=2)
        aggregator, letter = self.edges
        parts = [
            torch.einsum("ep,esp->es", rows[m], centers[at])
            for at, m in zip(torch.split(aggregator, 1024), torch.split(letter, 1024), strict=True)
        ]
        return torch.cat(parts)


def by_cluster(rows: Tensor, share: Tensor) -> Iterator[Tensor]:
    """For each column of shares the rows (letter, width) that it is of."""
    for s in range(share.shape[1]):
        yield rows if rows.dim() == 2 else rows[:, s].contiguous()
