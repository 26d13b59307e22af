"""Local problems to be solved together, and their solutions."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Problems:
    """Problems to be solved, problem axis first. A client may have several, one a slot and one behind the other."""

    owner: Tensor  # (problem,) the position of the client
    lane: Tensor  # (problem,) the column of `exists` and `weight` that is meant
    key: Tensor  # (problem,) what its randomness hangs on
    start: Tensor  # (problem, width)
    exists: Tensor | None = None  # (point, lane) bool
    weight: Tensor | None = None  # (point, lane)
    anchor: Tensor | None = None  # (problem, width)
    pull: Tensor | None = None  # (problem,)
    normalise: bool = True  # are the weights taken relative to their mean, or as they are?
    kept: dict[str, Tensor] = field(default_factory=dict)  # the optimizer's memory, empty: a fresh one
    lanes: int = 1  # problems a client
    of_all: bool = False  # are there so many for every client of the points, in their order?

    def take(self, at: Tensor) -> Problems:
        def some(value: Tensor) -> Tensor:
            return value.index_select(0, at)  # of wide rows many times faster than value[at]

        return Problems(
            some(self.owner),
            some(self.lane),
            some(self.key),
            some(self.start),
            self.exists,
            self.weight,
            None if self.anchor is None else some(self.anchor),
            None if self.pull is None else some(self.pull),
            self.normalise,
            {name: some(value) for name, value in self.kept.items()},
            self.lanes,
        )

    @property
    def like_last_time(self) -> bool:
        """Is all that batches are drawn from, but for keys, known from the points alone?"""
        return self.of_all and self.exists is None and self.weight is None


@dataclass
class Solution:
    rows: Tensor  # (problem, width)
    loss: (
        Tensor  # (problem,) mean training loss over the steps; nan where there were none, inf if it diverged
    )
    kept: dict[str, Tensor]
