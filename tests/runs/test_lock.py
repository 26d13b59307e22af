"""One writer: a second process is told who holds the folder; a kill frees it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coterie import CoterieError
from coterie.runs.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from coterie.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(CoterieError, match=rf"is being written by process {other.pid}; wait until"),
            locked(tmp_path),
        ):
            pass
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_process_may_lock_what_it_has_locked(tmp_path: Path) -> None:
    with locked(tmp_path), locked(tmp_path):
        pass
    with locked(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
