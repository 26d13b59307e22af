"""The clients whose data is on this machine, computed together.

In simulation a cohort is thousands of clients; on a device it is a cohort of one, running the same lines.
Anything per point is flat: the points of the first client, then of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from coterie.data.federation import Points, Task
from coterie.engine import storage
from coterie.engine.batches import padded
from coterie.engine.compile.policy import Compiler
from coterie.engine.model import FunctionalModel
from coterie.engine.problems import Problems
from coterie.engine.scores import Outputs, Scores, score_outputs, squared_errors
from coterie.engine.solver import chunk_size, mean_gradients, one_pass, solve
from coterie.engine.training import Training
from coterie.prng import gumbel, mix
from coterie.protocol.client_state import ClientState
from coterie.protocol.message import RoundContext, finite_rows
from coterie.protocol.personal import Personal, is_shared


@dataclass(frozen=True)
class Cohort:
    """Clients side by side, client axis first."""

    model: FunctionalModel
    training: Training
    points: Points
    keys: Tensor  # (client,) from the clients' ids
    client_state: ClientState
    at: Tensor  # (client,) where they lie in `client_state`
    task: Task
    context: RoundContext
    test: Points | None = None  # points held out, of all the clients that `client_state` is of
    compiler: Compiler | None = None  # of their steps
    _lost: list[tuple[Tensor, int, Tensor]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @staticmethod
    def whole(
        model: FunctionalModel, training: Training, points: Points, keys: Tensor, task: Task, seed: int
    ) -> Cohort:
        """All the clients of this machine."""
        at = torch.arange(len(keys), device=model.device)
        points = points.to(model.device, model.dtype, model.integers)
        keys = keys.to(model.device)
        return Cohort(model, training, points, keys, ClientState(len(keys)), at, task, RoundContext(seed))

    def take(self, clients: Tensor) -> Cohort:
        """Some of them; they keep their state."""
        points = self.points.take(clients)
        if points is self.points:  # all, in their order
            return replace(self)
        return replace(self, points=points, keys=self.keys[clients], at=self.at[clients])

    def when(self, context: RoundContext) -> Cohort:
        return replace(self, context=context)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sizes(self) -> Tensor:
        """(client,) how many points each has."""
        return self.points.sizes

    def held_out(self) -> Points | None:
        """The test points of these clients."""
        return None if self.test is None else self.test.take(self.at)

    @property
    def initial(self) -> Tensor:
        """(client, width) the initial model, which every client can make for itself from the seed."""
        return self.model.initial("client").expand(len(self), -1)

    def keep(self, name: str, value: Tensor) -> None:
        """For the rounds to come. Of a client whose numbers are not all finite, what it had is kept."""
        good = finite_rows(value)
        if bool(good.all()):
            self.client_state.put(name, self.at, value)
        else:
            self.client_state.put(name, self.at[good], value[good])

    def recall(self, name: str, otherwise: Tensor) -> Tensor:
        return self.client_state.get(name, self.at, otherwise)

    def key(self, purpose: str) -> Tensor:
        m = self.context
        return mix(int(mix(m.seed, m.stage, m.round, purpose)), self.keys)

    def draw(self, chance: Tensor, purpose: str = "draw") -> Tensor:
        """(client,) a cluster for each client, drawn by its chances (client, cluster)."""
        cluster = torch.arange(chance.shape[1], device=chance.device)
        noise = gumbel(mix(self.key(purpose)[:, None], cluster))
        return (chance.to(torch.float64).log() + noise).argmax(1)

    def batch(self, purpose: str) -> Tensor:
        """(point,) bool: one batch of each client, the size that training asks for, drawn without replacement."""
        if self.training.batch_size is None:
            return torch.ones_like(self.points.at, dtype=torch.bool)
        return self._ranks(purpose) < self.training.batch_size

    def part(self, one_in: int, purpose: str) -> Tensor:
        """(point,) bool: one in so many of each client's points, drawn; at least one, but never all."""
        return self.some((self.sizes // one_in).clamp(min=1), purpose)

    def some(self, count: Tensor, purpose: str) -> Tensor:
        """(point,) bool: so many of each client's points (client,), drawn, but never all."""
        return self._ranks(purpose) < torch.minimum(count, self.sizes - 1)[self.points.owner]

    def divided(self, parts: int, purpose: str) -> Tensor:
        """(point,) which of so many parts of its client's points, drawn, and equal but for one point."""
        return self._ranks(purpose) % parts

    def _ranks(self, purpose: str) -> Tensor:
        """(point,) the place of each point in a random order of its client's."""
        owner = self.points.owner
        place = torch.arange(len(owner), device=owner.device) - self.points.offset[owner]
        order = torch.argsort(mix(self.key(purpose)[owner], place))
        order = order[torch.argsort(owner[order], stable=True)]  # by client, and within it by key
        rank = torch.empty_like(place)
        rank[order] = place
        return rank

    # the local problem

    def solve(
        self,
        start: Tensor,
        *,
        points: Tensor | None = None,
        weight: Tensor | None = None,
        anchor: Tensor | None = None,
        pull: float | Tensor = 0.0,
        normalise: bool = True,
        training: Training | None = None,
        optimizer_slot: Tensor | None = None,
        purpose: str = "train",
    ) -> Tensor:
        """Rows that solve each client's local problem from `start` (client, width).

        With start (client, cluster, width), `points` and `weight` may be (point, cluster): one problem per
        client and cluster. Weights count relative to their mean, unless `normalise` is off: then as they are, so
        that a problem of little weight takes small steps. `anchor` is the reference of the proximal term, and `pull`
        its weight (mu, lambda in the papers). `training` stands in for the cohort's own. Where a client trains
        another cluster each round, `optimizer_slot` (client,) says which: each keeps its own optimizer state.
        """
        several = start.dim() == 3
        per_client = start.shape[1] if several else 1
        training = training or self.training
        owner, column = self.points.remembered("problems", per_client, lambda: self._problems(per_client))
        problems = Problems(
            owner=owner,
            column=column,
            key=self._problem_keys(purpose, per_client),
            start=start.reshape(-1, start.shape[-1]),
            exists=_columns(points, per_client),
            weight=_columns(weight, per_client),
            normalise=normalise,
            per_client=per_client,
            of_all=True,
        )
        if anchor is not None:
            strength = torch.as_tensor(pull, dtype=start.dtype, device=start.device)
            problems.anchor = anchor.reshape(problems.start.shape)
            problems.pull = strength.expand(start.shape[:-1]).reshape(-1)
        if training.keep_optimizer:
            width = self.model.rows.n_parameters
            problems.kept = self.client_state.optimizer(
                training, self.at, problems.start, per_client, width, optimizer_slot
            )
        now = training.rate_at(self.context.round, self.context.rounds)
        each_round = purpose.split()[0] in ("train", "common")  # pFedMe's have a number
        rounds = self.context.rounds if each_round else None
        solution = solve(self.model, training, now, self.points, problems, self.compiler, rounds)
        loss = solution.loss.view(len(self), per_client).nanmean(1)  # of those that took a step
        self.client_state.put("loss", self.at, loss)  # infinite where it diverged, which is to be known
        if training.keep_optimizer:
            self._keep_optimizer(solution.kept, per_client, optimizer_slot)
        return solution.rows.view(start.shape)

    def _keep_optimizer(self, kept: dict[str, Tensor], per_client: int, slot: Tensor | None) -> None:
        """Of a client that diverged, nothing: it would diverge ever after."""
        each = {name: value.view(len(self), per_client, *value.shape[1:]) for name, value in kept.items()}
        good = torch.stack([finite_rows(value) for value in each.values()]).all(0)
        if not bool(good.all()):
            each = {name: value[good] for name, value in each.items()}
        self.client_state.keep_optimizer(each, self.at[good], None if slot is None else slot[good])

    def _problems(self, per_client: int) -> tuple[Tensor, Tensor]:
        """(problem,) the client, and its column of points and weights."""
        clients, each = (torch.arange(n, device=self.at.device) for n in (len(self), per_client))
        return clients.repeat_interleave(per_client), each.repeat(len(self))

    def _problem_keys(self, purpose: str, per_client: int) -> Tensor:
        """(problem,) the first one has the client's own key, as a single problem has."""
        key = self.key(purpose)[:, None]
        if per_client == 1:
            return key[:, 0]
        column = torch.arange(per_client, device=self.keys.device)
        return torch.where(column == 0, key, mix(key, "lane", column)).flatten()

    # models on data

    def losses(self, centers: Tensor) -> Tensor:
        """(point, cluster) the loss of each center (client, cluster, width) on its client's points.

        A center that has a loss which is not finite at any of them diverged, and is infinitely bad at all.
        """
        for known, version, found in self._lost:  # importance and models are made of the same
            if known is centers and version == centers._version:
                return found
        columns = [self._evaluate(centers[:, s], self.model.point_losses) for s in range(centers.shape[1])]
        found = torch.stack(columns, 1)
        diverged = self.means((~found.isfinite()).to(found.dtype)) > 0
        found = torch.where(diverged[self.points.owner], torch.inf, found)
        self._lost[:] = [(centers, centers._version, found)]
        return found

    def alive(self, centers: Tensor) -> Tensor:
        """(client, cluster) bool: has this center a finite loss on the client's points?"""
        return self.means(self.losses(centers)).isfinite()

    def knows_losses(self, centers: Tensor | None) -> bool:
        """Have the losses of these centers been computed already?"""
        return any(known is centers for known, _, _ in self._lost)

    def means(self, values: Tensor) -> Tensor:
        """(client, ...) the mean over a client's points (point, ...)."""
        total = values.new_zeros(len(self), *values.shape[1:]).index_add_(0, self.points.owner, values)
        return total / self.sizes.view(-1, *(1,) * (values.dim() - 1))

    def nearest(self, centers: Tensor) -> Tensor:
        """(point,) the center of least loss."""
        return self.losses(centers).argmin(1)

    def fractions(self, label: Tensor, clusters: int) -> Tensor:
        """(client, cluster) the share of each label among a client's points."""
        counts = torch.zeros(len(self), clusters, dtype=self.model.dtype, device=label.device)
        counts.index_add_(0, self.points.owner, functional.one_hot(label, clusters).to(counts.dtype))
        return counts / self.sizes[:, None]

    def gradients(self, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Some clients, and the gradients (client, parameter) of their mean losses at their rows, as in training.

        One client's is as large as its row, so all of them need not be in memory.
        """
        at_once = chunk_size(self.model, one_pass(self.model, self.training), int(self.sizes.max()))
        position, keys = torch.arange(len(self), device=self.at.device), self.key("gradient")
        for some in self._blocks(len(self), at_once):
            column = torch.zeros_like(position[some])
            problems = Problems(position[some], column, keys[some], rows[some])
            yield some, mean_gradients(self.model, self.training, self.points, problems)

    def score(self, personal: Personal, points: Points | None = None) -> Scores:
        """Loss, accuracy and macro-F1 of each client's model, on its own or on given points."""
        cohort = self if points is None else replace(self, points=points)
        parts = [cohort.outputs(personal.rows[:, k]) for k in range(personal.rows.shape[1])]
        return score_outputs(parts, personal.weights, cohort.points, self.model.loss, self.meaning)

    def squared_errors(self, personal: Personal, points: Points) -> Tensor:
        """(client,) of each client's model on given points: of probabilities; of numbers, the loss."""
        cohort = replace(self, points=points)
        parts = [cohort.outputs(personal.rows[:, k]) for k in range(personal.rows.shape[1])]
        return squared_errors(parts, personal.weights, points, self.model.loss, self.meaning)

    @property
    def meaning(self) -> Outputs:
        """What the model's outputs stand for."""
        return self.model.meaning or Outputs(self.task)

    def outputs(self, rows: Tensor) -> Tensor:
        """(point, ...) what each client's row (client, width) predicts for its points."""
        return self._evaluate(rows, self._outputs)

    def _outputs(self, row: Tensor, x: Tensor, _y: Tensor) -> Tensor:
        return self.model.outputs(row, x)

    def _evaluate(self, rows: Tensor, what: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """(point, ...) `what` of each client's row (client, width) on its points."""
        points, model = self.points, self.model
        with torch.no_grad():
            if not len(points.at):  # of some clients none may have any
                return what(rows[0], points.x[points.at], points.y)
            shared = is_shared(rows)
            if model.alone_in_evaluation or not (
                shared or model.evaluates_together_on(int(self.sizes.max()))
            ):
                return self._evaluate_alone(rows, what)
            if shared:  # one model for all: every client's points in one row of batches
                batches = torch.split(
                    torch.arange(len(points.at), device=points.at.device), self._points_at_once()
                )
                return torch.cat([what(rows[0], points.inputs(b), points.y[b]) for b in batches])
            return self._evaluate_together(rows, what)

    def _evaluate_alone(self, rows: Tensor, what: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        results, with_points = [], self._with_points()
        for some in self._blocks(len(with_points), 1):
            for i in with_points[some].tolist():
                own = slice(int(self.points.offset[i]), int(self.points.offset[i + 1]))
                results.append(what(rows[i], self.points.inputs(own), self.points.y[own]))
        return torch.cat(results)

    def _evaluate_together(self, rows: Tensor, what: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        results = []
        numbers = 2 * (self.model.rows.width + int(self.sizes.max()) * self.model.activations)
        at_once = max(1, self.model.memory_budget() // (numbers * self._number_bytes()))
        with_points = self._with_points()
        all_have = len(with_points) == len(rows)
        for some in self._blocks(len(with_points), at_once):
            clients = with_points[some]
            table, here = padded(self.points, clients)
            x, y = self.points.inputs(table), self.points.y[table]
            theirs = rows[some] if all_have else rows.index_select(0, clients)
            results.append(vmap(what)(theirs, x, y)[here])
        return torch.cat(results)

    def _blocks(self, clients: int, at_once: int) -> Iterator[slice]:
        """So many of the clients at a time; what has been read and written of tables on disk is put away."""
        row_bytes = self.model.rows.width * self._number_bytes()
        return storage.blocks(clients, row_bytes, self.at.device, at_once * row_bytes)

    def _with_points(self) -> Tensor:
        """The clients that have any; a client may be without test points."""
        return (self.sizes > 0).nonzero()[:, 0]

    def _points_at_once(self) -> int:
        return max(1, self.model.memory_budget() // (2 * self._number_bytes() * self.model.activations))

    def _number_bytes(self) -> int:
        return torch.finfo(self.model.dtype).bits // 8


def _columns(values: Tensor | None, per_client: int) -> Tensor | None:
    if values is None:
        return None
    return values if values.dim() == 2 else values[:, None].expand(-1, per_client)
