"""What clients keep to themselves between rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.engine import storage


class ClientState:
    """Named tensors, client axis first. They never cross the wire.

    They lie on a shelf: a GPU has of them what this round's cohort recalls, and no more.
    """

    def __init__(self, clients: int):
        self.clients = clients
        self.values: dict[str, Tensor] = {}
        self.known: dict[str, Tensor] = {}  # (client,) who has it

    def put(self, name: str, at: Tensor, value: Tensor) -> None:
        old = self.values.get(name)
        if old is None or old.shape[1:] != value.shape[1:]:
            home = storage.home(value.shape[1:], self.clients, value.dtype, value.device)
            shape = (self.clients, *value.shape[1:])
            self.values[name] = storage.table(shape, value.dtype, home, zero=True)
            self.known[name] = torch.zeros(self.clients, dtype=torch.bool, device=home)
        table = self.values[name]
        at = at.to(table.device)
        table[at] = value.detach().to(table.device)
        self.known[name].index_fill_(0, at, True)  # by [at] = True a GPU would wait for the host

    def set(self, name: str, values: Tensor, known: Tensor, device: torch.device) -> None:
        """All clients' at once, for a run that computes on this device."""
        home = storage.home(values.shape[1:], self.clients, values.dtype, device)
        self.values[name], self.known[name] = values.to(home), known.to(home)

    def get(self, name: str, at: Tensor, otherwise: Tensor) -> Tensor:
        if name not in self.values:
            return otherwise
        values, here = self.values[name], at.to(self.known[name].device)
        known = self.known[name][here]
        if values.device.type != "cpu":  # who is known, the host would have to wait for
            return torch.where(known.view(-1, *(1,) * (otherwise.dim() - 1)), values[here], otherwise)
        if bool(known.all()):
            return values.index_select(0, here).to(at.device)
        found = otherwise.clone(memory_format=torch.contiguous_format)
        some = known.nonzero()[:, 0]  # perhaps few, of a table that lies on disk
        found[some.to(at.device)] = values.index_select(0, here[some]).to(at.device)
        return found
