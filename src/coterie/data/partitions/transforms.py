"""Ways to make several distributions out of one set of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.errors import require

_CHUNK = 4096  # images turned at once
Value = TypeVar("Value")


@dataclass(frozen=True)
class Pool:
    """The images of one side (training or test) under every distribution; none is kept twice.

    Some distributions show the same images in another way, others divide the images into parts.
    """

    x: Tensor  # (row, ...) the store
    at: tuple[Tensor, ...]  # by distribution: (image,) the row that shows the image
    y: tuple[Tensor, ...]  # by distribution: (image, ...) what is to be predicted
    part: Tensor  # (image,) the part that the image is in; -1: it is in none
    parts: tuple[int, ...]  # by distribution: the part that it draws from

    @staticmethod
    def of(x: Tensor, y: Tensor) -> Pool:
        """One distribution: the images as they are."""
        return Pool(x, (torch.arange(len(x)),), (y,), torch.zeros(len(x), dtype=torch.long), (0,))

    def stock(self, part: int) -> Tensor:
        """The images of a part."""
        return (self.part == part).nonzero().flatten()

    def divide(self, part: Tensor, n: int) -> Pool:
        """Every distribution becomes n, each with the images of one part."""
        both = torch.where((part < 0) | (self.part < 0), -1, self.part * n + part)
        parts = tuple(old * n + new for old in self.parts for new in range(n))
        return Pool(self.x, _each(self.at, n), _each(self.y, n), both, parts)

    def label(self, names: Sequence[Callable[[Tensor], Tensor]]) -> Pool:
        """Every distribution becomes several, each with its own names for the same images."""
        y = tuple(name(old) for old in self.y for name in names)
        return replace(self, at=_each(self.at, len(names)), y=y, parts=_each(self.parts, len(names)))

    def turn(self, angles: Sequence[float]) -> Pool:
        """Every distribution becomes several, each with the images turned by one angle."""
        store = self.x.new_empty((len(angles), *self.x.shape))
        for turned, angle in zip(store, angles, strict=True):
            turn(self.x, angle, turned)
        at = tuple(old + k * len(self.x) for old in self.at for k in range(len(angles)))
        return replace(
            self,
            x=store.flatten(0, 1),
            at=at,
            y=_each(self.y, len(angles)),
            parts=_each(self.parts, len(angles)),
        )


def _each(values: tuple[Value, ...], n: int) -> tuple[Value, ...]:
    return tuple(value for value in values for _ in range(n))


def relabel(labels: Tensor, distribution: int, shift: int = 4, classes: int = 10) -> Tensor:
    """Distribution s calls an image of class y by the name of class y + s * shift."""
    return (labels + distribution * shift) % classes


def turn(images: Tensor, degrees: float, out: Tensor | None = None) -> Tensor:
    """Images (..., height, width) turned counterclockwise about their middle; what comes in from outside is 0."""
    require(images.ndim >= 2, "distributions", "rotate", "'rotate' for images (..., height, width) only")
    height, width = images.shape[-2:]
    out = torch.empty_like(images) if out is None else out
    quarters, rest = divmod(degrees, 90)
    if rest == 0:
        square = height == width or quarters % 2 == 0
        require(square, "angle", degrees, f"180 for images of {height}x{width} pixels, which are not square")
        return out.copy_(torch.rot90(images, int(quarters) % 4, (-2, -1)))
    flat, into = images.reshape(-1, 1, height, width), out.view(-1, 1, height, width)
    for begin in range(0, len(flat), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        into[some] = _interpolated(flat[some], degrees)
    return out


def _interpolated(images: Tensor, degrees: float) -> Tensor:
    """(image, 1, height, width) at any angle, between the pixels by straight lines."""
    height, width = images.shape[-2:]
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float32))
    cos, sin = angle.cos(), angle.sin()
    # where in the old image (x, y from -1 to 1) a pixel of the new one lies; y points down
    theta = torch.stack([cos, -sin * height / width, 0 * cos, sin * width / height, cos, 0 * cos]).reshape(
        1, 2, 3
    )
    grid = F.affine_grid(theta.expand(len(images), -1, -1), list(images.shape), align_corners=False)
    turned = F.grid_sample(images.float(), grid, align_corners=False)
    return turned if images.is_floating_point() else turned.round().clamp(0, 255).to(images.dtype)


def cases(classes: Sequence[str]) -> tuple[list[int], list[int], list[str]]:
    """For every class, its letter (-1: none) and its case (0 upper, 1 lower); and the letters that have both."""
    both = sorted({c for c in classes if len(c) == 1 and c.isupper() and c.lower() in classes})
    upper = [c.upper() if len(c) == 1 else "" for c in classes]
    letter = [both.index(c) if c in both else -1 for c in upper]
    return letter, [int(c.islower()) for c in classes], both


def oracle(train: Tensor, test: Tensor, clusters: int, seed: int) -> tuple[Tensor, Tensor]:
    """The cluster of every image by k-means on the pooled training images (k-FED, section 4.2.1)."""
    from sklearn.cluster import MiniBatchKMeans  # here, since importing it takes a second

    require(clusters <= len(train), "clusters", clusters, f"at most the {len(train)} training images")
    means = MiniBatchKMeans(clusters, batch_size=4096, n_init=3, random_state=seed)
    found = means.fit_predict(features(train).numpy())
    rest = means.predict(features(test).numpy()) if len(test) else found[:0]
    return torch.from_numpy(found).long(), torch.from_numpy(rest).long()


def features(x: Tensor) -> Tensor:
    """Numbers to cluster by: pixels, or, of a text, how often it has each character."""
    if x.dtype != torch.int64:
        return x.flatten(1).float() / (255 if x.dtype == torch.uint8 else 1)
    return torch.stack([(x == token).float().mean(1) for token in range(int(x.max()) + 1)], 1)
