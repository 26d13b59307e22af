"""Who holds how much of which distribution."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from torch import Tensor

from coterie.data.draws import generator
from coterie.errors import SettingError, require

_RATIO = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
ALLOWED = "'linear', 'random', 'pure', or two shares that add up to 100 such as '10:90'"


def mixtures(pattern: str, clients: int, distributions: int, seed: int = 0) -> Tensor:
    """(client, distribution): the share of each distribution in each client's data, float64."""
    require(clients >= 1, "clients", clients, "a whole number from 1")
    require(distributions >= 1, "the number of distributions", distributions, "a whole number from 1")
    if pattern == "pure":
        return torch.eye(distributions, dtype=torch.float64)[torch.arange(clients) % distributions]
    if pattern == "random":
        return _random(clients, distributions, seed)
    if pattern == "linear":
        first = (torch.arange(clients, dtype=torch.float64) + 0.5) / clients
    elif ratio := _RATIO.fullmatch(pattern):
        first = _halves(pattern, float(ratio[1]), float(ratio[2]), clients)
    else:
        raise SettingError("pattern", f"is {pattern!r}; allowed is {ALLOWED}")
    if distributions != 2:
        raise SettingError(
            "pattern",
            f"is {pattern!r}, which mixes 2 distributions, not {distributions}; 'random' and 'pure' mix any",
        )
    return torch.stack([first, 1 - first], dim=1)


def _halves(pattern: str, a: float, b: float, clients: int) -> Tensor:
    require(math.isclose(a + b, 100), "pattern", pattern, "two shares that add up to 100")
    in_first_half = torch.arange(clients) * 2 < clients
    return torch.tensor([b / 100, a / 100], dtype=torch.float64)[in_first_half.long()]


def _random(clients: int, distributions: int, seed: int) -> Tensor:
    """Every client divides [0, 1] at points drawn uniformly."""
    cuts = np.sort(generator(seed, "mixtures").random((clients, distributions - 1)), axis=1)
    return torch.from_numpy(np.diff(cuts, axis=1, prepend=0.0, append=1.0))


def counts(mixture: Tensor, sizes: Tensor) -> Tensor:
    """(client, distribution): whole numbers of points, adding up to each client's size (largest remainder)."""
    quota = mixture.to(torch.float64) * sizes[:, None]
    floor = quota.floor().long()
    missing = sizes.long() - floor.sum(1)
    by_remainder = (quota - floor).argsort(dim=1, descending=True, stable=True)
    rank = by_remainder.argsort(dim=1)
    return floor + (rank < missing[:, None])


def components(counts: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """(point,) the distribution each point is to come from, mixed within a client; and the clients' offsets."""
    clients, distributions = counts.shape
    sizes = counts.sum(1)
    owner = torch.arange(clients).repeat_interleave(sizes).numpy()
    component = torch.arange(distributions).repeat(clients).repeat_interleave(counts.flatten())
    order = np.lexsort((rng.random(len(owner)), owner))  # by client, then at random
    return component[torch.from_numpy(order)], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
