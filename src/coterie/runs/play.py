"""A run from its first round to its end, in its folder if it has one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from coterie import toml
from coterie.data.federation import Description
from coterie.errors import require
from coterie.protocol.coordinator import Coordinator
from coterie.runs.folder import RunFolder
from coterie.runs.lock import locked
from coterie.runs.recorder import Every, Recorder, Watch
from coterie.runs.result import Run
from coterie.validation import fits


def play(
    coordinator: Coordinator,
    about: Description,
    *,
    experiment: str,
    data: str = "",
    out: Path | str | None = None,
    resume: bool = False,
    evaluate_every: Every = "auto",
    checkpoint_every: int = 10,
    watch: Watch | None = None,
    models: bool = True,
) -> Run:
    """Play all rounds. With `out` the run is kept in that folder, with `experiment`, the TOML that describes it.

    `resume` goes on with what lies there, if `data`, a fingerprint of the clients' data, is what it was. Without
    `models` the folder keeps the run's numbers alone.
    """
    store = None if out is None else RunFolder(Path(out), models)
    if store is not None:
        store.data = data
    recorder = Recorder(coordinator, about, store, evaluate_every, checkpoint_every)
    with ExitStack() as held:
        if store is not None and (store.folder.is_dir() or not resume):
            coordinator.clients.group.once(lambda: held.enter_context(locked(store.folder)))
        recorder.open(experiment, resume)
        recorder.play_all(watch)
        return recorder.finish()


def check(
    seed: int, dtype: torch.dtype, evaluate_every: Every, checkpoint_every: int, compile: object
) -> None:
    """Refuse settings that no run could have."""
    require(fits(seed, int) and 0 <= seed < 2**63, "seed", seed, "a whole number from 0")
    require(dtype in (torch.float32, torch.float64), "dtype", dtype, "torch.float32 or torch.float64")
    if evaluate_every != "auto":
        known = fits(evaluate_every, int) and evaluate_every >= 0
        require(known, "evaluate_every", evaluate_every, "a whole number from 0 or 'auto'")
    require(compile == "auto" or isinstance(compile, bool), "compile", compile, "'auto', true or false")
    require(checkpoint_every >= 1, "checkpoint_every", checkpoint_every, "1 or more")


def described(coordinator: Coordinator, points: int, fingerprint: str) -> str:
    """What a run from Python can say of itself as TOML; its model and data are known there alone."""
    return toml.write(
        {
            "made": "in Python, by coterie.run",
            "seed": coordinator.seed,
            "clients": len(coordinator),
            "points": points,
            "numbers_in_a_row": coordinator.model.rows.width,
            "dtype": str(coordinator.model.dtype),
            "data": fingerprint,
            "stages": [repr(stage) for stage in coordinator.stages],
        }
    )
