"""When the step is compiled or recorded, and in how many slots: decided from the work ahead, never from a clock.

On a CPU every call decides by its own work alone, so that a run that is resumed decides, and rounds, the same way
again. On a GPU, where bits are not promised, steps are taken that are there already, or that were compiled before.

On a GPU a step that is not worth the time to compile is recorded as it is, which takes a second and spares the host's
work, most of what a plain step of a small model takes.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from coterie.engine.batches import table_bytes
from coterie.engine.compile.too_large import TooLarge
from coterie.engine.model import FunctionalModel
from coterie.engine.training import Training

if TYPE_CHECKING:
    from coterie.engine.compile.step import CompiledStep

log = logging.getLogger("coterie.engine.compile.policy")

Compile = Literal["auto"] | bool

PAYS = {"cpu": 60.0, "cuda": 20.0}  # seconds of plain work ahead, from which on compiling a step pays
RECORDING_PAYS = 2.0  # likewise, on a GPU
OPERATIONS = 4000  # of a step at the most; compiling a larger one takes many minutes
SHAPES = 6  # of a GPU: steps of one kind of training that are made at the most, for other numbers of slots
NEAR = 1.25  # a step that is there already is taken if it costs no more than so many times the best one
CACHE = 8 * 2**20  # bytes of a core's slots that stay near it

# rough figures of machines, to weigh the work without compiling: bytes a second, FLOPs a second of convolutions with
# weights of each client's own (2e10 to 1e11 on CPUs, small ones least; not measured on a GPU), and seconds that a step
# takes anyway
_PLAIN_SPEED = {"cpu": 7e9, "cuda": 1e12}
_PLAIN_CONVOLUTIONS = {"cpu": 3e10, "cuda": math.inf}
_PLAIN_STEP = {"cpu": 1e-3, "cuda": 8e-3}  # of a GPU 9 to 11 ms were measured, with convolutions
_SECONDS_AN_OPERATION = {"cpu": 0.15, "cuda": 0.04}  # to compile it
_STEP_SLOTS = {"cpu": 0, "cuda": 8}  # a compiled step's own time: as much as so many slots take ...
_STEP_BYTES = {"cpu": 5e5, "cuda": 6e7}  # ... and as so many bytes


class Compiler:
    """Keeps the compiled steps of a network."""

    def __init__(self, model: FunctionalModel, compile: Compile, store: Tensor, clients: int, longest: int):
        self.model, self.store, self.clients, self.longest = model, store, clients, longest
        known = model.device.type in _PLAIN_SPEED  # of other devices there are no figures
        self.pays = PAYS.get(model.device.type, 0.0)
        self.always, self.off = compile is True, compile is False or not known
        self.more_rounds = 0  # besides those of the method at hand: of others with such steps
        self.steps: dict[tuple[object, ...], dict[int, CompiledStep]] = {}  # by kind, by slots
        self.operations: dict[tuple[object, ...], int] = {}  # of a step, by kind, where one was traced
        self.held: dict[
            tuple[object, ...], int
        ] = {}  # slots that memory holds, by kind, where it once did not

    def step_for(
        self,
        training: Training,
        x: Tensor,
        y: Tensor,
        steps: Sequence[int],
        per_client: int,
        pulled: bool,
        rounds: int | None,
    ) -> CompiledStep | None:
        """The step for problems of so many steps, longest first; None: they are to run as they are.

        Every client has `per_client` problems, and as many are expected in each of `rounds` rounds and of those that
        other methods are to play; None: these are all there will be.
        """
        if self.off or not steps or x is not self.store or not self.model.vectorised:
            return None
        batch = min(training.batch_size or self.longest, self.longest)
        optimizer = (
            training.optimizer,
            training.momentum,
            training.nesterov,
            training.betas,
            training.epsilon,
        )
        kind = (batch, pulled, y.shape[1:], training.weight_decay, optimizer)
        known = self.steps.setdefault(kind, {})
        most = min(self.clients * per_client, self.held.get(kind, self.clients * per_client))
        best = self._slots(training, batch, steps, most, known, pulled)
        times = 1 if rounds is None else rounds + self.more_rounds
        plain = self._plain_seconds(training, batch, steps) * times
        if best in known and self._serves(known[best], plain):
            return known[best]
        # the rest of the time moves numbers, of which a recorded step moves more: every slot's
        waiting = steps[0] * _PLAIN_STEP[self.model.device.type] * times
        on_gpu = self.model.device.type == "cuda"
        may_record = on_gpu and waiting > 2 / 3 * plain
        pays = RECORDING_PAYS if may_record else self.pays
        if not (self.always or plain > pays) or (on_gpu and len(known) >= SHAPES and best not in known):
            return None
        if not may_record and self._worth(plain) < self.operations.get(kind, 0):
            return None
        known.pop(best, None)  # a recorded step that is replaced: its memory is wanted
        try:
            step = self._made(training, y, best, batch, pulled, plain, may_record)
        except TooLarge as problem:
            log.log(logging.WARNING if self.always else logging.INFO, "steps are not compiled: %s", problem)
            self.operations[kind] = problem.operations
            return None
        if step is not None:
            known[step.slots], self.operations[kind] = step, step.operations
            if step.slots < best:
                self.held[kind] = step.slots
        return step

    def _serves(self, step: CompiledStep, plain: float) -> bool:
        """Is a step that is there what this work would have made?"""
        if self.model.device.type == "cpu":
            return self.always or (plain > self.pays and step.operations <= self._worth(plain))
        return not step.recorded or step.operations > self._worth(plain)

    def _slots(
        self,
        training: Training,
        batch: int,
        steps: Sequence[int],
        most: int,
        known: dict[int, CompiledStep],
        pulled: bool,
    ) -> int:
        """How many slots take the least time: few slots wait less for long problems, many share a step."""
        each = self._slot_bytes(training, batch, pulled, self.model.training_activations)
        kind = self.model.device.type
        own = _STEP_SLOTS[kind] + _STEP_BYTES[kind] / each

        def cost(slots: int) -> float:
            return sum(steps[i] for i in range(0, len(steps), slots)) * (slots + own)

        tables = table_bytes(training, batch, self.longest)
        sizes = [max(1, min(most, self._most_slots(each, tables)))]
        while sizes[-1] > 1:
            sizes.append(min(sizes[-1] - 1, round(sizes[-1] * 0.8)))
        if kind == "cpu":  # by their number alone, so that a resumed run comes to the same bits
            return min((size for size in sizes if size >= len(steps)), default=sizes[0])
        best = min(sizes, key=cost)
        near = min(known, key=cost, default=best)
        return near if cost(near) <= NEAR * cost(best) else best

    def _most_slots(self, each: float, tables: int) -> int:
        """What memory holds; of a CPU, what its cores keep near them."""
        if self.model.chunk is not None:
            return self.model.chunk
        fit = int(self.model.memory_budget() / (2 * each + tables))
        if self.model.device.type == "cuda":
            return fit
        return min(max(1, fit), torch.get_num_threads() * max(1, int(CACHE / each)))

    def _slot_bytes(self, training: Training, batch: int, pulled: bool, activations: int) -> float:
        """What a step reads and writes of a slot, more or less, if each point leaves so many numbers behind."""
        rows = 2 + len(training.state_names()) + int(pulled)
        numbers = rows * self.model.rows.width + 2 * batch * activations
        return float(numbers * torch.finfo(self.model.dtype).bits // 8)

    def _plain_seconds(self, training: Training, batch: int, steps: Sequence[int]) -> float:
        """About how long these problems take without compiling."""
        kind = self.model.device.type
        moved = 3 * self._slot_bytes(training, batch, False, self.model.activations) / _PLAIN_SPEED[kind]
        computed = 3 * batch * self.model.convolution_flops / _PLAIN_CONVOLUTIONS[kind]
        return sum(steps) * (moved + computed) + steps[0] * _PLAIN_STEP[kind]

    def _worth(self, plain: float) -> int:
        """How many operations may be compiled in half the time that they would take without."""
        if self.always:
            return OPERATIONS
        return min(OPERATIONS, int(plain / 2 / _SECONDS_AN_OPERATION[self.model.device.type]))

    def _made(
        self,
        training: Training,
        y: Tensor,
        slots: int,
        batch: int,
        pulled: bool,
        plain: float,
        may_record: bool,
    ) -> CompiledStep | None:
        """The step; None: it cannot be."""
        missing = _what_is_missing()
        if missing:
            log.warning("steps are not compiled: %s", missing)
            self.off = True
            return None
        try:
            from coterie.engine.compile.step import CompiledStep  # here, since Inductor comes with it

            return CompiledStep(
                self.model,
                training,
                self.store,
                y,
                slots=slots,
                batch=batch,
                pulled=pulled,
                most_operations=self._worth(plain),
                may_record=may_record,
                why="as asked for"
                if self.always
                else f"without it there are about {plain:.0f} s of work ahead",
            )
        except torch.cuda.OutOfMemoryError:
            if slots == 1:
                raise
        except TooLarge:
            raise
        except Exception as problem:  # a compiler's refusals have no class in common
            said = str(problem).strip().splitlines() or [type(problem).__name__]
            log.warning("steps are not compiled: %s", said[0])
            self.off = True
            return None
        # not inside the except above: the error would hold on to what it could not get enough of
        return self._made(training, y, slots // 2, batch, pulled, plain, may_record)


def _what_is_missing() -> str | None:
    """Inductor writes C++ for a CPU; Triton needs a C compiler to load what it writes for a GPU."""
    names = (os.environ.get("CXX"), "g++", "clang++", "gcc", "clang")
    if any(shutil.which(name) for name in names if name):
        return None
    return "there is no C++ compiler (g++ or clang++) on this machine"
