"""Ctrl-C, or SIGTERM, between rounds and not within one."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Self

from coterie import ctrl_c
from coterie.backends.processes import ProcessGroup
from coterie.errors import Lost

log = logging.getLogger("coterie")


class WholeRounds:
    """Ctrl-C waits for the end of the round, since half a round cannot be saved; a second one does not wait.

    SIGTERM, by which a machine that shuts down or a scheduler ends a process, does the same.

    Of several processes all stop after the same round. Torchrun ends the others when one of them is gone: no round
    can be brought to its end then.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.asked, self.group = False, group
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        self._mine = (
            threading.current_thread() is threading.main_thread()  # others may not take signals
            # a shell has what it runs in the background ignore Ctrl-C; SIGTERM still comes
            and self._before[signal.SIGINT] in (signal.default_int_handler, ctrl_c.stop, signal.SIG_IGN)
        )
        if self._mine:
            if self._before[signal.SIGINT] is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, self._ask)
            signal.signal(signal.SIGTERM, self._ask if self.group.size == 1 else self._end)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine:
            for number, before in self._before.items():
                signal.signal(number, before)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("stopping when this round is done; once more (Ctrl-C, SIGTERM) stops at once")

    def _end(self, *_: object) -> None:
        raise Lost("another process of this run is gone, or the run was ended from outside")

    def asked_anywhere(self) -> bool:
        return any(self.group.all(lambda: self.asked))
