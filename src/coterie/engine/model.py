"""The user's model as a function of a row: its losses, its outputs, and the gradients of many rows at once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from coterie.data.federation import Task, are_integers
from coterie.data.images import Normalise, Pixels
from coterie.engine.layers import Prepared
from coterie.engine.rows import Build, Rows, build_seeded
from coterie.engine.scores import Outputs
from coterie.errors import CoterieError, SettingError, require

log = logging.getLogger("coterie")

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) -> one loss per point


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(1)


def cross_entropy(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(output, y, reduction="none")


def next_character(output: Tensor, y: Tensor) -> Tensor:
    """Outputs (point, time, character) against characters (point, time): the mean over time."""
    each = functional.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(y.shape).mean(1)


LOSSES: dict[Task, Loss] = {
    "regression": squared_error,
    "classification": cross_entropy,
    "next-character": next_character,
}

# FLOPs of a client's convolutions, from which on a CPU takes longer for a grouped one of several clients than for one
# client after another (benchmarks/evaluation.py)
APART = 2e7

Named = dict[str, Tensor]  # tensors of a module

# rows (client, width), x, y, weight, mask (client, batch, ...), key (client,) -> gradient, value, new tail
Step = tuple[Tensor, Tensor, Tensor]


class FunctionalModel:
    """One model shape, one loss, one device."""

    def __init__(
        self,
        build: Build,
        loss: Loss,
        *,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        chunk: int | None = None,
        normalise: Normalise | None = None,
        augment: bool = False,
        tf32: bool = False,
    ):
        require(
            chunk is None or chunk >= 1, "chunk", chunk, "1 or more, or None for as many as fit in memory"
        )
        self.chunk = chunk  # clients computed at once; None: as many as fit in memory
        self.build, self.loss, self.seed = build, loss, seed
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = dtype
        if self.device.type == "cuda":  # for the whole process: PyTorch has no other way to say it
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self._settings: dict[str, Any] = {
            "device": self.device,
            "seed": seed,
            "normalise": normalise,
            "augment": augment,
            "tf32": tf32,
        }
        self.pixels = Pixels(normalise, self.device, dtype, augment)
        template = build_seeded(build, seed, "template").to(self.device, dtype)
        self.rows = Rows(template)
        self.prepared = Prepared(template, on_gpu=self.device.type == "cuda")
        self.module = self.prepared.module
        self.meaning: Outputs | None = None  # of its outputs; None: what the task says
        self.integers = True  # does it take integers, or are they given as floats? found by probe
        self.vectorised = True  # can clients train together?
        self.evaluates_together = True  # can clients' own models be evaluated together?
        self.alone_in_evaluation = False  # may points of several clients share an evaluation batch?
        self.needs_two = False  # does a batch of one point fail (batch norm over single values)?
        # numbers a point leaves behind in a forward pass, and in one of a compiled step; measured by probe
        self.activations = self.training_activations = self.rows.width
        self.convolution_flops = 0  # those of PyTorch's own convolutions in a point's forward pass; likewise

    def initial(self, purpose: str) -> Tensor:
        """(width,) a random initialisation; the same on every machine that knows the seed."""
        module = build_seeded(self.build, self.seed, purpose).to(self.device, self.dtype)
        return self.rows.row_of(module)

    def memory_budget(self) -> int:
        """Bytes that one chunk of clients may take."""
        if self.device.type == "cuda":  # of all there is, not of what is free now: the chunks shall not vary
            total = torch.cuda.get_device_properties(self.device).total_memory
            return int(total * torch.cuda.get_per_process_memory_fraction() * 0.3)
        return 64 * 2**20  # small enough to stay near the processor

    def in_double_precision(self) -> FunctionalModel:
        return FunctionalModel(self.build, self.loss, dtype=torch.float64, **self._settings)

    # one row

    def outputs(self, row: Tensor, x: Tensor) -> Tensor:
        """Outputs of one row on points, as in use (no dropout, running statistics)."""
        self.module.eval()
        output: Tensor = functional_call(
            self.module, self.rows.views(*self.rows.split(row)), (self.pixels.read(x),)
        )
        return output

    def point_losses(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.outputs(row, x), y)

    def objective(
        self, parameters: Named, tail: Named, x: Tensor, y: Tensor, weight: Tensor, mask: Tensor, key: Tensor
    ) -> tuple[Tensor, Named]:
        """The weighted loss of one batch, and the model's tail after it."""
        named = {**parameters, **tail, **self.prepared.context(key, mask)}
        output = functional_call(self.module, named, (self.pixels.read(x),))
        return (self.loss(output, y) * weight).sum(), {**tail, **self.prepared.after()}

    def _objective_of_row(
        self,
        parameters: Tensor,
        tail: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        mask: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The same for a row that is not cut up."""
        value, named = self.objective(*self.rows.cut(parameters, tail), x, y, weight, mask, key)
        after = [named[slot.name].reshape(-1) for slot in self.rows.tail]
        return value, torch.cat(after) if after else tail

    # many rows

    def gradients(
        self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, mask: Tensor, key: Tensor
    ) -> Step:
        """One batch of each client: d(Σ weight·loss)/d(its row), the value, and the tails after it."""
        self.module.train()
        step = self.together if self.vectorised else self.one_by_one
        return step(rows, self.pixels.vary(x, key), y, weight, mask, key)

    def together(self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, mask: Tensor, key: Tensor) -> Step:
        parameters, tail = self.rows.split(rows)
        gradient, (value, tail) = vmap(grad_and_value(self._objective_of_row, has_aux=True))(
            parameters, tail, x, y, weight, mask, key
        )
        return gradient, value, tail

    def one_by_one(
        self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, mask: Tensor, key: Tensor
    ) -> Step:
        """The same by plain autograd, on batches without padding: for modules that vmap cannot take."""
        steps = []
        cuda = [self.device] if self.device.type == "cuda" else []
        for i in range(len(rows)):
            here = mask[i].bool()
            parameters, tail = self.rows.split(rows[i].detach())
            parameters = parameters.clone().requires_grad_()
            with torch.random.fork_rng(devices=cuda), torch.enable_grad():
                torch.manual_seed(int(key[i]))  # for dropout written as a function
                value, tail = self._objective_of_row(
                    parameters,
                    tail.clone(),
                    x[i][here],
                    y[i][here],
                    weight[i][here],
                    mask[i][:1] * 0 + 1,
                    key[i],
                )
                (gradient,) = torch.autograd.grad(value, parameters)
            steps.append((gradient, value.detach(), tail.detach()))
        gradients, values, tails = zip(*steps, strict=True)
        return torch.stack(gradients), torch.stack(values), torch.stack(tails)

    def evaluates_together_on(self, most_points: int) -> bool:
        """Are clients with models of their own, and so many points at the most, to be evaluated together?"""
        apart = self.device.type == "cpu" and self.convolution_flops * most_points >= APART
        return self.evaluates_together and not apart

    def takes_integers(self, inputs: Sequence[int]) -> bool:
        """Does it take whole numbers of this shape, as an embedding does, or floats alone, as a linear layer does?

        Tried with zeros and ones, so that all who have the model find the same, whatever their own data is.
        """
        row = self.rows.row_of(self.rows.template)
        for dtype in (torch.int64, self.dtype):
            for value in (0, 1):
                x = torch.full((2, *inputs), value, dtype=dtype, device=self.device)
                try:
                    with torch.no_grad():
                        self.outputs(row, x)
                    return dtype == torch.int64
                except Exception:  # a module of the user's may raise anything
                    continue
        # it takes neither: `probe` will say why, of what it was most likely made for
        return any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in self.module.modules())

    def taken(self, x: Tensor) -> Tensor:
        """Inputs on the device, as the model takes them; images stay uint8."""
        if are_integers(x):
            return x.to(self.device, torch.int64 if self.integers else self.dtype)
        return x.to(self.device, self.dtype) if x.is_floating_point() else x.to(self.device)

    def check_range(self, x: Tensor) -> None:
        """Integers are places in tables of the model: are the least and the greatest that there are within them?"""
        if not (are_integers(x) and self.integers and x.numel()):
            return
        template, flat = copy.deepcopy(self.rows.template).cpu().eval(), x.flatten(1)
        extremes = torch.cat([flat.argmin(0), flat.argmax(0)])
        try:
            with torch.no_grad():
                for some in torch.split(extremes, 64):
                    template(x[some].cpu().long())
        except Exception as problem:
            raise CoterieError(
                f"the model does not accept all inputs, which are whole numbers from {int(x.min())} to {int(x.max())}: "
                f"it says: {first_line(problem)}"
            ) from problem


def first_line(problem: Exception) -> str:
    """What an error of the user's code or of PyTorch says, for a sentence of ours."""
    said = str(problem).strip()
    return said.splitlines()[0] if said else type(problem).__name__


def as_device(name: torch.device | str | None) -> torch.device | None:
    """The device of that name; None for the best there is."""
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as problem:
        raise SettingError(
            "device", f"is {name!r}; allowed is 'cpu' or 'cuda', or None for the best"
        ) from problem
    there = device.type != "cuda" or torch.cuda.is_available()
    require(there, "device", name, "'cpu' or None, as this machine has no CUDA device")
    return device
