"""Who holds how much of which distribution."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from torch import Tensor

from coterie.errors import SettingError, require
from coterie.prng import numpy_generator

_RATIO = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
ALLOWED = (
    "'pure', 'linear', 'random', 'uniform', 'iid', for data sets 'structured', "
    "or two shares that add up to 100 such as '10:90'"
)
_UNIFORM = (0.1, 0.9)  # FedSPD, section 6


def mixtures(kind: str, clients: int, distributions: int, seed: int = 0) -> Tensor:
    """(client, distribution): the share of each distribution in each client's data, float64."""
    require(clients >= 1, "clients", clients, "a whole number from 1")
    require(distributions >= 1, "the number of distributions", distributions, "a whole number from 1")
    if kind == "pure":
        return torch.eye(distributions, dtype=torch.float64)[torch.arange(clients) % distributions]
    if kind == "random":
        return _random(clients, distributions, seed)
    if kind == "iid":
        return torch.full((clients, distributions), 1 / distributions, dtype=torch.float64)
    if kind == "linear":
        first = (torch.arange(clients, dtype=torch.float64) + 0.5) / clients
    elif kind == "uniform":
        first = torch.from_numpy(numpy_generator(seed, "mixtures").uniform(*_UNIFORM, clients))
    elif ratio := _RATIO.fullmatch(kind):
        first = _halves(kind, float(ratio[1]), float(ratio[2]), clients)
    else:
        raise SettingError("mixture", f"is {kind!r}; allowed is {ALLOWED}")
    if distributions != 2:
        raise SettingError(
            "mixture",
            f"is {kind!r}, which mixes 2 distributions, not {distributions}; 'random', 'iid' and 'pure' mix any",
        )
    return torch.stack([first, 1 - first], dim=1)


def mixes_two(kind: str) -> bool:
    return kind in ("linear", "uniform") or _RATIO.fullmatch(kind) is not None


def _halves(kind: str, a: float, b: float, clients: int) -> Tensor:
    require(math.isclose(a + b, 100), "mixture", kind, "two shares that add up to 100")
    in_first_half = torch.arange(clients) * 2 < clients
    return torch.tensor([b / 100, a / 100], dtype=torch.float64)[in_first_half.long()]


def _random(clients: int, distributions: int, seed: int) -> Tensor:
    """Every client divides [0, 1] at points drawn uniformly."""
    cuts = np.sort(numpy_generator(seed, "mixtures").random((clients, distributions - 1)), axis=1)
    return torch.from_numpy(np.diff(cuts, axis=1, prepend=0.0, append=1.0))


def structured(clients: int, distributions: int, per_client: int, m0: int | None, seed: int) -> Tensor:
    """k-FED: every client has `per_client` (k') of the distributions, in equal shares.

    With `m0` as in its section 4.1: the distributions are cut into sets of k', and m0 clients have each set, so
    that a client has 1/m0 of each of them. Without, as in its section 4.2.1: every client's set is random.
    """
    require(clients >= 1, "clients", clients, "a whole number from 1")
    allowed = f"1 to {distributions}, the number of distributions"
    require(1 <= per_client <= distributions, "per_client", per_client, allowed)
    if m0 is None:
        return (
            few(clients, distributions, per_client, numpy_generator(seed, "mixtures")).double() / per_client
        )
    whole = distributions % per_client == 0
    divisor = f"a number that divides {distributions}, the number of distributions, when m0 is given"
    require(whole, "per_client", per_client, divisor)
    needed = m0 * distributions // per_client
    require(clients == needed, "clients", clients, f"{needed}: m0 · clusters / per_client")
    sets = torch.arange(clients) % (distributions // per_client)
    return (torch.arange(distributions) // per_client == sets[:, None]).double() / per_client


def few(holders: int, kinds: int, each: int, rng: np.random.Generator) -> Tensor:
    """(holder, kind): who holds which of the kinds; at random, but each kind has as many holders as any other."""
    holds = torch.zeros(holders, kinds, dtype=torch.bool)
    holders_of = np.zeros(kinds)
    for own in holds:
        chosen = np.lexsort((rng.random(kinds), holders_of))[:each]  # the rarest, ties at random
        holders_of[chosen] += 1
        own[torch.from_numpy(chosen)] = True
    return holds


def drawn_alone(holders: int, kinds: int, each: int, rng: np.random.Generator) -> Tensor:
    """(holder, kind): who holds which of the kinds, each at random by itself; some kind may have no holder."""
    chosen = torch.from_numpy(rng.random((holders, kinds)).argsort(1)[:, :each].copy())
    return torch.zeros(holders, kinds, dtype=torch.bool).scatter_(1, chosen, True)


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
