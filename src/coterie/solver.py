"""The one local problem, solved for many clients at once.

    minimise over w:   Σ a_i · loss(w; x_i, y_i) / Σ a_i  +  pull/2 · ‖w − anchor‖²

by minibatch steps from `start`. `exists` says which points there are for this solve, and batches are drawn
from those alone; the weights a_i scale the loss of those there are. A batch's gradient is the mean over its
points of (a_i / mean a) · gradient_i: unbiased, and exact when the batch is all points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.chance import mix
from coterie.federation import Points
from coterie.network import Network
from coterie.training import Training, update

_LAST = torch.iinfo(torch.int64).max  # sorts behind every key


@dataclass
class Problems:
    """Problems to be solved, problem axis first. A client may have several, one a lane."""

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

    def take(self, at: Tensor) -> Problems:
        return Problems(
            self.owner[at],
            self.lane[at],
            self.key[at],
            self.start[at],
            self.exists,
            self.weight,
            None if self.anchor is None else self.anchor[at],
            None if self.pull is None else self.pull[at],
            self.normalise,
            {name: value[at] for name, value in self.kept.items()},
        )


@dataclass
class Solution:
    rows: Tensor  # (problem, width)
    loss: (
        Tensor  # (problem,) mean training loss over the steps; nan where there were none, inf if it diverged
    )
    kept: dict[str, Tensor]


def solve(network: Network, training: Training, rate: float, points: Points, problems: Problems) -> Solution:
    """Solve all problems, in chunks that fit in memory, the longest first."""
    counts = _counts(points, problems)
    longest_first = torch.argsort(counts, descending=True, stable=True)
    rows = torch.empty_like(problems.start, memory_format=torch.contiguous_format)
    loss = problems.start.new_empty(len(rows))
    kept: dict[str, Tensor] = {}
    most = int(counts.max()) if len(counts) else 0
    for at in torch.split(longest_first, chunk_size(network, training, most)):
        part = _Chunk(network, training, points, problems.take(at), counts[at]).run(rate)
        rows[at], loss[at] = part.rows, part.loss
        for name, value in part.kept.items():
            kept.setdefault(name, value.new_empty(len(rows), *value.shape[1:]))[at] = value
    return Solution(rows, loss, kept)


def chunk_size(network: Network, training: Training, most_points: int) -> int:
    """How many problems may be in memory at once."""
    if network.chunk is not None:
        return network.chunk
    batch = min(training.batch or most_points, most_points)
    numbers = (6 + len(training.slots())) * network.rows.width + 4 * batch * network.activations
    size = torch.finfo(network.dtype).bits // 8
    return max(1, network.memory_budget() // (numbers * size))


def _counts(points: Points, problems: Problems) -> Tensor:
    """(problem,) how many points exist for it."""
    if problems.exists is None:
        return points.sizes[problems.owner]
    clients = len(points.offset) - 1
    per_lane = torch.zeros(clients, problems.exists.shape[1], dtype=torch.long, device=points.at.device)
    per_lane.index_add_(0, points.owner, problems.exists.long())
    return per_lane[problems.owner, problems.lane]


def padded(points: Points, owner: Tensor) -> tuple[Tensor, Tensor]:
    """(client, longest) the numbers of these clients' points, and where there is a point at all."""
    sizes = points.sizes[owner]
    place = torch.arange(int(sizes.max()), device=sizes.device)
    here = place < sizes[:, None]
    return torch.where(here, points.offset[owner][:, None] + place, 0), here


