"""Clients dealt out among processes: each computes its own, and what is narrow is told to all.

Rows stay with the process that trained them. A mean at a server adds up each process's part; whatever needs the
rows themselves (a graph, clustering by row) looks at them, and they are fetched then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.backends.processes import ProcessGroup
from coterie.protocol import blocks
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort, Personal, RoundContext
from coterie.protocol.message import Fields, Messages
from coterie.protocol.privacy import MODELS
from coterie.protocol.selection import Answer


class Clients(Protocol):
    """The other side of the wire: offers go in, what the clients tell comes out."""

    def tell(self, answer: Answer, offer: Messages, context: RoundContext) -> Messages: ...


@dataclass
class Together:
    """Clients computed as one cohort: all of them here."""

    cohort: Cohort

    def tell(self, answer: Answer, offer: Messages, context: RoundContext) -> Messages:
        if not len(offer):
            return Messages(offer.clients, {})
        cohort = self.cohort.take(offer.clients).when(context)
        return Messages(offer.clients, blocks.sent(answer, cohort, offer))

    def mine(self, messages: Messages) -> Messages:
        return messages

    def of_these(self, messages: Messages) -> Cohort:
        return self.cohort.take(messages.clients)

    def of_all(self, values: Tensor) -> Tensor:
        return values

    def client_state_of_all(self, client_state: ClientState) -> ClientState:
        return client_state


def dealt(sizes: Tensor, processes: int) -> Tensor:
    """(client,) the process that computes each: the largest first, each to the one with the least work so far."""
    points: list[int] = sizes.tolist()
    owner = [0] * len(points)
    work = [(0, process) for process in range(processes)]
    for client in sorted(range(len(points)), key=lambda i: -points[i]):
        least, owner[client] = heapq.heappop(work)
        heapq.heappush(work, (least + points[client], owner[client]))
    return torch.tensor(owner, device=sizes.device)


class Sharded:
    """The clients of all processes, of which the cohort is this one's."""

    def __init__(self, cohort: Cohort, group: ProcessGroup):
        group.check(len(cohort))
        self.group, self.owner = group, dealt(cohort.sizes, group.size)
        self.own = (self.owner == group.rank).nonzero()[:, 0]
        self.place = torch.full_like(self.owner, -1)  # (client,) where it lies in the cohort
        self.place[self.own] = torch.arange(len(self.own), device=self.own.device)
        own = cohort.take(self.own)
        self.cohort = replace(
            own, client_state=ClientState(len(own)), at=torch.arange(len(own), device=own.at.device)
        )

    def tell(self, answer: Answer, offer: Messages, context: RoundContext) -> Messages:
        if not len(offer):
            return Messages(offer.clients, {})
        owner, mine = self.owner[offer.clients], self.mine(offer)
        rows: dict[str, Tensor] = {}

        def work() -> tuple[dict[str, Any], dict[str, Any]] | None:
            if not len(mine):
                return None
            sent = blocks.sent(answer, self.of_these(mine).when(context), mine)
            rows.update({n: t for n, t in sent.items() if n in MODELS})
            narrow = {n: t.cpu().numpy() for n, t in sent.items() if n not in MODELS}
            return narrow, {n: none_like(t) for n, t in rows.items()}

        found = [one for one in self.group.all(work) if one is not None]
        device = offer.clients.device
        narrow = {n: in_order([one[n] for one, _ in found], owner) for n in found[0][0]}
        here = {n: rows.get(n, none.to(device)) for n, none in found[0][1].items()}
        narrow = {n: t.to(device) for n, t in narrow.items()}
        return ShardedMessages.of(offer.clients, narrow, here, owner, self.group)

    def mine(self, messages: Messages) -> Messages:
        """The letters to clients of this process."""
        return messages.take((self.owner[messages.clients] == self.group.rank).nonzero()[:, 0])

    def of_these(self, messages: Messages) -> Cohort:
        """The clients of this process among those that letters are of."""
        here = self.owner[messages.clients] == self.group.rank
        return self.cohort.take(self.place[messages.clients[here]])

    def of_all(self, values: Tensor) -> Tensor:
        """(client, ...) from what every process has of its own (own client, ...), which should be narrow."""
        return gathered_small(self.group, values, self.owner)

    def models_of_all(self, personal: Personal) -> Personal:
        """Everybody's models; where each process shows all its clients the same, they are not copied."""
        rows, n = personal.rows, len(self.owner)
        if all(self.group.all(lambda: len(rows) > 1 and rows.stride(0) == 0)):
            shown = rows[:1].expand(n, *rows.shape[1:])  # a server's centers: all processes have them
            return Personal(shown, self.of_all(personal.weights))
        # where they lie depends on how many a process has, and only on a host is it the same for all
        return Personal(self.group.gather(rows.cpu(), self.owner), self.of_all(personal.weights).cpu())

    def client_state_of_all(self, client_state: ClientState) -> ClientState:
        """Every client's memory, in the first process, which saves it. Clients know nothing of a name not here."""
        whole = ClientState(len(self.owner))
        shapes = self.group.all(lambda: {n: none_like(t) for n, t in client_state.values.items()})
        for name, none in sorted({n: t for each in shapes for n, t in each.items()}.items()):
            values, known = client_state.values.get(name), client_state.known.get(name)
            if values is None or known is None:
                values = none.new_zeros(len(self.own), *none.shape[1:])
                known = torch.zeros(len(self.own), dtype=torch.bool)
            whole.values[name] = self.group.gather(values.cpu(), self.owner, only_first=True)
            whole.known[name] = self.of_all(known)
        return whole


