"""Memory that is free goes back to the system."""

from __future__ import annotations

import ctypes
import sys

THRESHOLD = 8 * 2**20  # bytes
KEPT = 64 * 2**20  # bytes
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def give_back() -> None:
    """Blocks from 8 MiB are taken from the system one by one, and given back when they are freed (glibc only).

    A round computes chunk after chunk in blocks of this size. Left to itself glibc keeps them in its heap, where what
    lives longer comes to lie between them, and the process may take half as much again as it needs. This holds for the
    whole process, so the command line asks for it, and a program of your own may. Of smaller blocks the heap keeps 64
    MiB at its end; it would give back all but 128 KiB, and every next block would begin with pages to be had anew.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, THRESHOLD)
            mallopt(_M_TRIM_THRESHOLD, KEPT)
