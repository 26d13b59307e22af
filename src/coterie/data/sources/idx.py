"""The idx files of MNIST and its kin, as torchvision lays them out."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.data.sources.layout import Wanted
from coterie.data.sources.source import Source
from coterie.errors import CoterieError

_UNSIGNED_BYTES = 8  # the third byte of the magic number; the fourth counts the axes


@dataclass(frozen=True)
class Idx:
    """Four files, gzipped or not: images and labels, to train on (`train`) and to test on (`test`)."""

    folder: str
    train: str = "train"
    test: str = "t10k"
    transposed: bool = False  # EMNIST has rows and columns swapped
    first: int = 0  # the number of the first class in the files

    def wanted(self, folder: Path) -> list[Wanted]:
        names = [
            f"{side}-{kind}-ubyte"
            for side in (self.train, self.test)
            for kind in ("images-idx3", "labels-idx1")
        ]
        here = folder / self.folder
        return [(here / name, here / f"{name}.gz") for name in names]

    def read(self, files: list[Path]) -> Source:
        x_train, x_test = self._images(files[0]), self._images(files[2])
        y_train, y_test = self._labels(files[1], files[0], x_train), self._labels(files[3], files[2], x_test)
        return Source("", x_train, y_train, x_test, y_test, 0)

    def _images(self, path: Path) -> Tensor:
        images = read_idx(path, axes=3)[:, None]
        return images.mT.contiguous() if self.transposed else images

    def _labels(self, path: Path, of: Path, images: Tensor) -> Tensor:
        labels = read_idx(path, axes=1)
        if len(labels) != len(images):
            raise CoterieError(
                f"{path} has {len(labels)} labels and {of} has {len(images)} images; there must be as many"
            )
        return labels.long() - self.first


def read_idx(path: Path, axes: int) -> Tensor:
    """An array of bytes with so many axes."""
    data = _bytes(path)
    magic, expected = data[:4].hex(), bytes([0, 0, _UNSIGNED_BYTES, axes]).hex()
    if magic != expected:
        raise CoterieError(
            f"{path} begins with {magic or 'nothing'}; an idx file of {axes} axes begins with {expected}"
        )
    begin = 4 + 4 * axes
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    size = begin + int(np.prod(shape, dtype=np.int64))
    if len(data) != size:
        raise CoterieError(f"{path} holds {len(data)} bytes; {size} are expected by its own header")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=begin).reshape(shape).copy())


def _bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (OSError, EOFError, zlib.error) as problem:
        found = path.stat().st_size
        raise CoterieError(
            f"{path} ({found} bytes) is not a whole gzip file ({problem}); get it again"
        ) from problem
