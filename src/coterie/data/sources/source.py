"""A data set before it is partitioned among clients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.data.images import Normalise


@dataclass(frozen=True)
class Source:
    """A data set before it is partitioned among clients."""

    name: str
    # (image, channel, height, width) uint8, or (sequence, time) int64 tokens, or (point, feature) float32
    x_train: Tensor
    y_train: Tensor  # (image,) int64 labels, or (sequence, time) next characters
    x_test: Tensor
    y_test: Tensor
    n_classes: int
    classes: tuple[str, ...] = ()  # words of the labels
    owner_train: Tensor | None = None  # (image,) natural client of each (writer, role), where there is one
    owner_test: Tensor | None = None
    owners: tuple[str, ...] = ()  # their ids
    normalise: Normalise | None = None  # channel mean, std used when fed to a model