class _Chunk:
    """Some problems, side by side, sorted by length: at every step the active ones are the first so many."""

    def __init__(
        self, network: Network, training: Training, points: Points, problems: Problems, counts: Tensor
    ):
        self.network, self.training, self.points, self.problems = network, training, points, problems
        self.table, self.here = padded(points, problems.owner)
        if problems.exists is not None:
            self.here = self.here & problems.exists[self.table, problems.lane[:, None]]
        self.counts = counts
        self.weight = self._weights()
        self.order = torch.zeros_like(self.table)
        count: list[int] = counts.tolist()
        self.batch: int = max(1, min(training.batch or max(count), max(count)))
        self.per_epoch = [self._batches_of(n) for n in count]
        if training.epochs is not None:
            self.steps = [training.epochs * n for n in self.per_epoch]
        else:
            self.steps = [(training.steps or 0) if n else 0 for n in self.per_epoch]

    def _batches_of(self, n: int) -> int:
        """Batches in an epoch of n points; a last one of a single point is left out where batch norm needs two."""
        if not self.network.needs_two:
            return -(-n // self.batch)
        if self.batch == 1:
            return 0
        return n // self.batch + (1 if n % self.batch > 1 else 0)

    def _weights(self) -> Tensor:
        """(problem, place) a_i over its mean, 0 where there is no point."""
        here = self.here.to(self.network.dtype)
        if self.problems.weight is None:
            return here
        weight = self.problems.weight[self.table, self.problems.lane[:, None]].to(here.dtype) * here
        if not self.problems.normalise:
            return weight
        mean = weight.sum(1, keepdim=True) / here.sum(1, keepdim=True).clamp(min=1)
        return torch.where(mean > 0, weight / mean.clamp(min=torch.finfo(here.dtype).tiny), 0)

    def run(self, rate: float) -> Solution:
        network, training, problems = self.network, self.training, self.problems
        n = network.rows.n_parameters
        rows = problems.start.clone()
        kept = problems.kept or self._fresh_memory(rows[:, :n])
        total = rows.new_zeros(len(rows))
        for step, active in self._active():
            x, y, weight, mask = self._batches(step, active)
            key = mix(problems.key[:active], "step", step)
            gradient, value, tail = network.gradients(rows[:active], x, y, weight, mask, key)
            total[:active] += value
            parameters = rows[:active, :n]
            if problems.pull is not None and problems.anchor is not None:
                gradient += problems.pull[:active, None] * (parameters - problems.anchor[:active, :n])
            kept["step"][:active] += 1
            memory = {name: kept[name][:active] for name in training.slots()}
            update(training, rate, kept["step"][:active, None], parameters, gradient, memory)
            rows[:active, n:] = tail
        taken = torch.tensor(self.steps, device=rows.device, dtype=rows.dtype)
        loss = torch.where(total.isnan(), torch.inf, total) / taken  # nan is kept for 0/0: no step, no loss
        return Solution(rows, loss, kept)

    def _fresh_memory(self, parameters: Tensor) -> dict[str, Tensor]:
        memory = {name: torch.zeros_like(parameters) for name in self.training.slots()}
        memory["step"] = parameters.new_zeros(len(parameters))
        return memory

    def _active(self) -> Iterator[tuple[int, int]]:
        """(step, how many problems take it)."""
        active = len(self.steps)
        for step in range(max(self.steps, default=0)):
            while self.steps[active - 1] <= step:
                active -= 1
            yield step, active

    def _batches(self, step: int, active: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The step's batch of each active problem: x, y, weight (summing like a mean), mask."""
        self._reorder(step, active)
        device = self.table.device
        begin = torch.tensor([step % k * self.batch for k in self.per_epoch[:active]], device=device)
        place = begin[:, None] + torch.arange(self.batch, device=device)
        exists = place < self.counts[:active, None]
        place = self.order[:active].gather(1, torch.where(exists, place, 0))
        mask = exists.to(self.network.dtype)
        weight = self.weight[:active].gather(1, place) * mask / mask.sum(1, keepdim=True)
        at = self.table[:active].gather(1, place)
        return self.points.x[self.points.at[at]], self.points.y[at], weight, mask

    def _reorder(self, step: int, active: int) -> None:
        """A new order for each problem that begins an epoch: a sort of keyed hashes."""
        begins = [i for i in range(active) if step % self.per_epoch[i] == 0]
        if not begins or (step and not self.training.shuffle):
            return
        at = torch.tensor(begins, device=self.table.device)
        place = torch.arange(self.table.shape[1], device=self.table.device)
        keys = place.expand(len(begins), -1)
        if self.training.shuffle:
            epoch = torch.tensor([step // self.per_epoch[i] for i in begins], device=self.table.device)
            keys = mix(self.problems.key[at][:, None], "order", epoch[:, None], place)
        self.order[at] = torch.where(self.here[at], keys, _LAST).argsort(dim=1, stable=True)
