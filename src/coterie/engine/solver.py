"""The one local problem, solved for many clients at once.

    minimise over w:   Σ a_i · loss(w; x_i, y_i) / Σ a_i  +  pull/2 · ‖w − anchor‖²

by minibatch steps from `start`. `exists` says which points there are for this solve, and batches are drawn
from those alone; the weights a_i scale the loss of those there are. A batch's gradient is the mean over its
points of (a_i / mean a) · gradient_i: unbiased, and exact when the batch is all points.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.federation import Points
from coterie.engine.batches import (
    FEW,
    EpochPlan,
    Schedule,
    batches_of,
    draw,
    epoch_plans,
    padded,
    steps_of,
    table_bytes,
)
from coterie.engine.compile.cuda_graph import Recorded
from coterie.engine.compile.policy import Compiler
from coterie.engine.model import FunctionalModel, Step
from coterie.engine.problems import Problems, Solution
from coterie.engine.training import Training, update
from coterie.prng import mix

if TYPE_CHECKING:
    from coterie.engine.compile.step import CompiledStep

LARGE = 64  # points of a batch that is not a step's


def solve(
    model: FunctionalModel,
    training: Training,
    rate: float,
    points: Points,
    problems: Problems,
    compiler: Compiler | None = None,
    rounds: int | None = None,
) -> Solution:
    """Solve all problems, in chunks that fit in memory, the longest first.

    `rounds` says in how many rounds such problems are still to be solved, None that they are not: the compiler weighs
    the work ahead.
    """
    plan = _plan(model, training, points, problems)
    compiled = None
    if compiler is not None:
        pulled = problems.pull is not None
        compiled = compiler.step_for(
            training, points.x, points.y, plan.steps, problems.per_client, pulled, rounds
        )
    rate_now = problems.start.new_full((), rate)

    def solved(at: Tensor) -> Solution:
        if compiled is not None:
            return _run_compiled(compiled, training, points, problems, plan, at, rate_now)
        mine, counts = problems.take(at), plan.counts[at]
        return _Chunk(model, training, points, mine, counts, plan.batch).run(rate_now)

    size = chunk_size(model, training, plan.most) if compiled is None else compiled.slots
    if plan.alike and 0 < len(plan.counts) <= size:
        return solved(plan.longest_first)
    rows = torch.empty_like(problems.start, memory_format=torch.contiguous_format)
    loss = problems.start.new_empty(len(rows))
    kept: dict[str, Tensor] = {}
    for some in (slice(begin, begin + size) for begin in range(0, len(rows), size)):
        at = plan.longest_first[some]
        part = solved(at)
        there = some if plan.alike else at  # a slice, where it will do, is written much faster
        rows[there], loss[there] = part.rows, part.loss
        for name, value in part.kept.items():
            kept.setdefault(name, value.new_empty(len(rows), *value.shape[1:]))[there] = value
    return Solution(rows, loss, kept)


def mean_gradients(model: FunctionalModel, training: Training, points: Points, problems: Problems) -> Tensor:
    """(problem, parameter) the gradient of each problem's mean loss at its start, in the batches of `one_pass`."""
    once = one_pass(model, training)
    plan = _plan(model, once, points, problems)
    found = problems.start.new_empty(len(plan.counts), model.rows.n_parameters)
    for at in torch.split(plan.longest_first, chunk_size(model, once, plan.most)):
        chunk = _Chunk(model, once, points, problems.take(at), plan.counts[at], plan.batch)
        found[at] = chunk.mean_gradients()
    return found


def one_pass(model: FunctionalModel, training: Training) -> Training:
    """Once through all points, in batches that a gradient of all of them may be summed from.

    Larger ones would take more memory, smaller ones more time. Batch norm sees them as it sees those of training, and
    of a last one of very few points it would make no good mean and variance.
    """
    batch = None if training.batch_size is None else max(training.batch_size, LARGE)
    least = FEW if model.needs_two and batch is not None else 1
    return replace(training, batch_size=batch, epochs=1, steps=None, min_batch=least, shuffle=False)


