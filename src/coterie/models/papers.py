"""The convolutional models of FedSoft, WeCFL and FedSPD, layer by layer as the papers have them.

What a paper leaves open is a `Choice`; where the authors' program departs from the paper, `Differs` says how.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from coterie.errors import require
from coterie.models.general import dense, require_counts, require_image


def fedsoft_letters(image: Sequence[int], outputs: int, published: bool = False) -> nn.Module:
    """FedSoft, appendix C, letters: two 5x5 convolutions, each followed by max-pooling, and one hidden layer of 512.

    1.67 million parameters for 26 letters of 28x28 pixels.
    Choice: ReLU after the convolutions and 32 and 64 channels, which the paper does not name.
    Differs: with `published` there is no ReLU after the convolutions, and a softmax before the cross-entropy.
    """
    require_counts(outputs=outputs)
    depth, height, width = require_image(image, 4)
    active = [] if published else [nn.ReLU()]
    return nn.Sequential(
        *(nn.Conv2d(depth, 32, 5, padding=2), *active, nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), *active, nn.MaxPool2d(2)),
        *(nn.Flatten(), *dense([64 * (height // 4) * (width // 4), 512, outputs])),
        *([nn.Softmax(1)] if published else []),
    )


def fedsoft_cifar(image: Sequence[int], outputs: int) -> nn.Module:
    """FedSoft, CIFAR-10: six convolutions of 32, 64, 128, 128, 256, 256 channels, pooled by twos; 1024, 512.

    No batch norm. Choice: 3x3 kernels with padding 1, which the paper does not name.
    """
    require_counts(outputs=outputs)
    depth, height, width = require_image(image, 8)
    layers: list[nn.Module] = []
    for before, middle, after in ((depth, 32, 64), (64, 128, 128), (128, 256, 256)):
        layers += [nn.Conv2d(before, middle, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(middle, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    flat = 256 * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), *dense([flat, 1024, 512, outputs]))


def wecfl_fashion(image: Sequence[int], outputs: int) -> nn.Module:
    """WeCFL, Table 3, Fashion-MNIST: two 5x5 convolutions with batch norm, ReLU and pooling, and one linear layer.

    Differs: the table prints BatchNorm2d(16) after the second convolution, which has 32 channels; 32 it must be.
    """
    require_counts(outputs=outputs)
    depth, height, width = require_image(image, 4)
    return nn.Sequential(
        *(nn.Conv2d(depth, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), outputs)),
    )


def lenet(image: Sequence[int], outputs: int) -> nn.Module:
    """WeCFL, Table 4, CIFAR-10: 5x5 convolutions of 6 and 16 channels without padding; 120, 84."""
    require_counts(outputs=outputs)
    depth, height, width = require_image(image, 16)
    flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        *(nn.Conv2d(depth, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), *dense([flat, 120, 84, outputs])),
    )


def fedspd_mnist(image: Sequence[int], outputs: int, dropout: float = 0.5) -> nn.Module:
    """FedSPD, B.1.1, MNIST and EMNIST: two 5x5 convolutions with padding 2, each pooled; a layer of 50 with dropout.

    Choice: 10 and 20 channels, as the authors' program has; the share of dropout.
    """
    require_counts(outputs=outputs)
    _require_share("dropout", dropout)
    depth, height, width = require_image(image, 4)
    return nn.Sequential(
        *(nn.Conv2d(depth, 10, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(10, 20, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(20 * (height // 4) * (width // 4), 50), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(50, outputs),
    )


def fedspd_cifar(
    image: Sequence[int], outputs: int, dropout: float = 0.5, channel_dropout: float = 0.25
) -> nn.Module:
    """FedSPD, B.1.2, CIFAR: convolutions 128, 128 (5x5) and 256, 256 (3x3), then layers of 1024 and 512.

    Batch norm after every one of these, pooling and dropout after each pair of convolutions, dropout after the
    fully connected ones. Choice: the channels, the shares of dropout, which takes whole channels after convolutions,
    and batch norm before ReLU, all as the authors' program has them.
    """
    require_counts(outputs=outputs)
    _require_share("dropout", dropout)
    _require_share("channel_dropout", channel_dropout)
    depth, height, width = require_image(image, 4)
    layers: list[nn.Module] = []
    for before, after, kernel in ((depth, 128, 5), (128, 256, 3)):
        for channels in (before, after):
            layers += [
                nn.Conv2d(channels, after, kernel, padding=kernel // 2),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        layers += [nn.MaxPool2d(2), nn.Dropout2d(channel_dropout)]
    layers.append(nn.Flatten())
    for wide, narrow in ((256 * (height // 4) * (width // 4), 1024), (1024, 512)):
        layers += [nn.Linear(wide, narrow), nn.BatchNorm1d(narrow), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(512, outputs))


def _require_share(name: str, dropout: object) -> None:
    right = isinstance(dropout, int | float) and not isinstance(dropout, bool) and 0 <= dropout < 1
    require(right, name, dropout, "a number from 0 and below 1")
