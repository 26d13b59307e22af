"""The whole step as one graph: gather, gradient, pull, update, for a fixed number of problems at once.

A slot is a place for one problem. Everything that a step reads or writes lies in buffers that stay where they are, so
that on a GPU steps are recorded once, as CUDA graphs, and replayed without the host. The graph is compiled by Inductor;
on a GPU, where that takes longer than it saves, it is recorded as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._subclasses import FakeTensorMode
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coterie.data.federation import Points
from coterie.engine.batches import Schedule
from coterie.engine.compile import known
from coterie.engine.compile.cuda_graph import record
from coterie.engine.compile.factored_gradients import leave_factors
from coterie.engine.compile.too_large import TooLarge
from coterie.engine.model import FunctionalModel
from coterie.engine.problems import Problems
from coterie.engine.training import Training, update
from coterie.prng import mix

log = logging.getLogger("coterie.engine.compile.step")

BLOCK = 128  # steps whose batches lie in the buffers at a time, at the most ...
BLOCK_NUMBERS = 2**26  # ... and how many numbers they may be
RUNS = (16, 4, 1)  # so many steps are recorded in one, each of which the host would have to start by itself

OPTIONS: dict[str, Any] = {  # of Inductor
    "size_asserts": False,  # buffers stay what they are
    # a hash uses each number twice, so that in one expression it doubles at every line: at most so many operations. It
    # is the usual number for GPUs; some versions have a larger one for CPUs, which took three times as long to compile.
    "realize_opcount_threshold": 30,
}
ON_GPU = {
    "realize_reads_threshold": 3,  # at 4, as usual, windows of 2x2 are pooled anew by every window that sees them
}

Buffers = dict[str, dict[str, Tensor]]  # group, name: slot axis first


class CompiledStep:
    """One step in so many slots, and the buffers that it works on."""

    def __init__(
        self,
        model: FunctionalModel,
        training: Training,
        store: Tensor,
        y: Tensor,
        *,
        slots: int,
        batch: int,
        pulled: bool,
        most_operations: int,
        may_record: bool = False,
        why: str = "as asked for",
    ):
        self.model, self.training, self.pulled, self.why = model, training, pulled, why
        self.slots, self.batch = slots, batch
        self.most_operations, self.may_record = most_operations, may_record
        self.buffers = self._make_buffers(store, y, batch)
        self.factored: list[str] = []  # parameters whose gradient is never written down
        self.draws = True  # does a step draw random numbers, so that it needs its key?
        self._advance = self._compile()  # by so many steps

    def _make_buffers(self, store: Tensor, y: Tensor, batch: int) -> Buffers:
        slots, rows, dtype = self.slots, self.model.rows, self.model.dtype

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=store.device)

        def like_parameters() -> dict[str, Tensor]:
            return {s.name: floats(slots, *s.shape) for s in rows.parameters}

        step_numbers = slots * batch * (3 + y[:1].numel())
        each = (max(1, min(BLOCK, BLOCK_NUMBERS // step_numbers)), slots, batch)
        return {
            "parameter": like_parameters(),
            "tail": {s.name: floats(slots, *s.shape) for s in rows.tail},
            "anchor": like_parameters() if self.pulled else {},
            **{state: like_parameters() for state in self.training.state_names()},
            "number": {name: floats(slots) for name in ("total", "step", "pull")},
            "all": {
                "rate": floats(),
                "row": torch.zeros(1, dtype=torch.long, device=store.device),
                "x": store,
            },
            "batch": {  # step axis first
                "at": torch.zeros(each, dtype=torch.long, device=store.device),
                "y": y.new_zeros(*each, *y.shape[1:]),
                "weight": floats(*each),
                "mask": floats(*each),
                "key": torch.zeros(each[:2], dtype=torch.long, device=store.device),
                "alive": torch.zeros(each[:2], dtype=torch.bool, device=store.device),
            },
        }

    def _place(self, group: str, name: str) -> int:
        """Where a buffer stands among all of them."""
        return [(g, n) for g, named in self.buffers.items() for n in named].index((group, name))

    def _named(self, flat: Sequence[Tensor]) -> Buffers:
        """The buffers, or what stands for them in a graph, by their names."""
        one = iter(flat)
        return {group: {name: next(one) for name in named} for group, named in self.buffers.items()}

    # the step

    def _gradients(self, b: Buffers) -> list[Tensor]:
        """The values of the batches, the tails after them, and the gradients, one after another."""
        now = self._now(b)
        x = self.model.pixels.vary(b["all"]["x"][now["at"]], now["key"])
        gradients, (value, tail) = vmap(grad_and_value(self.model.objective, has_aux=True))(
            b["parameter"], b["tail"], x, now["y"], now["weight"], now["mask"], now["key"]
        )
        return [value, *tail.values(), *gradients.values()]

    def _now(self, b: Buffers) -> dict[str, Tensor]:
        return {name: table.index_select(0, b["all"]["row"])[0] for name, table in b["batch"].items()}

    def _take(self, b: Buffers, found: list[Tensor]) -> list[Tensor]:
        """A step as the solver's plain loop takes it, but in all slots; those that are not alive stay as they are.

        What is left to do: products that are still to be added to the factored parameters, two factors each.
        """
        alive = self._now(b)["alive"]
        value, tails, found = found[0], found[1 : 1 + len(b["tail"])], found[1 + len(b["tail"]) :]
        b["number"]["total"].add_(torch.where(alive, value, 0))
        b["number"]["step"].add_(alive)
        for old, new in zip(b["tail"].values(), tails, strict=True):
            self._replace(old, new, alive[:, None])
        for name, gradient in zip(b["parameter"], found, strict=False):
            if name not in self.factored:
                self._update(b, name, gradient.reshape(self.slots, -1), alive[:, None])
        b["all"]["row"].add_(1)
        left, right = found[len(b["parameter"]) :: 2], found[len(b["parameter"]) + 1 :: 2]
        left = [factor * -b["all"]["rate"] for factor in left]
        return [
            torch.where(alive[:, None, None], f, 0) for pair in zip(left, right, strict=True) for f in pair
        ]

    def _update(self, b: Buffers, name: str, gradient: Tensor, alive: Tensor) -> None:
        row = b["parameter"][name].view(self.slots, -1)
        if self.pulled:
            anchor = b["anchor"][name].view(self.slots, -1)
            gradient = gradient + b["number"]["pull"][:, None] * (row - anchor)
        new = row.clone()
        memory = {state: b[state][name].view(self.slots, -1).clone() for state in self.training.state_names()}
        update(self.training, b["all"]["rate"], b["number"]["step"][:, None], new, gradient, memory)
        self._replace(row, new, alive)
        for state, value in memory.items():
            self._replace(b[state][name], value, alive)

    def _replace(self, old: Tensor, new: Tensor, alive: Tensor) -> None:
        old = old.view(self.slots, -1)
        old.copy_(torch.where(alive, new.reshape(self.slots, -1), old))

    # made once

    def _compile(self) -> Callable[[int], None]:
        row = self.buffers["all"]["row"]
        flat: list[Any] = _flat(self.buffers)
        self._kernels = _tensor_cores(row.device)
        with torch.no_grad():
            compiled = self._compiled(flat)
        weights = [self.buffers["parameter"][name] for name in self.factored]
        add_products = Tensor.baddbmm_ if self._kernels is None else self._kernels.add_products

        def advance() -> None:
            factors = compiled(list(flat))
            for weight, left, right in zip(weights, factors[::2], factors[1::2], strict=True):
                add_products(weight, left, right)

        row.zero_()
        advance()
        return self._recorded(advance) if row.device.type == "cuda" else partial(_repeat, advance)

    def _graph(self) -> fx.GraphModule:
        """The step, traced: on the buffers themselves, of which every trace uses up a batch."""
        self.model.module.train()
        self.buffers["all"]["row"].zero_()
        gradients_of, first = self._traced(self._gradients), 1 + len(self.buffers["tail"])
        gradients_of.graph.eliminate_dead_code()
        self.draws = _reads(gradients_of, self._place("batch", "key"))
        if self.training.is_plain and not self.pulled:
            places = {name: first + i for i, name in enumerate(self.buffers["parameter"])}
            self.factored = leave_factors(gradients_of, places)
        step = self._traced(lambda b: self._take(b, _called(gradients_of, b)))
        if self._kernels is not None:
            self._kernels.use_products(step)
        return step

    def _compiled(self, flat: list[Any]) -> Callable[[list[Any]], Sequence[Tensor]]:
        """By Inductor, if that is worth it, or took place before; else, if it may be, as it is."""
        with self.model.prepared.stacking():
            step = self._graph()
        self.operations, self.recorded = len(step.graph.nodes), False
        mark = known.mark(step, flat) if flat[0].device.type == "cuda" else None
        if self.operations <= self.most_operations or (mark is not None and mark.exists()):
            log.info("steps of %d clients at once are compiled: %s ...", self.slots, self.why)
            bypassed = known.bypassed()
            compiled = _inductor_compile(step, flat)
            if mark is not None and known.bypassed() == bypassed:
                known.put(mark)
            return compiled
        if not self.may_record:
            raise TooLarge(self.operations)
        self.recorded = True
        log.info("steps of %d clients at once are recorded: %s ...", self.slots, self.why)
        as_it_is = self._graph()  # without stacked convolutions, which would be written to memory
        return lambda given: as_it_is(*given)

    def _recorded(self, advance: Callable[[], None]) -> Callable[[int], None]:
        self._recorded_step = advance  # what the model made while it was traced lies in it
        row, runs = self.buffers["all"]["row"], {}
        pool = torch.cuda.graph_pool_handle()  # they share memory: nothing of one is read in another
        for steps in (steps for steps in RUNS if steps <= len(self.buffers["batch"]["key"])):
            row.zero_()
            runs[steps] = record(partial(_repeat, advance, steps), row.device, pool)[0]

        def by(steps: int) -> None:
            for length, run in runs.items():
                _repeat(run, steps // length)
                steps %= length

        return by

    def _traced(self, of_buffers: Callable[[Buffers], list[Tensor]]) -> fx.GraphModule:
        """A function of the buffers as a graph, to be called with all of them in a row."""
        return make_fx(lambda *flat: of_buffers(self._named(flat)))(*_flat(self.buffers))

    # used for each chunk of problems

    def load(self, rows: Tensor, kept: dict[str, Tensor], problems: Problems) -> None:
        """Put problems into the slots: rows (slot, width) to begin at, what the optimizer kept, anchors."""
        b, (parameters, tail) = self.buffers, self.model.rows.split(rows)
        _spread(parameters, b["parameter"])
        _spread(tail, b["tail"])
        for state in self.training.state_names():
            _spread(kept[state], b[state])
        b["number"]["step"].copy_(kept["step"])
        b["number"]["total"].zero_()
        if problems.anchor is not None and problems.pull is not None:
            _spread(self.model.rows.split(problems.anchor)[0], b["anchor"])
            b["number"]["pull"].copy_(problems.pull)

    def run(self, schedule: Schedule, points: Points, key: Tensor, rate: Tensor) -> None:
        """Take all steps of the schedule, for problems with these keys (slot,)."""
        step = torch.arange(len(schedule.at), device=key.device)[:, None]
        self.buffers["all"]["rate"].copy_(rate)
        block = len(self.buffers["batch"]["key"])
        with torch.no_grad():
            for some in (slice(begin, begin + block) for begin in range(0, len(step), block)):
                at = schedule.at[some]
                now = {name: buffer[: len(at)] for name, buffer in self.buffers["batch"].items()}
                torch.take(points.at, at, out=now["at"])
                torch.lt(step[some], schedule.steps, out=now["alive"])
                now["y"].copy_(points.y[at])
                now["weight"].copy_(schedule.weight[some])
                now["mask"].copy_(schedule.mask[some])
                if self.draws:
                    now["key"].copy_(mix(key, "step", step[some]))
                self.buffers["all"]["row"].zero_()
                self._advance(len(at))

    def unload(self) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """What lies in the slots: rows, what the optimizer keeps, and the sum of the losses."""
        b = self.buffers
        rows = (
            torch.cat([_gathered(b["parameter"]), _gathered(b["tail"])], 1)
            if b["tail"]
            else _gathered(b["parameter"])
        )
        kept = {state: _gathered(b[state]) for state in self.training.state_names()}
        kept["step"] = b["number"]["step"].clone()
        return rows, kept, b["number"]["total"].clone()


def _inductor_compile(step: fx.GraphModule, flat: list[Any]) -> Callable[[list[Any]], Sequence[Tensor]]:
    """Not torch.compile, which would check its inputs at every step, and on a CPU without what wraps it for autograd.

    The wrapping takes as long as a small step; on a GPU steps are recorded, and it costs nothing. What is inside takes
    its inputs as a list, which it empties.
    """
    inside: list[Any] = []

    def compile_inside(graph: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        compiled = compile_fx_inner(graph, inputs, **how)
        if len(inputs) == len(flat):  # a model's constants would come before them
            inside.append(compiled)
        return compiled

    # tensors without numbers: with them, and the mode that made them, Inductor knows what it compiled before
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [mode.from_tensor(tensor, static_shapes=True) for tensor in flat]
    with (
        functorch_config.patch(enable_autograd_cache=False),  # which would hand out the whole alone
        tracing(TracingContext(mode)),
    ):
        options = {**OPTIONS, **ON_GPU} if flat[0].device.type == "cuda" else OPTIONS
        whole = compile_fx(step, fakes, inner_compile=compile_inside, config_patches=options)
    assert callable(whole)
    alone = len(inside) == 1 and flat[0].device.type == "cpu"
    return inside[0] if alone else lambda given: whole(*given)


def _tensor_cores(device: torch.device) -> ModuleType | None:
    """What makes products on them; None where there are none."""
    if device.type != "cuda":
        return None
    from coterie.engine.compile import kernels  # needs Triton

    return kernels if kernels.are_possible(device) else None


def _repeat(work: Callable[[], None], times: int) -> None:
    for _ in range(times):
        work()


def _reads(traced: fx.GraphModule, place: int) -> bool:
    """Does the graph use its input at this place?"""
    return bool([node for node in traced.graph.nodes if node.op == "placeholder"][place].users)


def _flat(b: Buffers) -> list[Tensor]:
    return [tensor for group in b.values() for tensor in group.values()]


def _called(traced: fx.GraphModule, b: Buffers) -> list[Tensor]:
    found: list[Tensor] = fx.Interpreter(traced).run(*_flat(b), enable_io_processing=False)
    return found


def _spread(rows: Tensor, named: dict[str, Tensor]) -> None:
    """Rows (slot, number) into tensors of a model, one after another."""
    begin = 0
    for tensor in named.values():
        end = begin + tensor[0].numel()
        tensor.copy_(rows[:, begin:end].reshape(tensor.shape))
        begin = end


def _gathered(named: dict[str, Tensor]) -> Tensor:
    return torch.cat(
        [tensor.flatten(1) if tensor.dim() > 1 else tensor[:, None] for tensor in named.values()], 1
    )
