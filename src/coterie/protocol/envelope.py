"""A message as bytes: a header that says whose it is, of which run and round, and named tensors. No pickle.

Whoever opens one trusts nothing in it: lengths are compared with what is there before anything is read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from coterie.protocol.message import Fields, RoundContext
from coterie.version import __version__

PROTOCOL = 1  # changes when older and newer sides could not understand each other
_NOTE = "coterie"  # the name of our header among safetensors' notes
_LONGEST = 2**20  # bytes of names, shapes and header


class BadMessage(Exception):
    """Why a message is not taken, to follow the words "the message of client X is left out: "."""


@dataclass(frozen=True)
class Header:
    run: str
    client: str  # who sends it, or whom it is for
    question: str
    context: RoundContext
    problem: str = ""  # why there is no answer
    protocol: int = PROTOCOL
    library: str = __version__

    def check(self, expected: Header) -> None:
        """Is this the message that was waited for?"""
        if self.protocol != expected.protocol:
            raise BadMessage(f"it speaks version {self.protocol} of the protocol, not {expected.protocol}")
        for name in ("client", "run", "question", "context"):
            found, wanted = getattr(self, name), getattr(expected, name)
            if found != wanted:
                raise BadMessage(f"its {name} is {_brief(found)}, not {_brief(wanted)}")
        if self.problem:
            raise BadMessage(f"it says: {' '.join(self.problem[:200].split())!a}")


def _brief(value: str | RoundContext) -> str:
    if isinstance(value, RoundContext):
        return f"round {value.of_run} of stage {value.stage} with seed {value.seed}"
    return repr(value[:80])


def seal(header: Header, fields: Fields) -> bytes:
    """The fields are one client's: without the message axis."""
    note = json.dumps(asdict(header))
    apart: dict[str, Tensor] = {}  # safetensors writes no two names of the same memory
    seen: set[int] = set()
    for name, value in fields.items():
        value = value.detach().cpu().contiguous()
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in seen else value
        seen.add(place)
    return bytes(save(apart, {_NOTE: note}))


def opened(data: bytes) -> tuple[Header, Fields]:
    """Raises `BadMessage` for whatever is not a whole message of ours."""
    header = _header(data)
    try:
        return header, load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as problem:
        raise BadMessage(f"its tensors cannot be read ({str(problem)[:120]})") from None


def _header(data: bytes) -> Header:
    if len(data) < 8:
        raise BadMessage(f"it has {len(data)} bytes and no header")
    length = int.from_bytes(data[:8], "little")
    if length > min(_LONGEST, len(data) - 8):
        raise BadMessage(f"it announces a header of {length} bytes and has {len(data) - 8}")
    try:
        table = json.loads(data[8 : 8 + length])
        note = json.loads(table["__metadata__"][_NOTE])
        header = Header(**{**note, "context": RoundContext(**note["context"])})
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadMessage("it has no header of coterie") from None
    texts = (header.run, header.client, header.question, header.problem, header.library)
    numbers = (header.protocol, *asdict(header.context).values())
    if not all(isinstance(one, str) for one in texts) or not all(type(n) is int for n in numbers):
        raise BadMessage("its header has fields of another type")
    _check_lengths(table, len(data) - 8 - length)
    return header


def _check_lengths(table: dict[str, Any], there: int) -> None:
    """Nothing may lie beyond the end of the message."""
    for name, one in table.items():
        if name == "__metadata__":
            continue
        try:
            _, end = one["data_offsets"]
            beyond = type(end) is not int or end > there
        except (TypeError, KeyError, ValueError):
            beyond = True
        if beyond:
            raise BadMessage(
                f"its field {name[:80]!r} is announced to end beyond its {there} bytes of tensors"
            )
