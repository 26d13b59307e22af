"""Several sources as one: CIFAR-10 with MNIST, or with Fashion-MNIST (FedSPD, B.2.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.data.sources.source import Source
from coterie.errors import CoterieError, require

Labels = Literal["shared", "offset"]
_CHUNK = 4096  # images resized at once


def joined(sources: Sequence[Source], labels: Labels = "shared") -> Source:
    """One source, whose images have the largest shape among them and whose owners are the data sets.

    Smaller images are stretched, between pixels by straight lines, and one channel is repeated. Channels are
    normalised as in the first source that has as many.
    """
    name = "+".join(source.name for source in sources)
    require(labels in ("shared", "offset"), "labels", labels, "'shared' or 'offset'")
    require(len({s.name for s in sources}) == len(sources), "source", name, "each data set once")
    for source in sources:
        if source.x_train.ndim != 4 or source.x_train.dtype != sources[0].x_train.dtype:
            raise CoterieError(
                f"{source.name} cannot be joined in {name}; allowed are images, all of pixels 0 to 255"
            )
    shape = [max(source.x_train.shape[axis] for source in sources) for axis in (1, 2, 3)]
    counts = [source.n_classes for source in sources]
    starts = [sum(counts[:i]) if labels == "offset" else 0 for i in range(len(sources))]
    words = [c for source in sources for c in (source.classes or map(str, range(source.n_classes)))]
    alike = len({source.classes for source in sources}) == 1
    return Source(
        name,
        torch.cat([fitted(source.x_train, shape) for source in sources]),
        torch.cat([source.y_train + start for source, start in zip(sources, starts, strict=True)]),
        torch.cat([fitted(source.x_test, shape) for source in sources]),
        torch.cat([source.y_test + start for source, start in zip(sources, starts, strict=True)]),
        n_classes=sum(counts) if labels == "offset" else max(counts),
        classes=tuple(words) if labels == "offset" else sources[0].classes if alike else (),
        owner_train=_which([len(source.x_train) for source in sources]),
        owner_test=_which([len(source.x_test) for source in sources]),
        owners=tuple(source.name for source in sources),
        normalise=next(source.normalise for source in sources if source.x_train.shape[1] == shape[0]),
    )


def _which(sizes: Sequence[int]) -> Tensor:
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def fitted(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images (image, channel, height, width) in a larger shape."""
    channels, height, width = shape
    if list(images.shape[1:]) == list(shape):
        return images
    allowed = f"1 channel or {channels}, as the others have"
    require(images.shape[1] in (1, channels), "source", f"of {images.shape[1]} channels", allowed)
    out = images.new_empty((len(images), *shape))
    for begin in range(0, len(images), _CHUNK):
        some = images[begin : begin + _CHUNK]
        larger = F.interpolate(some.float(), size=(height, width), mode="bilinear", align_corners=False)
        out[begin : begin + _CHUNK] = larger if images.is_floating_point() else larger.round()
    return out
