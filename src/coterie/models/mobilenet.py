"""MobileNet-v2 (Sandler et al., CVPR 2018), which FedSPD B.2.7 trains on CIFAR."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from coterie.errors import require
from coterie.models.general import require_counts, require_image

# Table 2 of that paper: expansion t, channels c, repeats n, stride s of the first
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
SMALL = 64  # pixels: below this the first two strides are 1
LAST = 1280


class Bottleneck(nn.Module):
    """Widen, filter each channel by itself, narrow without ReLU; added to the input where shapes agree."""

    def __init__(self, before: int, after: int, stride: int, expansion: int):
        super().__init__()
        wide = before * expansion
        widen = _unit(before, wide, 1) if expansion > 1 else []
        self.layers = nn.Sequential(
            *widen,
            *_unit(wide, wide, 3, stride, groups=wide),
            *(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


class Average(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def mobilenet_v2(image: Sequence[int], outputs: int, width: float = 1.0, dropout: float = 0.2) -> nn.Module:
    """MobileNet-v2, Table 2 of its paper; `width` multiplies the channels.

    Choice: FedSPD does not say how 32x32 pixels went in. For images below 64 pixels the strides of the first
    convolution and of the first stage of 24 channels are 1 instead of 2, so that CIFAR ends at 4x4 pixels, not 1x1.
    """
    require_counts(outputs=outputs)
    depth, height, broad = require_image(image, 8)
    require(width > 0, "width", width, "a number above 0")
    require(0 <= dropout < 1, "dropout", dropout, "a number from 0 and below 1")
    small = min(height, broad) < SMALL
    channels = _rounded(32 * width)
    layers: list[nn.Module] = [*_unit(depth, channels, 3, 1 if small else 2)]
    for expansion, planes, n, stride in BLOCKS:
        after = _rounded(planes * width)
        first = 1 if small and planes == 24 else stride
        for i in range(n):
            layers.append(Bottleneck(channels, after, first if i == 0 else 1, expansion))
            channels = after
    last = _rounded(LAST * max(1.0, width))
    head = [*_unit(channels, last, 1), Average(), nn.Dropout(dropout), nn.Linear(last, outputs)]
    return nn.Sequential(*layers, *head)


def _unit(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU6()]


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, never below 90 % of what was asked for, as the authors' program has it."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
