"""Shakespeare's plays by speaking role: from a file of speeches, and speeches from the text of a play."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coterie.data.sources.layout import Wanted
from coterie.data.sources.source import Source
from coterie.data.sources.text import by_role
from coterie.errors import CoterieError

FILE = "shakespeare_roles.jsonl.gz"
_DIRECTION = re.compile(r"\[[^\[\]]{0,600}\]")
_HEADING = re.compile(
    r"(?i)(act|scene|the end|finis|dramatis|persons|exit|exeunt|enter|re-enter|by william|[ivxl]+)\b.*"
)
_SPEAKER = re.compile(r"([A-Z][A-Za-z0-9 ,'&-]{0,40})\.|([A-Z][A-Z0-9 ,'&-]{1,40})")


@dataclass(frozen=True)
class Roles:
    """One speech a line, {"play": ..., "role": ..., "text": ...}; a client is a role of a play."""

    names: tuple[str, ...] = (FILE, FILE.removesuffix(".gz"))

    def wanted(self, folder: Path) -> list[Wanted]:
        return [tuple(folder / name for name in self.names)]

    def read(self, files: list[Path]) -> Source:
        texts: dict[str, list[str]] = {}
        for number, line in enumerate(_lines(files[0]), 1):
            try:
                speech = json.loads(line)
                texts.setdefault(f"{speech['play']}/{speech['role']}", []).append(str(speech["text"]))
            except (ValueError, TypeError, KeyError) as problem:
                raise CoterieError(
                    f"{files[0]}, line {number}: this is no speech; needed is an object with play, role and text"
                ) from problem
        return by_role({role: "\n".join(said) for role, said in texts.items()})


def _lines(path: Path) -> Iterator[str]:
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as file
        ):
            yield from file
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as problem:
        found = path.stat().st_size
        raise CoterieError(f"{path} ({found} bytes) is not a whole file of speeches ({problem})") from problem


def speeches(play: str) -> list[tuple[str, str]]:
    """(role, what is said), in order, of a play where a speaker stands alone on the line before the speech.

    Stage directions in brackets are left out, and so is a speaker who is named but once.
    """
    said: list[tuple[str, list[str]]] = []
    for part in re.split(r"\n\s*\n", _DIRECTION.sub("", play)):
        lines = [line.strip() for line in part.splitlines() if line.strip()]
        if not lines or _HEADING.fullmatch(lines[0]):
            continue
        speaker = _SPEAKER.fullmatch(lines[0])
        if speaker and len(lines) > 1:
            said.append(((speaker[1] or speaker[2]).upper(), lines[1:]))
        elif said:
            said[-1][1].extend(lines)  # the speech goes on after a pause
    times = Counter(role for role, _ in said)
    return [(role, "\n".join(lines)) for role, lines in said if times[role] > 1]
