"""Settings that are of the type they say, in Python as in a file."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from coterie.errors import SettingError

LARGEST = 1e30  # of a number that rows are multiplied by: float32 does not reach much further


class Checked:
    """A dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if too_large(value):
                raise SettingError(field.name, TOO_LARGE)
            if not fits(value, hints[field.name]):
                raise SettingError(field.name, f"is {value!r}; allowed is {describe(hints[field.name])}")


TOO_LARGE = "is beyond what a machine counts to; allowed are whole numbers below 2^63"


def too_large(value: Any) -> bool:
    """Is it, or has it, a whole number that no tensor could hold?"""
    if isinstance(value, list | tuple):
        return any(map(too_large, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def fits(value: Any, hint: Any) -> bool:
    """Is this a value of that type? Whole numbers are numbers; true and false are not."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in inner and type(value) in {type(one) for one in inner}
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, one) for one in inner)
    if origin in (tuple, Sequence):
        return isinstance(value, list | tuple) and all(fits(v, inner[0]) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


_LIMITS = {"ge": "from", "le": "to", "lt": "below"}
NONE = "none"  # how None is written in TOML, which has no word for it


def describe(hint: Any) -> str:
    """What is allowed, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [(word, getattr(m, sign, None)) for m in inner[1].metadata for sign, word in _LIMITS.items()]
        return describe(inner[0]) + "".join(f" {word} {n}" for word, n in limits if n is not None)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner)) if len(inner) > 1 else repr(inner[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(describe(one) for one in inner)
    if origin in (tuple, Sequence) and inner:
        many = origin is Sequence or Ellipsis in inner
        each = re.sub(r"\b(number|table|list)\b", r"\1s", describe(inner[0]).removeprefix("a "))
        return f"a list of {each}" if many else f"a list of {len(inner)} {each}"
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
    words = {types.NoneType: repr(NONE), dict: "a table"}
    if hint is Any:
        return "any value"
    return plain.get(hint) or words.get(origin or hint) or f"a {getattr(hint, '__name__', 'value')}"


def nearest(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), {k.lower(): k for k in known}, 1, cutoff=0.5)
    return f", the nearest is {next(k for k in known if k.lower() == close[0])!r}" if close else ""
