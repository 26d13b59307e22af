"""Work on a GPU recorded once, as a CUDA graph, and replayed without the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def record(work: Callable[[], T], device: torch.device, pool: Any = None) -> tuple[Callable[[], None], T]:
    """How to do it again, and what it returned, whose numbers are those of the last time.

    `pool` is torch's handle of memory that recordings may share, if none is replayed while another is at work.
    A graph keeps addresses only: whoever replays it must keep what lies there. The work is done once before it is
    recorded, so that what is made at its first time is not in the graph.
    """
    with torch.cuda.device(device):
        here = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            work()
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            made = work()
        return graph.replay, made


class Recorded(Generic[T]):
    """A function of one tensor that asks nothing of the host; on a GPU it is recorded when it is called again.

    Not at the first call, for recording takes much longer than most work, and there need not be a second one.
    """

    def __init__(self, work: Callable[[Tensor], T]):
        self._work = work  # and what it has in its hands
        self._calls = 0
        # where it finds what it is given, how it is done again, and what it makes
        self._recording: tuple[Tensor, Callable[[], None], T] | None = None

    def __call__(self, given: Tensor) -> T:
        """What it makes of this, up to the next call."""
        self._calls += 1
        if self._calls == 1 or not can_record(given.device):
            return self._work(given)
        if self._recording is None:
            place = given.clone()
            self._recording = (place, *record(lambda: self._work(place), given.device))
        place, replay, made = self._recording
        place.copy_(given)
        replay()
        return made


def can_record(device: torch.device) -> bool:
    return device.type == "cuda"
