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
from coterie.engine.layers import Prepared, StackedConv2d
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
        step = self._together if self.vectorised else self._one_by_one
        return step(rows, self.pixels.vary(x, key), y, weight, mask, key)

    def _together(
        self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, mask: Tensor, key: Tensor
    ) -> Step:
        parameters, tail = self.rows.split(rows)
        gradient, (value, tail) = vmap(grad_and_value(self._objective_of_row, has_aux=True))(
            parameters, tail, x, y, weight, mask, key
        )
        return gradient, value, tail

    def _one_by_one(
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

    # the probe

    def probe(self, x: Tensor, y: Tensor, classes: int = 0) -> None:
        """Try the model with a few points: does it fit the data, and can clients be computed together?

        It needs an output for each of the classes, if their number is given.
        """
        self.integers = not are_integers(x) or self.takes_integers(x.shape[1:])
        x, y = self.taken(x), y.to(self.device)
        self._check_fit(x, y, classes)
        if not self.integers:
            log.info("the inputs are whole numbers, and the model takes floats: it is given them as floats")
        numbers, with_stacks, flops = _count(self.module, self.pixels.read(x[:1]), self._named())
        self.activations, self.training_activations = max(1, numbers), max(1, with_stacks)
        self.convolution_flops = flops
        self.alone_in_evaluation = not self._points_are_separate(x)
        self.needs_two = self._refuses_one_point(x)
        try:
            reason = self._why_not_together(x, y)
        except Exception as problem:
            raise CoterieError(
                f"the model cannot be trained on this data: a step of training says: {first_line(problem)}"
            ) from problem
        self.vectorised = reason is None
        self.evaluates_together = self.vectorised and self._evaluates_together(x)
        if reason is not None:
            log.warning("clients are computed one by one, which is slower: %s", reason)

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

    def _named(self) -> dict[str, Tensor]:
        return self.rows.views(*self.rows.split(self.rows.row_of(self.rows.template)))

    def _check_fit(self, x: Tensor, y: Tensor, classes: int) -> None:
        row = self.rows.row_of(self.rows.template)
        try:
            output = self.outputs(row, x)
            _check_outputs(output.shape[-1] if output.ndim > 1 else 1, classes)
            losses = self.loss(output, y)
        except CoterieError:
            raise
        except Exception as problem:
            raise CoterieError(
                f"the model does not accept this data: on inputs of shape {tuple(x.shape)} and targets of shape "
                f"{tuple(y.shape)} it says: {first_line(problem)}"
            ) from problem
        each = output.numel() // len(x), y.numel() // len(y)
        if self.loss is squared_error and each[0] != each[1]:
            raise CoterieError(
                f"the model puts out {each[0]} numbers for a point and the target has {each[1]}; both must agree "
                "(targets of a float type are numbers to predict; task='classification' makes them labels)"
            )
        if not isinstance(losses, Tensor) or not losses.is_floating_point():
            kind = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
            raise CoterieError(f"the loss gives {kind}; it must give a tensor of floats, one for each point")
        if losses.shape != (len(x),):
            raise CoterieError(
                f"the loss gives shape {tuple(losses.shape)}; it must give one number per point "
                "(PyTorch's losses do with reduction='none')"
            )

    def _points_are_separate(self, x: Tensor) -> bool:
        row = self.rows.row_of(self.rows.template)
        with torch.no_grad():
            whole, half = self.outputs(row, x), self.outputs(row, x[: max(1, len(x) // 2)])
        return self._close(whole[: len(half)], half)

    def _evaluates_together(self, x: Tensor) -> bool:
        rows = torch.stack([self.initial("probe 0"), self.initial("probe 1")])
        with torch.no_grad():
            apart = torch.stack([self.outputs(row, x) for row in rows])
            try:
                return self._close(vmap(self.outputs)(rows, torch.stack([x, x])), apart)
            except Exception:  # vmap's own refusals have no class of their own
                return False

    def _refuses_one_point(self, x: Tensor) -> bool:
        try:
            copy.deepcopy(self.rows.template).train()(self.pixels.read(x[:1]))
        except ValueError as problem:
            return "more than 1 value per channel" in str(problem)
        return False

    def _why_not_together(self, x: Tensor, y: Tensor) -> str | None:
        """Take one step both ways, with one client's batch padded; say how they differ, if they do."""
        rows = torch.stack([self.initial("probe 0"), self.initial("probe 1")])
        x2, y2 = torch.stack([x, x]), torch.stack([y, y])
        mask = torch.ones(2, len(x), dtype=self.dtype, device=self.device)
        if len(x) > 2:
            mask[1, -1] = 0
        weight = mask / mask.sum(1, keepdim=True)
        key = torch.tensor([1, 2], device=self.device)
        self.module.train()
        apart = self._one_by_one(rows, x2, y2, weight, mask, key)
        if not all(part.isfinite().all() for part in apart):
            return None  # nothing to compare: the data is out of the model's range, which a run will say
        try:
            together = self._together(rows, x2, y2, weight, mask, key)
        except Exception as problem:
            return (
                "the model cannot be vectorised (" + str(problem).strip().split(". ")[0].splitlines()[0] + ")"
            )
        if all(self._close(a, b) for a, b in zip(together, apart, strict=True)) or self._only_rounds(x, y):
            return None
        return "one step of the vectorised model differs from the plain one"

    def _only_rounds(self, x: Tensor, y: Tensor) -> bool:
        """Do the two ways agree in double precision? Batch norm of four points can make much of a rounding."""
        if self.dtype == torch.float64:
            return False
        x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
        try:
            exact = FunctionalModel(self.build, self.loss, dtype=torch.float64, **self._settings)
            return exact._why_not_together(x, y) is None
        except Exception:  # a model, a loss or a device that knows single precision alone
            return False

    def _close(self, a: Tensor, b: Tensor) -> bool:
        slack = 1e-9 if self.dtype == torch.float64 else 1e-3
        return torch.allclose(
            a, b, rtol=slack, atol=slack * float(b.abs().max().clamp(min=1e-3)) if b.numel() else 0
        )


def _check_outputs(width: int, classes: int) -> None:
    if width < classes:
        raise CoterieError(
            f"the model puts out {width} numbers for a point, but labels go up to {classes - 1}; it needs {classes} "
            "outputs (labels count from 0; task='regression' predicts numbers)"
        )


def first_line(problem: Exception) -> str:
    """What an error of the user's code or of PyTorch says, for a sentence of ours."""
    said = str(problem).strip()
    return said.splitlines()[0] if said else type(problem).__name__


def _count(module: nn.Module, x: Tensor, named: dict[str, Tensor]) -> tuple[int, int, int]:
    """Of a forward pass: numbers that leaves put out, those with what a compiled step stacks; convolutions' FLOPs."""
    total, stacked, flops = x.numel(), 0, 0

    def count(layer: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total, stacked, flops
        tensors = output if isinstance(output, tuple) else (output,)
        total += sum(t.numel() for t in tensors if isinstance(t, Tensor))
        if isinstance(layer, StackedConv2d) and isinstance(output, Tensor):
            stacked += 0 if layer.always_stacks else layer.windows(output)
            total += layer.windows(output) if layer.always_stacks else 0
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and isinstance(output, Tensor):
            flops += 2 * layer.weight.numel() * output.numel() // layer.out_channels

    hooks = [m.register_forward_hook(count) for m in module.modules() if not list(m.children())]
    module.eval()
    with torch.no_grad():
        functional_call(module, named, (x,))
    for hook in hooks:
        hook.remove()
    return total, total + stacked, flops


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
