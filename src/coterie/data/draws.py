"""Random numbers for making data: a function of the seed and of what they are for."""

from __future__ import annotations

import numpy as np

from coterie.errors import require
from coterie.prng import word_key


def generator(seed: int, *purpose: str) -> np.random.Generator:
    """A generator of its own for every purpose, so that drawing more for one does not move the others."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    require(whole and seed >= 0, "seed", seed, "a whole number from 0")
    return np.random.default_rng(np.random.SeedSequence([int(seed), *(word_key(p) % 2**64 for p in purpose)]))
