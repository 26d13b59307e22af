"""What crosses the wire: named tensors to or from clients, as bytes, and how many of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.backends.processes import ALONE, ProcessGroup
from coterie.data import everyone
from coterie.engine import storage
from coterie.errors import CoterieError

Fields = Mapping[str, Tensor]


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
    """One letter per client, the same fields in each; client axis first.

    A field that is the same for all (the centers of a server) is expanded, not copied.
    """

    clients: Tensor  # (letter,) positions in the listener's list of clients
    fields: Fields
    group: ProcessGroup = ALONE  # the processes that have the letters' rows

    def __len__(self) -> int:
        return len(self.clients)

    def take(self, letters: Tensor) -> Messages:
        """Some of the letters, by number."""
        return Messages(self.clients[letters], {n: _pick(t, letters) for n, t in self.fields.items()})

    def only(self, wanted: Tensor) -> Messages:
        """The letters to or from the clients that are wanted (client,) bool."""
        if everyone.is_mask(wanted):
            return self
        mine = wanted[self.clients]
        return (
            self if bool(mine.all()) else self.take(mine.nonzero()[:, 0])
        )  # as a rule all: nothing is copied

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
        """(letter,) is all that it says finite?"""
        good = torch.ones(len(self), dtype=torch.bool, device=self.clients.device)
        for sent in self.fields.values():
            if sent.is_floating_point() and sent.numel():
                for some in storage.row_blocks(sent):
                    each = sent[some].flatten(1) if sent.dim() > 1 else sent[some, None]
                    largest, least = each.amax(1), each.amin(1)  # of nan, nan; no copy is made
                    good[some].logical_and_((largest < torch.inf) & (least > -torch.inf))
        return good

    @property
    def message_bytes(self) -> int:
        """The payload of one letter."""
        return sum(t[:1].numel() * t.element_size() for t in self.fields.values()) if len(self) else 0

    # where several processes compute the clients, each holds the rows of its own; see shards.py

    def held(self, name: str) -> tuple[Tensor, Tensor]:
        """The letters whose rows are here, by number, and these rows."""
        return torch.arange(len(self), device=self.clients.device), self.fields[name]

    def each(self, values: Tensor) -> Tensor:
        """(letter, ...) from values of the letters that are held here."""
        return values

    def to_bytes(self, letter: int) -> bytes:
        return bytes(save({n: t[letter].contiguous() for n, t in self.fields.items()}))

    @staticmethod
    def from_bytes(clients: Tensor, letters: list[bytes]) -> Messages:
        opened = [load(letter) for letter in letters]
        names = opened[0].keys() if opened else ()
        if any(letter.keys() != names for letter in opened):
            raise CoterieError("clients told different things in one round; all must tell the same fields")
        return Messages(clients, {n: torch.stack([letter[n] for letter in opened]) for n in names})


def _pick(t: Tensor, letters: Tensor) -> Tensor:
    if t.stride(0) == 0 and len(t):
        return t[:1].expand(len(letters), *t.shape[1:])
    return storage.take(t, letters)


@dataclass
class Traffic:
    """Letters and payload bytes so far. A server's are counted both ways; a graph's in two ways of sending."""

    messages: int = 0
    down: int = 0  # from a server to its clients
    up: int = 0  # from clients to a server
    multicast: int = 0  # between peers, each letter counted once however many hear it
    point_to_point: int = 0  # between peers, each letter counted once per neighbour that needs it

    def to_clients(self, messages: Messages | None, already: Messages | None = None) -> None:
        """What clients have been `sent` before in a round is not counted again."""
        messages = None if messages is None else messages.beyond(already)
        if messages is not None and messages.fields:
            self.down += len(messages) * messages.message_bytes
            self.messages += len(messages)

    def to_server(self, messages: Messages | None) -> None:
        if messages is not None and messages.fields:
            self.up += len(messages) * messages.message_bytes
            self.messages += len(messages)

    def between(self, messages: Messages, neighbours: Tensor, needed: Tensor) -> None:
        """Peers tell their neighbours: (letter,) how many there are, and how many need all of the letter."""
        if not messages.fields:
            return
        small = sum(t[:1].numel() * t.element_size() for t in messages.fields.values() if t.dim() == 1)
        received = int((neighbours > 0).sum())
        self.messages += received
        self.multicast += received * messages.message_bytes
        self.point_to_point += (
            int(needed.sum()) * (messages.message_bytes - small) + int(neighbours.sum()) * small
        )

    def total(self) -> int:
        return self.down + self.up + self.point_to_point

    def named(self) -> dict[str, int]:
        return {f.name: int(getattr(self, f.name)) for f in fields(self)}
