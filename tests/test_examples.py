"""Examples that are programs. The tests of examples/ditto are run where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.builders import ROOT


def test_ditto_beside_others(tmp_path: Path) -> None:
    program, source = ROOT / "examples" / "ditto" / "run.py", ROOT / "examples" / "ditto" / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (source, ROOT / "src")))}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["FedAvg", "Local", "Ditto"]