@dataclass(frozen=True)
class _Plan:
    """What is known of problems before any batch is drawn."""

    counts: Tensor  # (problem,) points
    most: int  # points of one of them
    alike: bool  # have all as many? Longest first is as they are, then
    batch: int
    longest_first: Tensor  # (problem,) by points, and so by steps too
    steps: list[int]  # longest first


def _plan(model: FunctionalModel, training: Training, points: Points, problems: Problems) -> _Plan:
    def made() -> _Plan:
        counts = _counts(points, problems)
        most, least = torch.stack([counts.max(), counts.min()]).tolist() if len(counts) else (1, 1)
        alike, most = least == most, max(1, most)
        batch = min(training.batch_size or most, most)
        longest_first = torch.argsort(counts, descending=True, stable=True)
        per_epoch = batches_of(counts, batch, training.min_batch, model.needs_two)
        steps = steps_of(training, per_epoch)
        return _Plan(counts, most, alike, batch, longest_first, steps[longest_first].tolist())

    if not problems.of_all or problems.exists is not None:
        return made()
    return points.remembered("plan", (*_drawn_by(training), model.needs_two, problems.per_client), made)


def _drawn_by(training: Training) -> tuple[Hashable, ...]:
    """What batches depend on."""
    return training.batch_size, training.min_batch, training.epochs, training.steps, training.shuffle


def _run_compiled(
    compiled: CompiledStep,
    training: Training,
    points: Points,
    problems: Problems,
    plan: _Plan,
    at: Tensor,
    rate: Tensor,
) -> Solution:
    """Some problems, in as many slots as there are; a slot without a problem has one that takes no steps."""
    model, empty = compiled.model, compiled.slots - len(at)
    whole = len(at) == len(plan.counts)
    if whole and plan.alike and not empty:
        mine, counts = problems, plan.counts
    else:
        mine = problems.take(torch.cat([at, at[:1].expand(empty)]))
        counts = functional.pad(plan.counts[at], (0, empty))
    chunk = _Chunk(model, training, points, mine, counts, compiled.batch, whole and problems.like_last_time)
    schedule = chunk.schedule
    compiled.load(mine.start, mine.kept or fresh_memory(training, model.rows.split(mine.start)[0]), mine)
    compiled.run(schedule, points, mine.key, rate)
    rows, kept, total = compiled.unload()
    loss = mean_loss(total, schedule.steps)
    return Solution(
        rows[: len(at)], loss[: len(at)], {name: value[: len(at)] for name, value in kept.items()}
    )


