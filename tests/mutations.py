"""Damage of every kind, drawn from a seed: odd values in a table, odd bytes in a file."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODD: list[Any] = [
    -1,
    0,
    1,
    2,
    3,
    7,
    2**40,
    2**63 - 1,
    2**63,
    10**30,
    -(10**30),
    0.0,
    0.5,
    -0.5,
    1.0,
    1e-300,
    1e300,
    float("nan"),
    float("inf"),
    "",
    " ",
    "none",
    "auto",
    "x" * 5000,
    "é\u2028\U0001f600",
    "../..",
    "a\nb",
    True,
    False,
    [],
    [0],
    [1, 2],
    [2, 1],
    [-1, 10**30],
    [[1]],
    ["a"],
    {},
    {"name": "FedAvg"},
    {"": 0},
]


def places(table: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The keys of everything in a table, however deep."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    return [found for key, value in inner for found in ((*path, key), *places(value, (*path, key)))]


def odd_table(draw: random.Random, table: dict[str, Any], known: list[tuple[str, ...]]) -> dict[str, Any]:
    """The table with one to three values gone, replaced or added; `known` are settings that it might have."""
    table = copy.deepcopy(table)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        *path, last = draw.choice(places(table) + known) if table else draw.choice(known)
        here: Any = table
        try:
            for key in path:
                here = here[key]
            if draw.random() < 0.15:
                del here[last]
            else:
                here[last] = copy.deepcopy(draw.choice(ODD))
        except (KeyError, IndexError, TypeError):  # the change before took this place away
            continue
    return table


def odd_text(draw: random.Random, text: str) -> bytes:
    """The text with something put in, taken out or said twice."""
    raw, at = text.encode(), draw.randrange(len(text.encode()) + 1)
    end = min(len(raw), at + draw.choice((1, 3, 20)))
    return draw.choice(
        (
            raw[:at],
            raw[:at] + raw[end:],
            raw[:at] + raw[at:end] * 2 + raw[end:],
            raw[:at] + bytes([draw.randrange(256)]) + raw[end:],
            raw[:at] + b"\xff\xfe" + raw[at:],
            raw[:at] + b"\0" + raw[at:],
            raw[:at] + "\u202e'\"\\".encode() + raw[at:],
            b"\xef\xbb\xbf" + raw,
            raw.replace(b"\n", b"\r\n"),
            raw + b"x = " + b"9" * draw.choice((30, 5000)) + b"\n",
            raw + b"x = " + b"[" * 3000 + b"]" * 3000 + b"\n",
            raw.replace(b"= 2\n", b"= " + b"9" * 5000 + b"\n"),
        )
    )


def damage(draw: random.Random, path: Path) -> str:
    """A file of a folder is no longer what it was; says how."""
    ways: dict[str, Callable[[], object]] = {
        "gone": path.unlink,
        "empty": lambda: path.write_bytes(b""),
        "cut short": lambda: path.write_bytes(raw[: draw.randrange(len(raw) + 1)]),
        "one byte": lambda: path.write_bytes(
            raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]
        ),
        "noise": lambda: path.write_bytes(draw.randbytes(draw.choice((1, 8, 100, 5000)))),
        "zeros": lambda: path.write_bytes(bytes(len(raw))),
        "twice": lambda: path.write_bytes(raw * 2),
        "not UTF-8": lambda: path.write_bytes(raw[:at] + b"\xff\xfe\xfa" + raw[at:]),
        "list": lambda: path.write_bytes(b"[]"),
        "null": lambda: path.write_bytes(b"null"),
        "number": lambda: path.write_bytes(b"9" * draw.choice((1, 30, 5000))),
        "brackets": lambda: path.write_bytes(b"[" * 3000 + b"]" * 3000),
        "braces": lambda: path.write_bytes(b"{}"),
        "a digit": lambda: path.write_bytes(_other_digit(draw, raw)),
        "another length": lambda: path.write_bytes((2**40).to_bytes(8, "little") + raw[8:]),
        "a folder": lambda: (path.unlink(), path.mkdir()),
        "a dangling link": lambda: (path.unlink(), path.symlink_to(path.with_name("nowhere"))),
        "a key gone": lambda: path.write_bytes(_without_a_key(draw, raw)),
        "a value gone": lambda: path.write_bytes(_with_null(draw, raw)),
    }
    raw = path.read_bytes() or b"\0"
    at = draw.randrange(len(raw))
    how = draw.choice(list(ways))
    ways[how]()
    return how


def _other_digit(draw: random.Random, raw: bytes) -> bytes:
    digits = [i for i, byte in enumerate(raw) if chr(byte).isdigit() and byte < 128]
    if not digits:
        return raw[::-1]
    at = draw.choice(digits)
    return raw[:at] + draw.choice((b"-1", b"7", b"1e400", b"99999999999999999999")) + raw[at + 1 :]


def _without_a_key(draw: random.Random, raw: bytes) -> bytes:
    lines = raw.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    return b"".join(lines[:at] + lines[at + 1 :])


def _with_null(draw: random.Random, raw: bytes) -> bytes:
    lines = raw.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    head, colon, _ = lines[at].partition(b":")
    lines[at] = (
        head + b": " + draw.choice((b"null", b"[]", b'"x"', b"{}", b"-1")) + b",\n" if colon else b"\n"
    )
    return b"".join(lines)


def copied(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))
