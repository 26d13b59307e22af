"""A data set in one .npz file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.data.npz import read_npz
from coterie.data.own.arrays import Array
from coterie.data.sources.layout import Wanted
from coterie.data.sources.source import Source
from coterie.errors import CoterieError

_SIDES = ("x_train", "y_train", "x_test", "y_test")
_TEST_EVERY = 5  # where there is one set only, every fifth image of a class is for testing


@dataclass(frozen=True)
class Npz:
    """`x_train`, `y_train`, `x_test`, `y_test`; or `x`, `y`, of which a fixed fifth of each class is for testing.

    Images are (image, height, width) or (image, height, width, channel) bytes. The words of the labels may be there as
    `classes` or `fine_names`.
    """

    names: tuple[str, ...]

    def wanted(self, folder: Path) -> list[Wanted]:
        return [tuple(folder / name for name in self.names)]

    def read(self, files: list[Path]) -> Source:
        path = files[0]
        arrays = read_npz(path, "needed is a whole .npz archive of numbers")
        words = next((arrays[key] for key in ("classes", "fine_names") if key in arrays), np.array([]))
        if set(_SIDES) <= arrays.keys():
            train = _side(path, arrays["x_train"], arrays["y_train"], "_train")
            test = _side(path, arrays["x_test"], arrays["y_test"], "_test")
        elif {"x", "y"} <= arrays.keys():
            train, test = _parted(*_side(path, arrays["x"], arrays["y"], ""))
        else:
            raise CoterieError(
                f"{path} has the arrays {', '.join(arrays) or 'none'}; needed are {', '.join(_SIDES)}, or x and y"
            )
        return Source("", *train, *test, 0, tuple(str(word) for word in words))


def _side(path: Path, x: Array, y: Array, side: str) -> tuple[Tensor, Tensor]:
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise CoterieError(
            f"{path}: x{side} has the shape {x.shape} of {x.dtype}; "
            "allowed is uint8 of (image, height, width) or (image, height, width, channel)"
        )
    if y.shape != (len(x),) or y.dtype.kind not in "iu":
        raise CoterieError(
            f"{path}: y{side} has the shape {y.shape} of {y.dtype}; needed are whole numbers for {len(x)} images"
        )
    images = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return torch.from_numpy(images), torch.from_numpy(y.astype(np.int64))


def _parted(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """To train on and to test on: the same images every time."""
    order = y.argsort(stable=True)
    first = torch.searchsorted(y[order], y[order])  # where an image's class begins
    test = torch.zeros(len(y), dtype=torch.bool)
    test[order] = (torch.arange(len(y)) - first) % _TEST_EVERY == _TEST_EVERY - 1
    return (x[~test], y[~test]), (x[test], y[test])
