"""The criteria of experiments/right.py and recovery.py on tuning seeds; their committed results have more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "experiments"))
import recovery
import right


@pytest.mark.slow
@pytest.mark.parametrize("part", right.PARTS)
def test_the_criteria_hold_on_two_seeds(part: str) -> None:
    play, _ = right.PARTS[part]
    runs = [{"seed": seed, **result} for seed in (0, 1) for result in play(seed)]
    verdicts = right.verdicts(part, runs)
    assert verdicts
    assert not [line for line in verdicts if line.startswith("NOT")]


@pytest.mark.slow
@pytest.mark.parametrize("case", recovery.CASES)
def test_clusters_are_recovered_on_two_seeds(case: str) -> None:
    assert all(recovery.play(case, seed)["good"] for seed in (0, 1))
