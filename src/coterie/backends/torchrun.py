"""Was this process started by torchrun, beside others? Its environment says so, before torch is imported."""

from __future__ import annotations

import os


def launched() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """The one that writes and speaks; known before the processes have met."""
    return not launched() or os.environ["RANK"] == "0"
