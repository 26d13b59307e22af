"""The statistical criteria of benchmarks/right.py on two tuning seeds; its committed results have more."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

RIGHT = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "right.py"))


@pytest.mark.slow
@pytest.mark.parametrize("part", RIGHT["PARTS"])
def test_the_criteria_hold_on_two_seeds(part: str) -> None:
    play, _ = RIGHT["PARTS"][part]
    runs = [{"seed": seed, **result} for seed in (0, 1) for result in play(seed)]
    verdicts = RIGHT["verdicts"](part, runs)
    assert verdicts
    assert not [line for line in verdicts if line.startswith("NOT")]
