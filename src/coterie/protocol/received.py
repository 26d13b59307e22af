"""What aggregators received in a round, and how rows are averaged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.engine import storage
from coterie.protocol.message import Messages

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


@dataclass(frozen=True)
class Received:
    """What aggregators received in a round: the messages, and who received which."""

    messages: Messages
    aggregators: int
    edges: Tensor  # (2, edge): aggregator, message; sorted by aggregator
    at_server: bool
    edge_weight: Tensor | None = None  # (edge,) what a message counts at its aggregator; None: all alike

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Tensor = getattr(self.messages, name)
        return value

    @staticmethod
    def by_server(messages: Messages) -> Received:
        number = torch.arange(len(messages), device=messages.clients.device)
        return Received(messages, 1, torch.stack([torch.zeros_like(number), number]), True)

    @staticmethod
    def by_peers(
        messages: Messages, aggregators: int, edges: Tensor, edge_weight: Tensor | None = None
    ) -> Received:
        """`edges` (2, edge) are (aggregator, sender) positions; of senders without a message nothing is received."""
        number = torch.full((aggregators,), -1, device=edges.device)
        number[messages.clients] = torch.arange(len(messages), device=edges.device)
        sent = number[edges[1]] >= 0
        edge_weight = None if edge_weight is None else edge_weight[sent]
        edges = torch.stack([edges[0][sent], number[edges[1]][sent]])
        return Received(messages, aggregators, edges, False, edge_weight)

    @property
    def any(self) -> Tensor:
        """(aggregator,) bool: who received a message. Over a graph an absent peer receives none."""
        received = torch.zeros(self.aggregators, dtype=torch.bool, device=self.edges.device)
        received[self.edges[0]] = True
        return received

    def mean(self, name: str, weight: Tensor, otherwise: Tensor) -> Tensor:
        """(aggregator, cluster, width) the mean of the rows received, by weights (message, cluster).

        Where no message weighs anything, `otherwise`. Rows are (message, width), or (message, cluster, width).
        """
        # a server receives every message once, in their order
        return self.mean_by_edge(name, weight if self.at_server else weight[self.edges[1]], otherwise)

    def mean_by_edge(self, name: str, weight: Tensor, otherwise: Tensor) -> Tensor:
        """The same where aggregators weigh one message differently: weights are (edge, cluster)."""
        aggregator, weight = self.edges[0], weight.to(otherwise.dtype)
        if self.edge_weight is not None:
            weight = weight * self.edge_weight[:, None].to(weight.dtype)
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
        """(1, cluster, width) the rows times their shares (message, cluster): one sum over all processes."""
        number, rows = self.messages.held(name)
        share = share[number]
        total = rows.new_zeros(1, share.shape[1], rows.shape[-1])
        for some in storage.blocks(len(rows), rows[:1].nbytes, rows.device):
            each_cluster = by_cluster(rows[some], share)
            parts = [one[None] @ each for one, each in zip(share[some].T, each_cluster, strict=True)]
            total += torch.stack(parts, 1)
        return self.messages.group.sum(total)

    def _sums_at_peers(self, rows: Tensor, share: Tensor, some: slice) -> Tensor:
        """(aggregator, cluster, width) the same for some of the aggregators, with shares (edge, cluster)."""
        aggregator, message = self.edges
        wanted = torch.arange(some.start, some.stop + 1, device=aggregator.device)
        begins = torch.searchsorted(aggregator, wanted)
        edges = slice(int(begins[0]), int(begins[-1]))
        size = (some.stop - some.start, len(rows))
        parts = [
            torch.sparse_csr_tensor(
                begins - begins[0], message[edges], one[edges].contiguous(), size, check_invariants=False
            )
            @ each
            for one, each in zip(share.T, by_cluster(rows, share), strict=True)
        ]
        return torch.stack(parts, 1)

    def totals(self, weight: Tensor) -> Tensor:
        """(aggregator, cluster) the weights (message, cluster) of all that an aggregator received, added up."""
        aggregator, message = self.edges
        return weight.new_zeros(self.aggregators, weight.shape[1]).index_add_(0, aggregator, weight[message])

    def decided(self, how: Callable[[], Tensor]) -> Tensor:
        """What takes much work is found out by one process, and is the same for all."""
        found = self.messages.group.once(lambda: how().cpu())
        return found.to(self.messages.clients.device)

    def own(self, values: Tensor) -> Tensor:
        """(aggregator, ...) of values (message, ...) those of the aggregator's own message; 0 where it sent none."""
        aggregator, message = self.edges
        mine = self.messages.clients[message] == aggregator
        result = values.new_zeros(self.aggregators, *values.shape[1:])
        result[aggregator[mine]] = values[message[mine]]
        return result

    def cosines(self, name: str, centers: Tensor, n_parameters: int) -> Tensor:
        """(edge, cluster) the cosine of each row received and each of the aggregator's centers."""
        rows = torch.nn.functional.normalize(self.messages.fields[name][:, :n_parameters], dim=1)
        centers = torch.nn.functional.normalize(centers[:, :, :n_parameters], dim=2)
        aggregator, message = self.edges
        parts = [
            torch.einsum("ep,esp->es", rows[m], centers[at])
            for at, m in zip(torch.split(aggregator, 1024), torch.split(message, 1024), strict=True)
        ]
        return torch.cat(parts)


def by_cluster(rows: Tensor, share: Tensor) -> Iterator[Tensor]:
    """For each column of shares the rows (message, width) that it is of."""
    for s in range(share.shape[1]):
        yield rows if rows.dim() == 2 else rows[:, s].contiguous()
