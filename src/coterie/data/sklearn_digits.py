"""The digits that come with scikit-learn, as a source."""

from __future__ import annotations

import torch

from coterie.data.source import Source

_TRAIN = 1347  # images to train on, the first of 1797


def digits_source() -> Source:
    """Images of 8x8 pixels; scikit-learn's 17 shades are spread over 0 to 255."""
    from sklearn.datasets import load_digits  # here, since importing it takes a second

    found = load_digits()
    x = torch.from_numpy((found.images * (255 / 16)).round()).to(torch.uint8)[:, None]
    y = torch.from_numpy(found.target).long()
    return Source("digits", x[:_TRAIN], y[:_TRAIN], x[_TRAIN:], y[_TRAIN:], 10, tuple("0123456789"))
