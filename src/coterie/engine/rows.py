"""Models as rows: one flat vector per model, so that N models are a matrix."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.prng import mix

Build = Callable[[], nn.Module]
Part = Literal["all", "dense", "last"]


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the module lies in its part of the row."""

    name: str
    shape: torch.Size
    start: int
    stop: int


class Rows:
    """Turns a module into a row and back.

    A row holds the trained parameters first; behind them, as its tail, what is averaged but not trained:
    frozen parameters and floating buffers (batch-norm statistics). Whole-number buffers are not part of it;
    tied parameters appear once. Optimizers, proximal terms and distances use the parameter columns only.
    """

    def __init__(self, module: nn.Module):
        if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
            raise CoterieError(
                "the model has lazy layers, whose sizes are not known yet; give them their sizes"
            )
        self.template = module
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        kept = module.state_dict().keys()
        buffers = {n: b for n, b in module.named_buffers() if b.is_floating_point() and n in kept}
        if not trained:
            raise CoterieError("the model has no trainable parameters; at least one is needed")
        self.parameters = _slots(trained)
        self.tail = _slots({**frozen, **buffers})
        self.n_parameters = self.parameters[-1].stop
        self.width = self.n_parameters + (self.tail[-1].stop if self.tail else 0)

    def row_of(self, module: nn.Module) -> Tensor:
        """(width,) the numbers of a module of this shape."""
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([values[slot.name].detach().reshape(-1) for slot in (*self.parameters, *self.tail)])

    def views(self, parameters: Tensor, tail: Tensor) -> dict[str, Tensor]:
        """The two parts of a row as the module's named tensors, without copying."""
        named, fixed = self.cut(parameters, tail)
        return {**named, **fixed}

    def cut(self, parameters: Tensor, tail: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return _cut(parameters, self.parameters), _cut(tail, self.tail)

    def split(self, row: Tensor) -> tuple[Tensor, Tensor]:
        return row[..., : self.n_parameters], row[..., self.n_parameters :]

    def stepped(self, row: Tensor, toward: Tensor, step: float | Tensor) -> Tensor:
        """Parameters a part of the way from one row to another; the tail is the other's."""
        parameters, _ = self.split(row)
        aim, tail = self.split(toward)
        return torch.cat([torch.lerp(parameters, aim, step), tail], -1)

    def columns(self, part: Part) -> Tensor:
        """The parameter columns of a part of the model: all, those of dense layers, or the last dense weights."""
        if part == "all":
            return torch.arange(self.n_parameters)
        dense = {name for name, layer in self.template.named_modules() if isinstance(layer, nn.Linear)}
        slots = [s for s in self.parameters if s.name.rpartition(".")[0] in dense]
        if part == "last":
            slots = [s for s in slots if len(s.shape) == 2][-1:]
        if not slots:
            raise CoterieError(
                f"the model has no fully-connected layer, so it has no part {part!r}; allowed is 'all'"
            )
        return torch.cat([torch.arange(s.start, s.stop) for s in slots])

    def module_of(self, row: Tensor) -> nn.Module:
        """A module of the user's own class that holds this row."""
        module = copy.deepcopy(self.template)
        values = self.views(*self.split(row.detach().clone()))
        module.load_state_dict({**module.state_dict(), **values})
        return module.eval()


def _cut(part: Tensor, slots: list[Slot]) -> dict[str, Tensor]:
    # one split, not a slice each: its gradient is put together in one pass
    pieces = torch.split(part, [s.stop - s.start for s in slots]) if slots else ()
    return {s.name: piece.view(s.shape) for s, piece in zip(slots, pieces, strict=True)}


def _slots(named: Mapping[str, Tensor]) -> list[Slot]:
    slots, start = [], 0
    for name, tensor in named.items():
        slots.append(Slot(name, tensor.shape, start, start + tensor.numel()))
        start += tensor.numel()
    return slots


def factory(model: nn.Module | Build) -> Build:
    """A way to make fresh copies of the user's model, each newly initialised but for its frozen layers."""
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise CoterieError(
                f"model is {model!r}; allowed is an nn.Module, its class, or a function that builds one"
            )
        return model
    own = [m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    stuck = [type(m).__name__ for m in own if not hasattr(m, "reset_parameters")]
    if stuck:
        raise CoterieError(
            f"the model's {stuck[0]} has parameters but no reset_parameters(), so new random initialisations cannot be "
            "drawn from it; pass the class or a function that builds the model instead"
        )

    def build() -> nn.Module:
        fresh = copy.deepcopy(model)
        for module in fresh.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        with torch.no_grad():
            for new, given in zip(fresh.parameters(), model.parameters(), strict=True):
                if not given.requires_grad:
                    new.copy_(given)
        return fresh

    return build


def build_seeded(build: Build, seed: int, purpose: str) -> nn.Module:
    """A model whose random initialisation depends on seed and purpose alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(mix(seed, "initial", purpose)))
        try:
            module = build()
        except CoterieError:
            raise
        except Exception as problem:
            raise CoterieError(
                f"the model could not be built: {type(problem).__name__}: {problem}"
            ) from problem
    if not isinstance(module, nn.Module):
        raise CoterieError(f"the model is a {type(module).__name__}; it must be an nn.Module or build one")
    return module
