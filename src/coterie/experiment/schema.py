"""Tables of settings, checked against the functions and dataclasses that take them.

Names, types and defaults are read off the signature, so that no setting is spelled twice.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_type_hints

from coterie.errors import CoterieError, SettingError
from coterie.validation import NONE, TOO_LARGE, describe, nearest, too_large

Table = dict[str, Any]
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Setting:
    """The type and the default of one setting."""

    hint: Any
    default: Any = REQUIRED


def parameters(make: Callable[..., Any]) -> dict[str, Setting]:
    """What a function or dataclass takes, by name."""
    hints = get_type_hints(make, include_extras=True)
    found = {
        name: Setting(hints.get(name, Any), parameter.default)
        for name, parameter in inspect.signature(make).parameters.items()
    }
    for own in fields(make) if is_dataclass(make) else ():
        if own.default_factory is not MISSING:
            found[own.name] = replace(found[own.name], default=own.default_factory())
    return found


@dataclass(frozen=True)
class Section:
    """A table of settings, each of which may have its full name from a table further out."""

    prefix: str
    values: Table = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, key: str) -> str:
        return self.names.get(key, f"{self.prefix}.{key}" if self.prefix else key)

    def over(self, prefix: str, table: Table, replacing: Iterable[str] = ()) -> Section:
        """This one with the values of `table` in front, and without those that they replace."""
        values = {key: value for key, value in self.values.items() if key not in replacing}
        names = {**self.names, **{key: f"{prefix}.{key}" for key in table}}
        return Section(prefix if table else self.prefix, {**values, **table}, names)

    def without(self, *keys: str) -> Section:
        return replace(self, values={k: v for k, v in self.values.items() if k not in keys})


def check(section: Section, known: Mapping[str, Setting], also: Sequence[str] = ()) -> Section:
    """The section with every value of the right type and every default filled in.

    `also` are keys that were read before and are only mentioned here.
    """
    for key in section.values:
        if key not in known:
            names = [*also, *known]
            close = nearest(key, names)
            raise CoterieError(
                f"{section.name(key)} is not a known key{close}; allowed is {', '.join(names) or 'nothing'}"
            )
    return replace(section, values={key: _value(section, key, one) for key, one in known.items()})


def _value(section: Section, key: str, setting: Setting) -> Any:
    name, allowed = section.name(key), describe(setting.hint)
    if key not in section.values:
        if setting.default is REQUIRED:
            raise CoterieError(f"{name} is missing; needed is {allowed}")
        return setting.default
    value = section.values[key]
    if value == NONE and _may_be_none(setting.hint):
        return None
    try:
        found = _adapter(setting.hint).validate_python(_frozen(value))
    except ValueError as problem:  # as pydantic's ValidationError is
        raise CoterieError(f"{name} is {value!r}; allowed is {allowed}") from problem
    if too_large(value):
        raise CoterieError(f"{name} {TOO_LARGE}")
    return found


@cache
def _adapter(hint: Any) -> Any:
    """Strict: "3" is no number, nor is true; a whole number will do where a number is wanted."""
    from pydantic import ConfigDict, TypeAdapter  # here, so that names are chosen and listed without it

    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def _frozen(value: Any) -> Any:
    """TOML's lists as tuples, which strict checks take for both."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _may_be_none(hint: Any) -> bool:
    return types.NoneType in get_args(hint)


def choose(section: Section, key: str, known: Iterable[str]) -> str:
    """One of the known names, however its letters are written."""
    names = list(known)
    if key not in section.values:
        raise CoterieError(f"{section.name(key)} is missing; allowed is {', '.join(names)}")
    value = section.values[key]
    by_lower = {name.lower(): name for name in names}
    if not isinstance(value, str) or value.lower() not in by_lower:
        close = nearest(value, names) if isinstance(value, str) else ""
        raise CoterieError(f"{section.name(key)} is {value!r}{close}; allowed is {', '.join(names)}")
    return by_lower[value.lower()]


def spell(values: Mapping[str, Any], known: Mapping[str, Setting]) -> Table:
    """Values as a table that gives the same again: None is left out where that is the default."""
    return {
        key: NONE if value is None else value
        for key, value in values.items()
        if value is not None or known[key].default is not None
    }


@contextmanager
def saying(section: Section) -> Iterator[None]:
    """What is wrong inside is said with the full name of the setting, or at least of the section."""
    try:
        yield
    except SettingError as problem:
        raise CoterieError(f"{section.name(problem.setting)} {problem.says}") from problem
    except CoterieError as problem:
        if str(problem).startswith(f"{section.prefix}: "):  # it was said further in
            raise
        raise CoterieError(f"{section.prefix}: {problem}") from problem
