"""Ways to make several distributions out of one set of images."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.errors import require


def relabel(labels: Tensor, distribution: int, shift: int = 4, classes: int = 10) -> Tensor:
    """Distribution s calls an image of class y by the name of class y + s * shift."""
    return (labels + distribution * shift) % classes


def rotate(images: Tensor, distribution: int) -> Tensor:
    """Distribution s turns images (..., height, width) counterclockwise by s * 90 degrees."""
    require(0 <= distribution <= 3, "distribution", distribution, "0 to 3, for 0, 90, 180 and 270 degrees")
    return torch.rot90(images, distribution, (-2, -1))
