"""Images given with no regard to their class: every client has its mixture of the distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from coterie.data.partition import assign
from coterie.data.partition.distributions import Hidden
from coterie.data.partition.mixtures import components, counts
from coterie.data.partition.sizes import Side, mixture_of, sizes_of, weight_of

if TYPE_CHECKING:
    from coterie.data.partition.settings import Deal


def by_mixture(
    deal: Deal, hidden: Hidden, clients: int, rngs: Sequence[np.random.Generator], seed: int
) -> list[Side]:
    """As many points as asked for, or as there are, in every client's mixture."""
    mixture, weight = mixture_of(deal, hidden, clients, seed), weight_of(deal, clients, seed)
    ratio = len(hidden.test.part) / len(hidden.train.part)
    sides = []
    for pool, sizes, rng in zip(
        (hidden.train, hidden.test), sizes_of(deal, weight, ratio, seed), rngs, strict=False
    ):
        parts = torch.tensor(pool.parts)
        stocks = [pool.stock(part) for part in range(int(parts.max()) + 1)]
        stock = torch.tensor([len(s) for s in stocks])
        if deal.pattern == "iid":
            whole = _iid(deal, mixture, weight, sizes, parts, stock, rng)
        elif sizes is not None:
            whole = counts(mixture, sizes)
        elif deal.pattern == "structured":
            whole = assign.divided((mixture > 0) * weight[:, None], _of_each(parts, stock))
        else:
            whole = assign.filled(mixture, weight, parts, stock)
        component, offset = components(whole, rng)
        sides.append(Side(pool, parts[component], component, offset, stocks))
    return sides


def _of_each(parts: Tensor, stock: Tensor) -> Tensor:
    """(distribution,) images of each, where those of the same part share its stock."""
    sharing = parts == torch.arange(len(stock))[:, None]  # (part, distribution)
    return counts(sharing.double() / sharing.sum(1, keepdim=True), stock).sum(0)


def _iid(
    deal: Deal,
    mixture: Tensor,
    weight: Tensor,
    sizes: Tensor | None,
    parts: Tensor,
    stock: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """(client, distribution): what comes of giving images away with no regard to their distribution."""
    if sizes is None:
        sizes = counts((weight / weight.sum())[None], stock.sum()[None])[0]
    every = torch.arange(len(parts)).repeat_interleave(_of_each(parts, stock)).numpy()
    total = int(sizes.sum())
    fits = deal.draw == "once" and total <= len(every)  # if not, that is refused when images are looked for
    component = torch.from_numpy(rng.permutation(every)[:total] if fits else rng.choice(every, total))
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    return (owner * len(parts) + component).bincount(minlength=mixture.numel()).view_as(mixture)
