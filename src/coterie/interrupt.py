"""Ctrl-C between rounds and not within one."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Self

log = logging.getLogger("coterie")


class WholeRounds:
    """Ctrl-C waits for the end of the round, since half a round cannot be saved; a second one does not wait."""

    def __init__(self) -> None:
        self.asked, self._before = False, signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        self._mine = (
            threading.current_thread() is threading.main_thread()  # others may not take signals
            and self._before is signal.default_int_handler
        )
        if self._mine:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("stopping when this round is done; press Ctrl-C again to stop at once")

    def stop_if_asked(self) -> None:
        if self.asked:
            raise KeyboardInterrupt
