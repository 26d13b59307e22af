"""Randomness as a function of its purpose, never of position.

Every random number is a hash of (seed, stage, round, purpose, client, ...), so a run comes out the same in
any chunk size, in any order of clients, and whether clients are computed together or each in its own process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from coterie.errors import require

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB
_ALL = (1 << 64) - 1


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)  # torch's >> keeps the sign


def _scramble(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014); int64 products wrap around.

    In place where it can be: new memory for each of many numbers would take longer than the sums.
    """
    x = _shift(x, 30).bitwise_xor_(x).mul_(_MIX1)
    x = _shift(x, 27).bitwise_xor_(x).mul_(_MIX2)
    return _shift(x, 31).bitwise_xor_(x)


def _scrambled(x: int) -> int:
    """The same of one number."""
    x &= _ALL
    x = (x ^ x >> 30) * _MIX1 & _ALL
    x = (x ^ x >> 27) * _MIX2 & _ALL
    return x ^ x >> 31


def _signed(x: int) -> int:
    return (x & _ALL) - (1 << 64 if x >> 63 & 1 else 0)


def word_key(word: str) -> int:
    """A word (a client's id, a purpose) as a signed 64-bit number, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little", signed=True)


def id_keys(ids: Iterable[str]) -> Tensor:
    return torch.tensor([word_key(i) for i in ids], dtype=torch.int64)


def mix(*parts: Tensor | int | str) -> Tensor:
    """One 64-bit key out of several; tensors broadcast."""
    number, key = 0, None  # numbers are mixed as such up to the first tensor, which spares many small tensors
    for part in parts:
        part = word_key(part) if isinstance(part, str) else part
        if key is not None:
            key = _scramble(key + _GOLDEN ^ part)
        elif isinstance(part, int):
            number = _scrambled(number + _GOLDEN ^ part)
        else:
            key = _scramble(_signed(number + _GOLDEN) ^ part)
    return torch.tensor(_signed(number)) if key is None else key


def uniform(key: Tensor) -> Tensor:
    """Keys as numbers in (0, 1), float64."""
    return (_shift(key, 11).to(torch.float64) + 0.5) * 2.0**-53


def gumbel(key: Tensor) -> Tensor:
    return -torch.log(-torch.log(uniform(key)))


def gaussian(key: Tensor) -> Tensor:
    """Keys as numbers of a standard normal distribution (Box and Muller 1958), float64."""
    radius = torch.sqrt(-2 * torch.log(uniform(mix(key, "radius"))))
    return radius * torch.cos(2 * torch.pi * uniform(mix(key, "angle")))


def numpy_generator(seed: int, *purpose: str) -> np.random.Generator:
    """For making data: one generator per purpose, so that drawing more for one does not move the others."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    require(whole and seed >= 0, "seed", seed, "a whole number from 0")
    return np.random.default_rng(np.random.SeedSequence([int(seed), *(word_key(p) % 2**64 for p in purpose)]))