def chunk_size(model: FunctionalModel, training: Training, most_points: int) -> int:
    """How many problems may be in memory at once."""
    if model.chunk is not None:
        return model.chunk
    batch = min(training.batch_size or most_points, most_points)
    numbers = (6 + len(training.state_names())) * model.rows.width + 4 * batch * model.activations
    each = numbers * torch.finfo(model.dtype).bits // 8 + table_bytes(training, batch, most_points)
    return max(1, model.memory_budget() // each)


def _counts(points: Points, problems: Problems) -> Tensor:
    """(problem,) how many points exist for it."""
    if problems.exists is None:
        return points.sizes[problems.owner]
    clients = len(points.offset) - 1
    per_column = torch.zeros(clients, problems.exists.shape[1], dtype=torch.long, device=points.at.device)
    per_column.index_add_(0, points.owner, problems.exists.long())
    return per_column[problems.owner, problems.column]


class _Chunk:
    """Some problems, side by side, sorted by length: at every step the active ones are the first so many."""

    def __init__(
        self,
        model: FunctionalModel,
        training: Training,
        points: Points,
        problems: Problems,
        counts: Tensor,
        batch: int,
        again: bool = False,  # will problems be drawn from just these points the next time too?
    ):
        self.model, self.training, self.points, self.problems = model, training, points, problems
        self.counts, self.batch = counts, batch
        self.schedule = self._remembered() if again else self._drawn()

    def _remembered(self) -> Schedule:
        """With the same points as before only the order of a client's is drawn anew."""
        training, batch, dtype = self.training, self.batch, self.model.dtype
        key, per_client = self.problems.key, self.problems.per_client

        def drawing() -> Recorded[Schedule]:
            plans = self._epoch_plans(*self._points())
            # not of self, which has the clients' rows
            return Recorded(lambda key: draw(training.shuffle, plans, key, None))

        which = (*_drawn_by(training), batch, self.model.needs_two, dtype, per_client, len(key))
        return self.points.remembered("drawing", which, drawing)(key)

    def _drawn(self) -> Schedule:
        table, here = self._points()
        plans, weight = self._epoch_plans(table, here), self._weights(table, here)
        return draw(self.training.shuffle, plans, self.problems.key, weight)

    def _points(self) -> tuple[Tensor, Tensor]:
        """(problem, place) the numbers of the points, and where there is one."""
        table, here = padded(self.points, self.problems.owner)
        if self.problems.exists is not None:
            here = here & self.problems.exists[table, self.problems.column[:, None]]
        return table, here

    def _epoch_plans(self, table: Tensor, here: Tensor) -> list[EpochPlan]:
        per_epoch = batches_of(self.counts, self.batch, self.training.min_batch, self.model.needs_two)
        return epoch_plans(self.training, self.batch, self.model.dtype, per_epoch, table, here)

    def _weights(self, table: Tensor, here: Tensor) -> Tensor | None:
        """(problem, place) a_i over its mean, 0 where there is no point; None: all alike."""
        if self.problems.weight is None:
            return None
        there = here.to(self.model.dtype)
        weight = self.problems.weight[table, self.problems.column[:, None]].to(there.dtype) * there
        if not self.problems.normalise:
            return weight
        mean = weight.sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
        return torch.where(mean > 0, weight / mean.clamp(min=torch.finfo(there.dtype).tiny), 0)

    def run(self, rate: Tensor) -> Solution:
        training, problems = self.training, self.problems
        n = self.model.rows.n_parameters
        rows = problems.start.clone()
        kept = problems.kept or fresh_memory(training, rows[:, :n])
        total = rows.new_zeros(len(rows))
        for step, active in self._active():
            gradient, value, tail = self._gradients(rows[:active], step)
            total[:active] += value
            parameters = rows[:active, :n]
            if problems.pull is not None and problems.anchor is not None:
                gradient += problems.pull[:active, None] * (parameters - problems.anchor[:active, :n])
            kept["step"][:active] += 1
            memory = {name: kept[name][:active] for name in training.state_names()}
            update(training, rate, kept["step"][:active, None], parameters, gradient, memory)
            rows[:active, n:] = tail
        return Solution(rows, mean_loss(total, self.schedule.steps), kept)

    def mean_gradients(self) -> Tensor:
        """(problem, parameter) at the start: of all batches, each weighed by its points."""
        rows, schedule = self.problems.start, self.schedule
        step_number = torch.arange(len(schedule.mask), device=rows.device)[:, None]
        points = torch.where(step_number < schedule.steps, schedule.mask.sum(2), 0)
        share = points / points.sum(0).clamp(min=1)
        total = rows.new_zeros(len(rows), self.model.rows.n_parameters)
        for step, active in self._active():
            gradient = self._gradients(rows[:active], step)[0]
            total[:active] += share[step, :active, None] * gradient
        return total

    def _gradients(self, rows: Tensor, step: int) -> Step:
        """Of a step's batches, for the first so many problems."""
        schedule, active = self.schedule, len(rows)
        at = schedule.at[step, :active]
        x, y = self.points.inputs(at), self.points.y[at]
        weight, mask = schedule.weight[step, :active], schedule.mask[step, :active]
        key = mix(self.problems.key[:active], "step", step)
        return self.model.gradients(rows, x, y, weight, mask, key)

    def _active(self) -> Iterator[tuple[int, int]]:
        """(step, how many problems take it)."""
        steps: list[int] = self.schedule.steps.tolist()
        active = len(steps)
        for step in range(len(self.schedule.at)):
            while steps[active - 1] <= step:
                active -= 1
            yield step, active


def fresh_memory(training: Training, parameters: Tensor) -> dict[str, Tensor]:
    memory = {name: torch.zeros_like(parameters) for name in training.state_names()}
    memory["step"] = parameters.new_zeros(len(parameters))
    return memory


def mean_loss(total: Tensor, steps: Tensor) -> Tensor:
    """nan is kept for 0/0: no step, no loss."""
    return total.nan_to_num(torch.inf, torch.inf, -torch.inf) / steps
