"""CIFAR's own archives, unpacked: pickles of Python 2, read without running anything that they may hold."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.sources.layout import Wanted
from coterie.data.sources.source import Source
from coterie.errors import CoterieError

log = logging.getLogger("coterie")

# all that an array in a pickle needs; numpy 2 moved its own under another name
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
_MD5 = {  # of the original files, as their authors' archive has them
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Batches:
    """A folder of pickles, each with `data` (image, 3072) and labels under some name."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: str = "labels"

    def wanted(self, folder: Path) -> list[Wanted]:
        return [(folder / self.folder / name,) for name in (*self.train, *self.test)]

    def read(self, files: list[Path]) -> Source:
        cut = len(self.train)
        return Source("", *self._side(files[:cut]), *self._side(files[cut:]), 0)

    def _side(self, files: list[Path]) -> tuple[Tensor, Tensor]:
        parts = [self._batch(file) for file in files]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    def _batch(self, path: Path) -> tuple[Tensor, Tensor]:
        held = _unpickled(path)
        x, y = (held.get("data"), held.get(self.labels)) if isinstance(held, dict) else (None, None)
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != _PIXELS:
            raise CoterieError(f"{path} holds no `data` of bytes (image, {_PIXELS}); it is no batch of CIFAR")
        if not isinstance(y, list) or not all(isinstance(one, int) for one in y) or len(y) != len(x):
            raise CoterieError(
                f"{path} has {len(x)} images; a list `{self.labels}` of as many whole numbers is needed"
            )
        return torch.from_numpy(x.reshape(-1, 3, 32, 32).copy()), torch.tensor(y, dtype=torch.int64)


class _Arrays(pickle.Unpickler):
    """Takes arrays, lists, numbers and texts, and nothing that could run."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR does")
        return super().find_class(module, name)


def _unpickled(path: Path) -> Any:
    held = path.read_bytes()
    md5 = hashlib.md5(held, usedforsecurity=False).hexdigest()
    original = _MD5.get(path.name, "unknown")
    found = f"it has {len(held)} bytes and the MD5 sum {md5}; expected is {original}"
    try:
        batch = _Arrays(io.BytesIO(held), encoding="latin1").load()
    except Exception as problem:  # a broken pickle may raise anything
        raise CoterieError(f"{path} could not be read ({problem}): {found}") from problem
    if md5 != original:
        log.warning("%s is not the original: %s", path, found)
    return batch
