"""How much memory the machine has, and a sentence, before the work, about what could not fit."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from coterie.errors import CoterieError

UNKNOWN = 8 * 2**30  # bytes, where the system does not say


@cache
def machine() -> int:
    """Bytes of this machine, or of the container that we are in."""
    if not hasattr(os, "sysconf"):
        return UNKNOWN
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    return min(there, int(text)) if text.isdigit() else there


def require_memory(needed: int, what: str) -> None:
    """Refuse what takes more than there is; `needed` is what it takes at the least."""
    if needed > machine():
        raise CoterieError(
            f"{what} would take {in_words(needed)} of memory or more, and this machine has {in_words(machine())}"
        )


def in_words(size: int) -> str:
    """Bytes, as people say them."""
    if size >= 2**60:
        return "more than a million TiB"
    unit, name = (2**40, "TiB") if size >= 2**40 else (2**30, "GiB") if size >= 2**27 else (2**20, "MiB")
    return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
