"""Handwritten digits of 8x8 pixels, which come with scikit-learn."""

from __future__ import annotations

import torch

from coterie.data.sources.source import Source
from coterie.prng import numpy_generator

_TRAIN_SHARE = 0.75


def read(seed: int = 0) -> Source:
    """1797 images (1, 8, 8) of numbers in [0, 1]; which are to train on and which to test on is drawn."""
    from sklearn.datasets import load_digits  # here, since importing it takes a second

    found = load_digits()
    x, y = torch.from_numpy(found.images[:, None] / 16).float(), torch.from_numpy(found.target).long()
    order = torch.from_numpy(numpy_generator(seed, "sides").permutation(len(x)))
    cut = int(_TRAIN_SHARE * len(x))
    train, test = order[:cut], order[cut:]
    return Source("digits", x[train], y[train], x[test], y[test], n_classes=10)
