"""What the fields of a message mean. Algorithms declare it; checks, privacy, accounting and metrics read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.protocol.message import Fields

Role = Literal["model", "update", "choice", "importance", "mass", "size", "number", "sketch", "key"]

LARGEST = 10**9  # points that a client can have, or claim to have


@dataclass(frozen=True)
class Field:
    """One field of one client's message."""

    role: Role
    shape: tuple[str, ...] | None = ()  # its axes: "cluster", "width"; None: any
    echo: bool = False  # the client sends back what it was offered, so it says nothing new
    optional: bool = False  # may be missing
    finite: bool = True  # must every number be finite?

    def echoed(self) -> Field:
        return replace(self, echo=True)


Declared = Mapping[str, Field]

MODEL = Field("model", ("width",))  # the parameters and buffers of a model, as a row
MODELS = Field("model", ("cluster", "width"))  # one for each cluster
UPDATE = Field("update", ("width",))  # a row minus the one that was offered
CHOICE = Field("choice")  # the number of a cluster
IMPORTANCE = Field("importance", ("cluster",))  # how much of each cluster the client has, u in the papers
MASS = Field("mass", ("cluster",))  # importance times size
SIZE = Field("size")  # how many training points
NUMBER = Field("number")  # a loss, say
SKETCH = Field("sketch", None)  # a row or few sums of its columns, in half precision
KEY = Field("key")  # whose it is, or which: 64 bits

ROWS = ("model", "update")  # roles that are as wide as a model


def refusal(fields: Fields, declared: Declared, sizes: Mapping[str, int], dtype: torch.dtype) -> str | None:
    """Why one message (without the message axis) is not what was declared; None if it is.

    `sizes` are those of the axes, and `dtype` is that of the run's models.
    """
    for name in fields:
        if name not in declared:
            return f"it has a field {name!r}; allowed is {', '.join(declared) or 'no field'}"
    for name, field in declared.items():
        if name not in fields:
            if field.optional:
                continue
            return f"its field {name!r} is missing"
        why = _wrong(fields[name], field, sizes, dtype)
        if why is not None:
            return f"its field {name!r} {why}"
    return None


def _wrong(value: Tensor, field: Field, sizes: Mapping[str, int], dtype: torch.dtype) -> str | None:
    if field.shape is not None:
        shape = tuple(sizes[axis] for axis in field.shape)
        if tuple(value.shape) != shape:
            return f"has the shape {tuple(value.shape)} where {shape} is needed"
    whole = field.role in ("choice", "size", "key")
    wanted = torch.int64 if whole else torch.float16 if field.role == "sketch" else dtype
    score = field.role == "number" and value.dtype in (torch.float32, torch.float64)  # some are more exact
    if value.dtype != wanted and not score:
        return f"is of type {_name(value.dtype)} where {_name(wanted)} is needed"
    if field.finite and not bool(value.isfinite().all()):
        return "has a number that is not finite"
    return _out_of_range(value, field.role, sizes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _out_of_range(value: Tensor, role: Role, sizes: Mapping[str, int]) -> str | None:
    ranges: dict[Role, tuple[float, float]] = {
        "choice": (0, sizes["cluster"] - 1),
        "importance": (0, 1 + 1e-6),  # sums of rounded fractions
        "mass": (0, LARGEST),
        "size": (1, LARGEST),
    }
    if role not in ranges or not value.numel():
        return None
    least, most = ranges[role]
    low, high = value.min().item(), value.max().item()
    if low < least or high > most:
        return f"is {low if low < least else high:g}, outside {least:g} to {most:g}"
    return None
