"""Few long rows: what clusters them needs their distances alone."""

from __future__ import annotations

import torch
from torch import Tensor


def same_distances(rows: Tensor) -> Tensor:
    """(row, row) coordinates with the distances of rows (row, width), by their inner products; short rows as they are.

    Two hundred models of 60,000 numbers become 200 x 200, on which k-means takes a hundredth of the time.
    """
    if rows.shape[1] <= rows.shape[0]:
        return rows
    centered = rows - rows.mean(0)
    values, vectors = torch.linalg.eigh(centered @ centered.T)
    found: Tensor = vectors * values.clamp(min=0).sqrt()
    return found
