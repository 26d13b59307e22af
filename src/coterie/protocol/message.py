"""What goes between an aggregator and its clients: named tensors, one message per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.engine import storage

Fields = Mapping[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class RoundContext:
    """When it is: with the seed, all that randomness and schedules depend on besides the client."""

    seed: int
    stage: int = 0
    round: int = 0
    rounds: int = 1  # of this stage
    before: int = 0  # rounds of the stages and attempts before

    @property
    def of_run(self) -> int:
        """The round, counted over all stages."""
        return self.before + self.round


class Group(Protocol):
    """The processes that compute one run together; each has the rows of its own clients."""

    @property
    def first(self) -> bool:
        """Is this the process that writes and prints?"""

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all processes."""

    def max(self, part: Tensor) -> Tensor:
        """The greatest over all processes, number by number."""

    def once(self, work: Callable[[], T]) -> T:
        """The first process does it, and all know what came out."""

    def all(self, work: Callable[[], T]) -> list[T]:
        """What every process makes of the same work."""

    def agree(self, work: Callable[[], T]) -> T:
        """My own result, when all have theirs."""


class OneProcess:
    """All clients are computed here."""

    first = True

    def sum(self, part: Tensor) -> Tensor:
        return part

    def max(self, part: Tensor) -> Tensor:
        return part

    def once(self, work: Callable[[], T]) -> T:
        return work()

    def all(self, work: Callable[[], T]) -> list[T]:
        return [work()]

    def agree(self, work: Callable[[], T]) -> T:
        return work()


ALONE: Group = OneProcess()


class Named:
    """Fields that can be read as attributes."""

    fields: Fields

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__") or name == "fields":
            raise AttributeError(name)
        try:
            return self.fields[name]
        except KeyError:
            known = ", ".join(sorted(self.fields))
            raise AttributeError(f"there is no {name!r} here, only {known}") from None


@dataclass(frozen=True)
class Messages(Named):
    """One message per client, the same fields in each; message axis first.

    A field that is the same for all (the centers of a server) is expanded, not copied.
    """

    clients: Tensor  # (message,) positions in the aggregator's list of clients
    fields: Fields
    group: Group = ALONE  # the processes that have the messages' rows

    def __len__(self) -> int:
        return len(self.clients)

    def take(self, which: Tensor) -> Messages:
        """Some of the messages, by number."""
        return Messages(self.clients[which], {n: _pick(t, which) for n, t in self.fields.items()})

    def only(self, wanted: Tensor) -> Messages:
        """The messages to or from the clients that are wanted (client,) bool."""
        if everyone.is_mask(wanted):
            return self
        mine = wanted[self.clients]
        if bool(mine.all()):  # as a rule: nothing is copied
            return self
        return self.take(mine.nonzero()[:, 0])

    def just(self, *names: str) -> Messages:
        """With these fields alone."""
        return Messages(self.clients, {name: self.fields[name] for name in names})

    def beyond(self, already: Messages | None) -> Messages:
        """Without the fields that its clients have been sent already."""
        if already is None:
            return self
        already = already.take(torch.isin(already.clients, self.clients).nonzero()[:, 0])
        if not torch.equal(already.clients, self.clients):
            return self
        old = {n for n, t in already.fields.items() if n in self.fields and torch.equal(t, self.fields[n])}
        return Messages(self.clients, {n: t for n, t in self.fields.items() if n not in old})

    def finite(self) -> Tensor:
        """(message,) is every number in it finite?"""
        good = torch.ones(len(self), dtype=torch.bool, device=self.clients.device)
        for values in self.fields.values():
            good.logical_and_(finite_rows(values))
        return good

    @property
    def message_bytes(self) -> int:
        """The payload of one message."""
        return sum(t[:1].numel() * t.element_size() for t in self.fields.values()) if len(self) else 0

    def scattered(self, name: str, clients: int) -> Tensor:
        """(client, ...) a field by client; nan (or 0, if it is no float) for those who sent no message."""
        values = self.fields[name]
        if len(self) == clients:
            return values
        floats = values.is_floating_point()
        table = values.new_full((clients, *values.shape[1:]), torch.nan if floats else 0)
        table[self.clients] = values
        return table

    # where several processes compute the clients, each holds the rows of its own; see backends/sharded.py

    def held(self, name: str) -> tuple[Tensor, Tensor]:
        """The messages whose rows are here, by number, and these rows."""
        return torch.arange(len(self), device=self.clients.device), self.fields[name]

    def each(self, values: Tensor) -> Tensor:
        """(message, ...) from values of the messages that are held here."""
        return values


def finite_rows(values: Tensor) -> Tensor:
    """(row,) is every number of a row of values (row, ...) finite?"""
    good = torch.ones(len(values), dtype=torch.bool, device=values.device)
    if not values.is_floating_point() or not values.numel():
        return good
    for some in storage.row_blocks(values):
        each = values[some].flatten(1) if values.dim() > 1 else values[some, None]
        largest, least = each.amax(1), each.amin(1)  # of nan, nan; no copy is made
        good[some] = (largest < torch.inf) & (least > -torch.inf)
    return good


def nobody(like: Tensor) -> Messages:
    """No message at all."""
    return Messages(torch.zeros(0, dtype=torch.long, device=like.device), {})


def _pick(t: Tensor, which: Tensor) -> Tensor:
    if t.stride(0) == 0 and len(t):
        return t[:1].expand(len(which), *t.shape[1:])
    return storage.take(t, which)
