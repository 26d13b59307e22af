"""Images given with no regard to their class: every client has its mixture of the distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.data.partitions import assign
from coterie.data.partitions.distributions import Distributions
from coterie.data.partitions.mixtures import components, counts
from coterie.data.partitions.settings import Partition
from coterie.data.partitions.sizes import Side, mixture_of, sizes_of, weight_of


def by_mixture(
    settings: Partition,
    distributions: Distributions,
    clients: int,
    rngs: Sequence[np.random.Generator],
    seed: int,
) -> list[Side]:
    """As many points as asked for, or as there are, in every client's mixture."""
    mixture, weight = mixture_of(settings, distributions, clients, seed), weight_of(settings, clients, seed)
    ratio = len(distributions.test.part) / len(distributions.train.part)
    sides = []
    for pool, sizes, rng in zip(
        (distributions.train, distributions.test), sizes_of(settings, weight, ratio, seed), rngs, strict=False
    ):
        parts = torch.tensor(pool.parts)
        stocks = [pool.stock(part) for part in range(int(parts.max()) + 1)]
        stock = torch.tensor([len(s) for s in stocks])
        if settings.mixture == "iid":
            whole = _iid(settings, mixture, weight, sizes, parts, stock, rng)
        elif sizes is not None:
            whole = counts(mixture, sizes)
        elif settings.mixture == "structured":
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
    settings: Partition,
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
    fits = settings.draw == "once" and total <= len(
        every
    )  # if not, that is refused when images are looked for
    component = torch.from_numpy(rng.permutation(every)[:total] if fits else rng.choice(every, total))
    owner = torch.arange(len(sizes)).repeat_interleave(sizes)
    return (owner * len(parts) + component).bincount(minlength=mixture.numel()).view_as(mixture)
