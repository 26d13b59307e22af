"""Local problems to be solved together, and their solutions."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Problems:
    """Problems to be solved, problem axis first. A client may have several, one behind the other."""

    owner: Tensor  # (problem,) the position of the client
    column: Tensor  # (problem,) its column of `exists` and `weight`
    key: Tensor  # (problem,) the key of its random numbers
    start: Tensor  # (problem, width)
    exists: Tensor | None = None  # (point, column) bool
    weight: Tensor | None = None  # (point, column)
    anchor: Tensor | None = None  # (problem, width) the reference of the proximal term
    pull: Tensor | None = None  # (problem,) the proximal weight (mu, lambda in the papers)
    normalise: bool = True  # are the weights taken relative to their mean, or as they are?
    kept: dict[str, Tensor] = field(default_factory=dict)  # the optimizer's memory, empty: a fresh one
    per_client: int = 1  # problems of one client
    of_all: bool = False  # are there so many for every client of the points, in their order?

    def take(self, at: Tensor) -> Problems:
        def some(value: Tensor) -> Tensor:
            return value.index_select(0, at)  # of wide rows many times faster than value[at]

        return Problems(
            some(self.owner),
            some(self.column),
            some(self.key),
            some(self.start),
            self.exists,
            self.weight,
            None if self.anchor is None else some(self.anchor),
            None if self.pull is None else some(self.pull),
            self.normalise,
            {name: some(value) for name, value in self.kept.items()},
            self.per_client,
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
