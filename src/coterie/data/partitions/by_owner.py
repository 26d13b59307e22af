"""Images given to those who made them: writers, or roles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.data.partitions.distributions import Distributions
from coterie.data.partitions.mixtures import components, counts
from coterie.data.partitions.settings import Partition
from coterie.data.partitions.sizes import Side, mixture_of
from coterie.data.sources.source import Source
from coterie.errors import SettingError, require
from coterie.prng import numpy_generator


def by_owner(
    settings: Partition,
    source: Source,
    distributions: Distributions,
    rngs: Sequence[np.random.Generator],
    seed: int,
) -> tuple[tuple[str, ...], list[Side]]:
    """Every client is a writer or a role that has images on both sides."""
    owners = [source.owner_train, source.owner_test][: 1 if settings.test_points == 0 else 2]
    if not source.owners or any(owner is None for owner in owners):
        raise SettingError(
            "by_owner", f"is True; allowed is that for a source with owners, not {source.name}"
        )
    have = [owner.bincount(minlength=len(source.owners)) for owner in owners if owner is not None]
    full = (torch.stack(have) > 0).all(0).nonzero().flatten()
    clients = len(full) if settings.clients is None else settings.clients
    known = f"1 to {len(full)}, the owners with images to train on and to be tested on"
    require(1 <= clients <= len(full), "clients", clients, known)
    chosen = np.sort(numpy_generator(seed, "owners").choice(full.numpy(), clients, replace=False))
    held = _owned(settings, [each[torch.from_numpy(chosen)] for each in have])
    mixture = mixture_of(settings, distributions, clients, seed)
    sides = []
    for pool, owner, sizes, rng in zip(
        (distributions.train, distributions.test), owners, held, rngs, strict=False
    ):
        assert owner is not None
        sizes_of_all = owner.bincount(minlength=len(source.owners)).tolist()
        order = torch.split(owner.argsort(stable=True), sizes_of_all)
        cell = torch.arange(clients).repeat_interleave(sizes)
        component, offset = components(counts(mixture, sizes), rng)
        sides.append(Side(pool, cell, component, offset, [order[k] for k in chosen]))
    return tuple(source.owners[k] for k in chosen), sides


def _owned(settings: Partition, have: Sequence[Tensor]) -> list[Tensor]:
    """(client,) points of each side: all of the owner's, or at most so many."""
    most = settings.train_points
    require(not isinstance(most, tuple), "train_points", most, "the most points of an owner, one number")
    train = have[0] if not isinstance(most, int) else have[0].clamp(max=most)
    if len(have) == 1:
        return [train]
    if settings.test_points is not None:
        return [train, have[1].clamp(max=settings.test_points)]
    return [train, (have[1] * (train / have[0])).ceil().long()]
