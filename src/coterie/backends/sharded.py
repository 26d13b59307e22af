"""Clients divided among processes: each computes its own, and what is narrow is known to all.

Rows stay with the process that trained them. A mean at a server adds up each process's part; whatever needs the rows
themselves (a graph, clustering by row) reads them, and they are fetched then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.backends.processes import ProcessGroup
from coterie.errors import CoterieError
from coterie.protocol.client import Client
from coterie.protocol.client_state import ClientState
from coterie.protocol.clients import Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import ROWS
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.questions import declared
from coterie.protocol.stages import Stages


def divided(sizes: Tensor, processes: int) -> Tensor:
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

    peers = False

    def __init__(self, cohort: Cohort, stages: Stages, group: ProcessGroup):
        group.check(len(cohort))
        self.group, self.owner = group, divided(cohort.sizes, group.size)
        self.own = (self.owner == group.rank).nonzero()[:, 0]
        self.place = torch.full_like(self.owner, -1)  # (client,) where it lies in the cohort
        self.place[self.own] = torch.arange(len(self.own), device=self.own.device)
        own = cohort.take(self.own)
        test = None if own.test is None else own.test.take(self.own)
        at = torch.arange(len(own), device=own.at.device)
        self.client = Client(replace(own, client_state=ClientState(len(own)), at=at, test=test), stages)

    @property
    def cohort(self) -> Cohort:
        return self.client.cohort

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        if not len(offer):
            return Messages(offer.clients, {})
        owner = self.owner[offer.clients]
        mine = self._mine(offer, owner)
        fields = declared(question, self.client.stages[context.stage]) or {}
        rows: dict[str, Tensor] = {}

        def work() -> tuple[dict[str, Any], dict[str, Any]] | None:
            """What is narrow, as all shall know it, and of what kind the rows are."""
            own = Messages(self.place[mine.clients], mine.fields)
            sent = self.client.answer(question, own, context)
            if not len(mine):
                return None
            rows.update({n: t for n, t in sent.items() if fields[n].role in ROWS})
            narrow = {n: t.cpu().numpy() for n, t in sent.items() if n not in rows}
            return narrow, {n: none_like(t) for n, t in rows.items()}

        found = [one for one in self.group.all(work) if one is not None]
        device = offer.clients.device
        narrow = {n: in_order([one[n] for one, _ in found], owner).to(device) for n in found[0][0]}
        here = {n: rows.get(n, none.to(device)) for n, none in found[0][1].items()}
        if question == "finish":
            narrow["rows"] = self._models(here.pop("rows"), owner)
        return ShardedMessages.of(offer.clients, narrow, here, owner, self.group)

    def _mine(self, offer: Messages, owner: Tensor) -> Messages:
        """The messages to clients of this process. Rows that it holds need not be fetched for that."""
        here = (owner == self.group.rank).nonzero()[:, 0]
        if not isinstance(offer, ShardedMessages):
            return offer.take(here)
        narrow = Messages(offer.clients, offer.narrow).take(here)
        return Messages(narrow.clients, {**narrow.fields, **offer.rows})

    def _models(self, rows: Tensor, owner: Tensor) -> Tensor:
        """Everybody's models; where each process shows all its clients the same, they are not copied."""
        if all(self.group.all(lambda: len(rows) > 1 and rows.stride(0) == 0)):
            return rows[:1].expand(len(owner), *rows.shape[1:])  # a server's centers: all processes have them
        # where they lie depends on how many a process has, and only on a host is it the same for all
        return self.group.gather(rows.cpu(), owner)

    def deliver(self, sent: Messages, edges: Tensor, context: RoundContext) -> None:
        raise CoterieError(
            "these clients hold no aggregators; their rounds over a graph are computed for them"
        )

    def save(self, context: RoundContext) -> dict[str, Tensor]:
        tensors = self._of_all(self.client.cohort.client_state).tensors()
        if any(self.group.all(lambda: self.client.best is not None)):
            best = self._of_all(self.client.best or ClientState(len(self.own)))
            tensors.update({f"best.{name}": t for name, t in best.tensors().items()})
        return tensors

    def load(self, tensors: dict[str, Tensor], order: Tensor, context: RoundContext) -> None:
        self.client.load(tensors, order[self.own.cpu()])

    def _of_all(self, state: ClientState) -> ClientState:
        """What every client keeps, in the first process, which saves it. Clients know nothing of a name not here."""
        whole = ClientState(len(self.owner))
        shapes = self.group.all(lambda: {n: none_like(t) for n, t in state.values.items()})
        for name, none in sorted({n: t for each in shapes for n, t in each.items()}.items()):
            values, known = state.values.get(name), state.known.get(name)
            if values is None or known is None:
                values = none.new_zeros(len(self.own), *none.shape[1:])
                known = torch.zeros(len(self.own), dtype=torch.bool)
            whole.values[name] = self.group.gather(values.cpu(), self.owner, only_first=True)
            whole.known[name] = gathered_small(self.group, known, self.owner)
        return whole


