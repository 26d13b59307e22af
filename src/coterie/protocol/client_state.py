"""What clients keep to themselves between rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.engine import storage
from coterie.engine.training import Training


class ClientState:
    """Named tensors, client axis first. They never leave a client.

    They lie in storage: on a GPU as long as they are few; of others it has what this round's cohort recalls.
    """

    def __init__(self, clients: int):
        self.clients = clients
        self.values: dict[str, Tensor] = {}
        self.known: dict[str, Tensor] = {}  # (client,) who has it

    def put(self, name: str, at: Tensor, value: Tensor) -> None:
        old = self.values.get(name)
        if old is None or old.shape[1:] != value.shape[1:]:
            home = storage.home(value.shape[1:], self.clients, value.dtype, value.device, self._bytes(name))
            shape = (self.clients, *value.shape[1:])
            self.values[name] = storage.table(shape, value.dtype, home, zero=True)
            self.known[name] = torch.zeros(self.clients, dtype=torch.bool, device=home)
        table = self.values[name]
        at = at.to(table.device)
        table[at] = value.detach().to(table.device)
        self.known[name].index_fill_(0, at, True)  # by [at] = True a GPU would wait for the host

    def set(self, name: str, values: Tensor, known: Tensor, device: torch.device) -> None:
        """All clients' at once, for a run that computes on this device."""
        home = storage.home(values.shape[1:], self.clients, values.dtype, device, self._bytes(name))
        self.values[name], self.known[name] = values.to(home), known.to(home)

    def _bytes(self, besides: str) -> int:
        """Of the tables that lie where clients are computed, besides one."""
        return sum(t.nbytes for n, t in self.values.items() if n != besides and t.device.type != "cpu")

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

    # an optimizer's state; where a client trains another cluster each round, `slot` (client,) says which state it uses

    def optimizer(
        self, training: Training, at: Tensor, start: Tensor, per_client: int, width: int, slot: Tensor | None
    ) -> dict[str, Tensor]:
        """(problem, ...) what the optimizer had at the end of the last solve; zeros at first."""
        kept = {name: start.new_zeros(len(at), per_client, width) for name in training.state_names()}
        kept["step"] = start.new_zeros(len(at), per_client)
        for name, zero in kept.items():
            for s, part in _by_slot(slot, at):
                zero[part] = self.get(f"optimizer.{name}{s}", at[part], zero[part])
        return {name: value.flatten(0, 1) for name, value in kept.items()}

    def keep_optimizer(self, kept: dict[str, Tensor], at: Tensor, slot: Tensor | None) -> None:
        """(client, problem, ...) of each name."""
        for name, value in kept.items():
            for s, part in _by_slot(slot, at):
                self.put(f"optimizer.{name}{s}", at[part], value[part])

    # saved and loaded

    def tensors(self) -> dict[str, Tensor]:
        kept = {f"memory.{name}": values for name, values in self.values.items()}
        return kept | {f"known.{name}": known for name, known in self.known.items()}

    @staticmethod
    def of(tensors: dict[str, Tensor], order: Tensor, device: torch.device) -> ClientState:
        """What was saved, for clients in this order (client,) of those who were saved."""
        state = ClientState(len(order))
        for name, values in tensors.items():
            if name.startswith("memory."):
                name = name.removeprefix("memory.")
                known = storage.take(tensors[f"known.{name}"], order)
                state.set(name, storage.take(values, order), known, device)
        return state


def _by_slot(slot: Tensor | None, at: Tensor) -> list[tuple[str, Tensor]]:
    """The clients that use each slot, by the slot's name."""
    if slot is None:
        return [("", torch.arange(len(at), device=at.device))]
    return [(f".{s}", (slot == s).nonzero()[:, 0]) for s in sorted(set(slot.tolist()))]
