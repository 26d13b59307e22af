"""Images kept as uint8: what they are to a model, made on the device and only for the points at hand."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.prng import mix, uniform

Normalise = tuple[tuple[float, ...], tuple[float, ...]]  # of each channel: mean, standard deviation

MARGIN = 4  # pixels that a varied image may be moved by, as is usual for CIFAR


class Pixels:
    """Pixels as numbers from 0 to 1, less each channel's mean and over its deviation; other inputs as they are."""

    def __init__(
        self, normalise: Normalise | None, device: torch.device, dtype: torch.dtype, augment: bool = False
    ):
        self.dtype, self.augment = dtype, augment
        mean, deviation = normalise or ((0.0,), (1.0,))
        self.normalises = normalise is not None
        self.mean = torch.tensor(mean, device=device, dtype=dtype).view(-1, 1, 1)
        self.deviation = torch.tensor(deviation, device=device, dtype=dtype).view(-1, 1, 1)

    def read(self, x: Tensor) -> Tensor:
        """(..., channel, height, width) as a model takes it."""
        if x.dtype != torch.uint8:
            return x.to(self.dtype) if x.is_floating_point() else x
        return self.normalised(x.to(self.dtype) / 255)

    def normalised(self, x: Tensor) -> Tensor:
        """The same of pixels that are numbers from 0 to 1 already."""
        return (x - self.mean) / self.deviation if self.normalises else x

    def vary(self, x: Tensor, key: Tensor) -> Tensor:
        """Batches (client, batch, channel, height, width) moved and mirrored by the keys (client,) of their step.

        As padding by reflection, cropping at random and flipping at random do; without `augment` as they are.
        """
        if not self.augment:
            return x
        clients, batch, channels, height, width = x.shape
        each = mix(key[:, None], "augment", torch.arange(batch, device=x.device)).flatten()
        row = _reflected(height, _moved(each, "down"))
        column = _reflected(width, _moved(each, "across"))
        mirrored = uniform(mix(each, "mirror")) < 0.5
        column = torch.where(mirrored[:, None], column.flip(1), column)
        image = torch.arange(len(each), device=x.device)[:, None, None, None]
        channel = torch.arange(channels, device=x.device)[:, None, None]
        varied = x.flatten(0, 1)[image, channel, row[:, None, :, None], column[:, None, None, :]]
        return varied.view(clients, batch, channels, height, width)


def _moved(each: Tensor, way: str) -> Tensor:
    """(image,) by how much, from -MARGIN to MARGIN."""
    return (uniform(mix(each, way)) * (2 * MARGIN + 1)).long() - MARGIN


def _reflected(length: int, by: Tensor) -> Tensor:
    """(image, length) the pixels that are seen where the picture is continued by its mirror image."""
    place = (torch.arange(length, device=by.device) + by[:, None]).abs()
    return (length - 1) - ((length - 1) - place).abs()
