"""Ctrl-C at the command line, wherever it comes."""

from __future__ import annotations

import os
import signal
from types import FrameType

IMPORTING = "<frozen importlib._bootstrap>"


def stop(number: int, frame: FrameType | None) -> None:
    """A KeyboardInterrupt; but while a library is loaded the process ends at once.

    An exception inside an import may become another one, be swallowed, or end a C++ library's own start.
    """
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            os.write(2, b"coterie: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def done() -> None:
    """All is said: from now on Ctrl-C ends the process, without a word, while Python tidies up."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def take() -> None:
    """For this process, unless it ignores Ctrl-C, as what a shell runs in the background does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
