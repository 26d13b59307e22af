"""What users call arrays (numpy, tensors, lists) as arrays and tensors of a few known kinds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import CoterieError

Array = npt.NDArray[Any]


class Pairs(NamedTuple):
    """Some points of one client: inputs, and targets that are not yet labels or numbers."""

    x: Tensor  # (point, ...)
    y: Array  # (point, ...)


class Client(NamedTuple):
    id: str
    train: Pairs
    test: Pairs | None  # None: not given, so some training points may be held out


def pairs(x: object, y: object, where: str, tokens: bool = False) -> Pairs:
    """Inputs and targets of the same points; `where` names them in errors."""
    inputs, targets = _inputs(x, f"{where}: x", tokens), _targets(y, f"{where}: y")
    if len(inputs) != len(targets):
        raise CoterieError(
            f"{where}: x has {len(inputs)} points and y has {len(targets)}; both must have one row for each point"
        )
    if tokens and targets.shape != inputs.shape:
        raise CoterieError(
            f"{where}: x has the shape {tuple(inputs.shape)} and y has {targets.shape}; "
            "next-character needs (point, time) for both"
        )
    _check_finite(inputs.numpy(), where, "an input")
    _check_finite(targets, where, "the target")
    return Pairs(inputs, targets)


def _check_finite(array: Array, where: str, what: str) -> None:
    """Here and not only in Federation, since a point's number changes when others are held out."""
    bad = ~np.isfinite(array) if array.dtype.kind == "f" else np.full(array.shape, False)
    if bad.any():
        point = int(np.argwhere(bad)[0][0])
        raise CoterieError(
            f"{where}, point {point}: {what} is not a finite number; NaN and infinity are not allowed"
        )


def _inputs(given: object, where: str, tokens: bool) -> Tensor:
    array = _array(given, where)
    if array.dtype.kind not in "fiub":
        raise CoterieError(f"{where} holds {_kind(array)}; only numbers are allowed")
    if array.ndim == 1:
        array = array[:, None]  # one number per point
    if tokens:
        if array.dtype.kind not in "iu" or (array < 0).any():
            raise CoterieError(
                f"{where} has other inputs than characters; next-character needs whole numbers from 0"
            )
        return torch.from_numpy(array.astype(np.int64))
    if array.dtype.kind in "iu" and not (array > np.iinfo(np.int64).max).any():
        return torch.from_numpy(array.astype(_signed(array.dtype)))
    return torch.from_numpy(floats(array))


def _targets(given: object, where: str) -> Array:
    array = _array(given, where)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "fiubU":
        raise CoterieError(f"{where} holds {_kind(array)}; only numbers or words are allowed")
    return array if array.dtype.kind != "f" else floats(array)


def _signed(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Integers as narrow as they were given, but for uint8, which is kept for images (`Pixels`)."""
    return np.dtype(np.int64) if kind == np.uint64 else np.promote_types(kind, np.int16)


def floats(array: Array) -> Array:
    """A copy in float32, or in float64 where the data is."""
    with np.errstate(over="ignore"):  # of wider floats: what does not fit is infinite, and refused as that
        return array.astype(
            np.float64 if array.dtype.kind == "f" and array.dtype.itemsize >= 8 else np.float32
        )


def _array(given: object, where: str) -> Array:
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise CoterieError(f"{where} is not an array; its rows must all have the same shape") from error
    if array.ndim == 0:
        raise CoterieError(
            f"{where} is a {type(given).__name__}; an array with one row for each point is needed"
        )
    if isinstance(given, list | tuple) and array.dtype == np.float64:
        return array.astype(np.float32)  # Python's numbers have no precision that the user chose
    return array


def _kind(array: Array) -> str:
    return "Python objects" if array.dtype.kind == "O" else f"values of type {array.dtype}"
