"""Work on a GPU recorded once, as a CUDA graph, and replayed without a word from the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def record(work: Callable[[], T], device: torch.device) -> tuple[Callable[[], None], T]:
    """How to do it again, and what it returned, whose numbers are those of the last time.

    A graph keeps addresses only: whoever replays it must keep what lies there. The work is done once before it is
    recorded, so that what is made at its first time is not in the graph.
    """
    here = torch.cuda.current_stream(device)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(here)
    with torch.cuda.stream(side):
        work()
    here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()
    return graph.replay, made


class Recorded(Generic[T]):
    """A function of one tensor that asks nothing of the host."""

    def __init__(self, work: Callable[[Tensor], T], example: Tensor):
        self.given = example.clone()
        self._work = work  # and what it has in its hands
        self._replay, self._made = record(lambda: work(self.given), example.device)

    def __call__(self, given: Tensor) -> T:
        """What it makes of this, up to the next call."""
        self.given.copy_(given)
        self._replay()
        return self._made
