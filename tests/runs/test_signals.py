"""Signals between rounds."""

from __future__ import annotations

import os
import signal

import pytest

from coterie.backends.processes import ALONE
from coterie.runs.signals import WholeRounds


@pytest.mark.parametrize("ignored", [False, True])
def test_sigterm_waits_for_the_round_even_where_ctrl_c_is_ignored(ignored: bool) -> None:
    """A shell has what it runs in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        with WholeRounds(ALONE) as rounds:
            os.kill(os.getpid(), signal.SIGTERM)
            assert rounds.asked
            assert (signal.getsignal(signal.SIGINT) is signal.SIG_IGN) is ignored
    finally:
        signal.signal(signal.SIGINT, before)