def none_like(rows: Tensor) -> Tensor:
    """No rows, but of this kind; a slice of the rows would take them all along in a message."""
    return torch.empty(0, *rows.shape[1:], dtype=rows.dtype)


def in_order(parts: list[Any], owner: Tensor) -> Tensor:
    """(letter, ...) parts one process after another, each letter put in its place."""
    joined = torch.cat([torch.from_numpy(part) for part in parts])
    whole = torch.empty_like(joined)
    whole[torch.argsort(owner, stable=True).cpu()] = joined
    return whole


def gathered_small(group: ProcessGroup, values: Tensor, owner: Tensor) -> Tensor:
    """As World.gather, in one message."""
    return in_order(group.all(lambda: values.cpu().numpy()), owner).to(values.device)


class LazyFields(Mapping[str, Tensor]):
    """Fields, some of which are fetched from the other processes when they are first looked at."""

    def __init__(self, narrow: Fields, fetch: Mapping[str, Callable[[], Tensor]]):
        self._known, self._fetch = dict(narrow), fetch

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._known:
            self._known[name] = self._fetch[name]()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._fetch

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._known, *self._fetch)))

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class ShardedMessages(Messages):
    """Letters whose rows lie with the processes that computed them; all else in them is known to all."""

    narrow: Fields = field(default_factory=dict)
    rows: Fields = field(default_factory=dict)  # (own letter, ...)
    owner: Tensor = field(default_factory=lambda: torch.zeros(0))  # (letter,) the process that has its rows

    @staticmethod
    def of(
        clients: Tensor, narrow: Fields, rows: Fields, owner: Tensor, group: ProcessGroup
    ) -> ShardedMessages:
        fetch = {n: partial(group.gather, t, owner) for n, t in rows.items()}
        return ShardedMessages(clients, LazyFields(narrow, fetch), group, narrow, rows, owner)

    def take(self, letters: Tensor) -> Messages:
        here = self.owner == self.group.rank
        own = (here.cumsum(0) - 1)[letters[here[letters]]]
        narrow = Messages(self.clients, self.narrow).take(letters)
        rows = {n: t[own] for n, t in self.rows.items()}
        return ShardedMessages.of(narrow.clients, narrow.fields, rows, self.owner[letters], self.group)

    def finite(self) -> Tensor:
        letters = self._here()
        return Messages(self.clients, self.narrow).finite() & self.each(Messages(letters, self.rows).finite())

    @property
    def message_bytes(self) -> int:
        sent = (*self.narrow.values(), *self.rows.values())
        return sum(t.shape[1:].numel() * t.element_size() for t in sent) if len(self) else 0

    def held(self, name: str) -> tuple[Tensor, Tensor]:
        letters = self._here()
        return letters, self.rows[name] if name in self.rows else self.narrow[name][letters]

    def each(self, values: Tensor) -> Tensor:
        return gathered_small(self.group, values, self.owner)

    def _here(self) -> Tensor:
        return (self.owner == self.group.rank).nonzero()[:, 0]
