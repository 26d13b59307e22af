"""Data sets of Hugging Face's `datasets`, whole or partitioned by `flwr-datasets`, as sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.data.own.arrays import Array
from coterie.data.sources.source import Source
from coterie.errors import CoterieError, require
from coterie.prng import numpy_generator

Data = Any  # a datasets.Dataset: it need not be installed for anything else
_INPUTS = ("image", "img", "x")
_WHOLE = ""  # the name of what is not parted
_TARGETS = ("label", "labels", "fine_label", "character", "y")


def from_datasets(
    train: Data,
    test: Data | None = None,
    *,
    inputs: str | None = None,
    target: str | None = None,
    test_fraction: float = 0.2,
    name: str = "datasets",
    seed: int = 0,
) -> Source:
    """A source from a Dataset, a DatasetDict, or partitions (a list, a dict by client, a flwr-datasets Partitioner).

    Partitions are the owners of their points. Without `test`, `test_fraction` of the points, of each partition where
    there are any, are held out. Images are kept as uint8, lists of numbers as float32.
    """
    require(0 < test_fraction < 1, "test_fraction", test_fraction, "a number between 0 and 1")
    if type(train).__name__ == "DatasetDict":
        if "train" not in train:
            raise CoterieError(
                f"the DatasetDict has the splits {', '.join(train)}; one called train is needed"
            )
        train, test = train["train"], train.get("test") if test is None else test
    parts = _parts(train)
    held = None if test is None else _parts(test)
    owners = sorted((parts.keys() | (held or {}).keys()) - {_WHOLE})
    if held is not None and (_WHOLE in held) != (_WHOLE in parts):
        raise CoterieError(
            "train and test are not alike; both must be one Dataset, or both partitions by client"
        )
    columns = _columns(next(iter(parts.values())), inputs, target)
    number = {owner: i for i, owner in enumerate(owners)}
    sides = [_side(given, columns, number) for given in (parts, held) if given is not None]
    _check_shapes([side[0] for side in sides])
    x, y, owner = sides[0]
    if held is None:
        out = _held_out(owner, owners, test_fraction, seed)
        sides = [(x[~out], y[~out], owner[~out]), (x[out], y[out], owner[out])]
    (x, y, owner), (x_test, y_test, owner_test) = sides
    classes = tuple(getattr(next(iter(parts.values())).features[columns[1]], "names", None) or ())
    known = bool(owners)
    return Source(
        *(name, x, y, x_test, y_test),
        n_classes=len(classes) or int(max(y.max(), y_test.max())) + 1,
        classes=classes,
        owner_train=owner if known else None,
        owner_test=owner_test if known else None,
        owners=tuple(owners),
    )


def _parts(given: Any) -> dict[str, Data]:
    """Partitions by client."""
    if hasattr(given, "load_partition"):  # a flwr_datasets Partitioner
        given = [given.load_partition(i) for i in range(given.num_partitions)]
    if hasattr(given, "column_names") and hasattr(given, "features"):
        return {_WHOLE: given}
    if isinstance(given, Mapping):
        parts: dict[str, Data] = {str(key): value for key, value in given.items()}
    elif isinstance(given, Sequence):
        parts = {str(i): value for i, value in enumerate(given)}
    else:
        parts = {}
    if not parts or not all(hasattr(one, "column_names") for one in parts.values()):
        kind = type(given).__name__
        raise CoterieError(
            f"given is a {kind}; allowed is a datasets.Dataset, a list or dict of them, or a Partitioner"
        )
    return parts


def _columns(data: Data, inputs: str | None, target: str | None) -> tuple[str, str]:
    """The columns that are meant, by name or by what they are usually called."""
    found = []
    for role, given, usual in (("inputs", inputs, _INPUTS), ("target", target, _TARGETS)):
        names = [given] if given is not None else usual
        there = [one for one in names if one in data.column_names]
        if not there:
            listed = ", ".join(data.column_names)
            raise CoterieError(f"{role} is {given!r}; allowed is one of the columns {listed}")
        found.append(there[0])
    return found[0], found[1]


def _side(
    parts: dict[str, Data], columns: tuple[str, str], number: dict[str, int]
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = [_inputs(part, columns[0], owner) for owner, part in parts.items()]
    _check_shapes(inputs)
    x = torch.cat(inputs)
    y = torch.cat([_labels(part, columns[1], owner) for owner, part in parts.items()])
    sizes = torch.tensor([len(part) for part in parts.values()])
    at = torch.tensor([number.get(owner, 0) for owner in parts])
    return x, y, torch.repeat_interleave(at, sizes)


def _check_shapes(inputs: Sequence[Tensor]) -> None:
    shapes = sorted({tuple(x.shape[1:]) for x in inputs})
    if len(shapes) > 1:
        raise CoterieError(f"inputs have the shapes {shapes[:3]}; all must have the same")


def _column(part: Data, column: str, owner: str) -> tuple[str, list[Any]]:
    """Where it is, for people, and what is in it."""
    where = "" if owner == _WHOLE else f"partition {owner!r}, "
    if column not in part.column_names:
        listed = ", ".join(part.column_names)
        raise CoterieError(f"{where}column {column!r} is not among {listed}; all parts must have it")
    return where, list(part[column])


def _inputs(part: Data, column: str, owner: str) -> Tensor:
    where, values = _column(part, column, owner)
    rows: list[Array] = [np.asarray(one) for one in values]
    shapes = sorted({row.shape for row in rows})
    if len(shapes) != 1:
        raise CoterieError(
            f"{where}column {column!r}: inputs have the shapes {shapes[:3]}; all must have the same"
        )
    x = np.stack(rows)
    if x.dtype.kind not in "fiub":
        raise CoterieError(
            f"{where}column {column!r} holds values of type {x.dtype}; needed are images or numbers"
        )
    if x.dtype != np.uint8:
        return torch.from_numpy(x.astype(np.float32))
    images = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(images))


def _labels(part: Data, column: str, owner: str) -> Tensor:
    where, values = _column(part, column, owner)
    labels = np.asarray(values)
    if labels.dtype.kind not in "iu":
        raise CoterieError(
            f"{where}column {column!r} holds values of type {labels.dtype}; needed are whole numbers as labels"
        )
    return torch.from_numpy(labels.astype(np.int64))


def _held_out(owner: Tensor, owners: Sequence[str], fraction: float, seed: int) -> Tensor:
    """(point,) bool: drawn for each owner by itself, so that it does not depend on the others."""
    out = torch.zeros(len(owner), dtype=torch.bool)
    for i, name in enumerate(owners or [_WHOLE]):
        own = (owner == i).nonzero()[:, 0]
        order = torch.from_numpy(numpy_generator(seed, "held out", name).permutation(len(own)))
        out[own[order[: round(fraction * len(own))]]] = True
    return out
