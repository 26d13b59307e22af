"""TOML: read with changes from the command line, and written."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError

Table = dict[str, Any]

SEAL = "# as written; checksum "


def load(path: Path) -> Table:
    """The table in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise CoterieError(f"{path} cannot be read ({reason}); allowed is a TOML file") from problem
    return read(text, str(path))


def sealed(text: str) -> str:
    """The same with a checksum in its first line, so that what is cut off at the end is missed."""
    return f"{SEAL}{_checksum(text)}\n{text}"


def unsealed(text: str) -> str:
    """Without the checksum, if there is one."""
    first, _, rest = text.partition("\n")
    return rest if first.startswith(SEAL[0]) else text


def load_kept(path: Path) -> Table:
    """The table in a file of a run's folder, which must be as it was written; older versions wrote no checksum."""
    found = load(path)
    text = path.read_text(encoding="utf-8")
    plain = unsealed(text)
    if plain != text and sealed(plain) != text:
        raise CoterieError(
            f"{path} is damaged: it is not as it was written; put it back, or remove its first line if you changed it"
        )
    return found


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read(text: str, where: str) -> Table:
    try:
        return tomllib.loads(text)
    except RecursionError as problem:
        raise CoterieError(
            f"{where} is not TOML: its lists are nested too deep; allowed is lines such as rounds = 30"
        ) from problem
    except ValueError as problem:  # as TOMLDecodeError is, and what Python says of a number of 5000 digits
        why = str(problem).partition(";")[0]
        raise CoterieError(f"{where} is not TOML: {why}; allowed is lines such as rounds = 30") from problem


def change(table: Table, changes: Iterable[str]) -> None:
    """Apply each `key.key.0.key=value`; whether such a key exists is for others to check."""
    for text in changes:
        name, sign, value = text.partition("=")
        keys = name.strip().split(".")
        if not sign or not all(keys):
            raise CoterieError(f"--set is {text!r}; allowed is key=value, such as algorithm.pull=0.5")
        put(table, keys, value_of(value.strip()))


def put(table: Table, keys: list[str], value: Any) -> None:
    """Set what these keys lead to; those of a list are its numbers."""
    here: Any = table
    for depth, key in enumerate(keys):
        at: Any = key
        if isinstance(here, list):
            if not (key.isdecimal() and int(key) < len(here)):
                name, most = ".".join(keys[: depth + 1]), len(here) - 1
                raise CoterieError(f"--set {name}: there is no {key!r} in this list; allowed is 0 to {most}")
            at = int(key)
        elif not isinstance(here, dict):
            name = ".".join(keys[:depth])
            raise CoterieError(f"--set {'.'.join(keys)}: {name} is {here!r}; allowed is a table or a list")
        if depth == len(keys) - 1:
            here[at] = value
        else:
            here = here.setdefault(at, {}) if isinstance(here, dict) else here[at]


def value_of(text: str) -> Any:
    """A TOML value, or else the text itself."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def write(table: Mapping[str, Any], name: str = "") -> str:
    """The table as TOML: plain values first, then tables, then lists of tables."""
    lines = [f"{_key(k)} = {_inline(v)}" for k, v in table.items() if not _is_table(v) and not _are_tables(v)]
    text = "\n".join(lines) + "\n" if lines else ""
    for key, value in table.items():
        full = f"{name}.{_key(key)}" if name else _key(key)
        if _is_table(value):
            text += f"\n[{full}]\n{write(value, full)}"
        elif _are_tables(value):
            text += "".join(f"\n[[{full}]]\n{write(one, full)}" for one in value)
    return text


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_table, value))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    raise CoterieError(f"{value!r} cannot be kept in TOML; allowed are numbers, texts, true, false and lists")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
