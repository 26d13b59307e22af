"""Which clients take part in a round, and whose messages arrive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.chance import mix, uniform
from coterie.checked import Checked
from coterie.errors import require


@dataclass(frozen=True)
class Participation(Checked):
    """Everybody, unless said otherwise."""

    fraction: float = 1.0  # of the clients, invited anew each round
    absent: float = 0.0  # the chance that a client neither reports, trains nor listens in a round
    stragglers: float = 0.0  # the chance that what a client trained is lost on the way

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.fraction <= 1, "fraction", self.fraction, "above 0 and at most 1")
        require(0 <= self.absent <= 1, "absent", self.absent, "between 0 and 1")
        require(0 <= self.stragglers <= 1, "stragglers", self.stragglers, "between 0 and 1")

    def n_invited(self, n_clients: int) -> int:
        return max(1, round(self.fraction * n_clients))

    def invited(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: whom the listener means to ask; `keys` are those of all clients."""
        invited = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
        invited[uniform(mix(seed, round, "invited", keys)).topk(self.n_invited(len(keys))).indices] = True
        return invited

    def present(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: who was invited and came, which no listener knows before."""
        came = uniform(mix(seed, round, "absent", keys)) >= self.absent
        return self.invited(keys, seed, round) & came

    def dropped(self, keys: Tensor, seed: int, round: int) -> Tensor:
        """(client,) bool: whose message, if one was sent, does not arrive."""
        return uniform(mix(seed, round, "straggler", keys)) < self.stragglers
