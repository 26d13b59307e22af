"""A mask of all clients, known as one: to ask a GPU whether a mask has all of them, the host must wait for it.

Nobody writes to these tensors, so a tensor that is one of them is all of them.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=16)
def mask(n: int, device: torch.device) -> Tensor:
    """(client,) True for each."""
    return torch.ones(n, dtype=torch.bool, device=device)


@lru_cache(maxsize=16)
def positions(n: int, device: torch.device) -> Tensor:
    """(client,) 0, 1, 2, ..."""
    return torch.arange(n, device=device)


def is_mask(wanted: Tensor) -> bool:
    """Is it known of this mask that it has everyone? A mask of everyone need not be known as one."""
    return wanted is mask(len(wanted), wanted.device)


def are_positions(clients: Tensor, n: int) -> bool:
    """Is it known of these positions that they are those of all n clients, in their order?"""
    return clients is positions(n, clients.device)


def both(one: Tensor, other: Tensor) -> Tensor:
    """(client,) bool: who is in both masks."""
    return one if is_mask(other) else other if is_mask(one) else one & other
