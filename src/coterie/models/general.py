"""Models for any data: linear, fully connected, convolutional."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from coterie.errors import CoterieError, require


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Module:
    """Linear or, with a cross-entropy loss, logistic regression."""
    require_counts(inputs=inputs, outputs=outputs)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias))


def mlp(inputs: int, outputs: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected layers with ReLU between them; `hidden = [200]` is k-FED's for personalisation."""
    require_counts(inputs=inputs, outputs=outputs)
    require_widths("hidden", hidden)
    return nn.Sequential(nn.Flatten(), *dense([inputs, *hidden, outputs]))


def cnn(
    image: Sequence[int], outputs: int, channels: Sequence[int] = (32, 64), hidden: Sequence[int] = ()
) -> nn.Module:
    """Two 5x5 convolutions, each halving the (channel, height, width) image, then fully connected layers."""
    require_counts(outputs=outputs)
    require_widths("channels", channels)
    require_widths("hidden", hidden)
    require(len(channels) == 2, "channels", channels, "two whole numbers, one for each convolution")
    depth, height, width = require_image(image, 4)
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(depth, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *dense([second * (height // 4) * (width // 4), *hidden, outputs]),
    )


def dense(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers from width to width, with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


# checks


def require_image(shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """(channel, height, width), each side long enough for the model."""
    if len(shape) != 3 or min(shape[1:]) < least:
        allowed = f"(channel, height, width) of {least}x{least} pixels or more"
        raise CoterieError(f"the shape of an input is {tuple(shape)}; allowed is {allowed}")
    depth, height, width = shape
    return depth, height, width


def require_counts(**counts: object) -> None:
    for name, value in counts.items():
        require(_is_count(value), name, value, "a whole number from 1")


def require_widths(name: str, widths: object) -> None:
    right = isinstance(widths, list | tuple) and all(_is_count(w) for w in widths)
    require(right, name, widths, "a list of whole numbers from 1")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
