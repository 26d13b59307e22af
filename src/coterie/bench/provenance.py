"""Where numbers come from."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

import coterie


def provenance() -> dict[str, str]:
    """Command, commit, date, machine, versions. A copy without its repository names its commit in COTERIE_COMMIT."""
    commit = os.environ.get("COTERIE_COMMIT") or _git("rev-parse", "--short", "HEAD")
    changed = "COTERIE_COMMIT" not in os.environ and bool(_git("status", "--porcelain", "."))
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    words = [Path(word).name if word.startswith("/") else re.sub("=/.*", "=PATH", word) for word in sys.argv]
    starts = {"coterie": ["coterie"], "__main__.py": ["coterie"]}  # however it was started
    return {
        "command": shlex.join([*starts.get(words[0], ["python", words[0]]), *words[1:]]),
        "commit": commit + (" with changes" if changed else ""),
        "date": str(date.today()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}{gpu}",
        "versions": f"coterie {coterie.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }


def _git(*words: str) -> str:
    """Asked of the folder that coterie is in; nothing where it is not a repository that has it."""
    here = Path(coterie.__file__).parent
    known = subprocess.run(
        ["git", "ls-files", "--error-unmatch", "__init__.py"], cwd=here, capture_output=True
    )
    if known.returncode:
        return ""
    return subprocess.run(
        ["git", *words], cwd=here, capture_output=True, text=True, check=False
    ).stdout.strip()