def none_like(rows: Tensor) -> Tensor:
    """No rows, but of this kind; a slice of the rows would take them all along in a message."""
    return torch.empty(0, *rows.shape[1:], dtype=rows.dtype)


def in_order(parts: list[Any], owner: Tensor) -> Tensor:
    """(message, ...) parts one process after another, each message put in its place."""
    joined = torch.cat([torch.from_numpy(part) for part in parts])
    whole = torch.empty_like(joined)
    whole[torch.argsort(owner, stable=True).cpu()] = joined
    return whole


def gathered_small(group: ProcessGroup, values: Tensor, owner: Tensor) -> Tensor:
    """As `ProcessGroup.gather`, at once."""
    return in_order(group.all(lambda: values.cpu().numpy()), owner).to(values.device)


class LazyFields(Mapping[str, Tensor]):
    """Fields, some of which are fetched from the other processes when they are first read."""

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
    """Messages whose rows lie with the processes that computed them; all else in them is known to all."""

    processes: ProcessGroup = field(default_factory=ProcessGroup)
    narrow: Fields = field(default_factory=dict)
    rows: Fields = field(default_factory=dict)  # (own message, ...)
    owner: Tensor = field(default_factory=lambda: torch.zeros(0))  # (message,) the process that has its rows

    @staticmethod
    def of(
        clients: Tensor, narrow: Fields, rows: Fields, owner: Tensor, group: ProcessGroup
    ) -> ShardedMessages:
        fetch = {n: partial(group.gather, t, owner) for n, t in rows.items()}
        return ShardedMessages(clients, LazyFields(narrow, fetch), group, group, narrow, rows, owner)

    def just(self, *names: str) -> Messages:
        narrow, rows = ({n: t for n, t in part.items() if n in names} for part in (self.narrow, self.rows))
        return ShardedMessages.of(self.clients, narrow, rows, self.owner, self.processes)

    def take(self, which: Tensor) -> Messages:
        here = self.owner == self.processes.rank
        own = (here.cumsum(0) - 1)[which[here[which]]]
        narrow = Messages(self.clients, self.narrow).take(which)
        rows = {n: t[own] for n, t in self.rows.items()}
        return ShardedMessages.of(narrow.clients, narrow.fields, rows, self.owner[which], self.processes)

    def finite(self) -> Tensor:
        which = self._here()
        return Messages(self.clients, self.narrow).finite() & self.each(Messages(which, self.rows).finite())

    @property
    def message_bytes(self) -> int:
        sent = (*self.narrow.values(), *self.rows.values())
        return sum(t.shape[1:].numel() * t.element_size() for t in sent) if len(self) else 0

    def held(self, name: str) -> tuple[Tensor, Tensor]:
        which = self._here()
        return which, self.rows[name] if name in self.rows else self.narrow[name][which]

    def each(self, values: Tensor) -> Tensor:
        return gathered_small(self.processes, values, self.owner)

    def _here(self) -> Tensor:
        return (self.owner == self.processes.rank).nonzero()[:, 0]
