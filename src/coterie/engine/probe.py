"""Tries a model with a few points: does it fit the data, and can clients be computed together?"""

from __future__ import annotations

import copy
import logging

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.data.federation import are_integers
from coterie.engine.layers import StackedConv2d
from coterie.engine.model import FunctionalModel, first_line, squared_error
from coterie.errors import CoterieError

log = logging.getLogger("coterie")


def probe(model: FunctionalModel, x: Tensor, y: Tensor, classes: int = 0) -> None:
    """Try the model with a few points: does it fit the data, and can clients be computed together?

    It needs an output for each of the classes, if their number is given.
    """
    model.integers = not are_integers(x) or model.takes_integers(x.shape[1:])
    x, y = model.taken(x), y.to(model.device)
    _check_fit(model, x, y, classes)
    if not model.integers:
        log.info("the inputs are whole numbers, and the model takes floats: it is given them as floats")
    numbers, with_stacks, flops = _count(model.module, model.pixels.read(x[:1]), _named(model))
    model.activations, model.training_activations = max(1, numbers), max(1, with_stacks)
    model.convolution_flops = flops
    model.alone_in_evaluation = not _points_are_separate(model, x)
    model.needs_two = _refuses_one_point(model, x)
    try:
        reason = _why_not_together(model, x, y)
    except Exception as problem:
        raise CoterieError(
            f"the model cannot be trained on this data: a step of training says: {first_line(problem)}"
        ) from problem
    model.vectorised = reason is None
    model.evaluates_together = model.vectorised and _evaluates_together(model, x)
    if reason is not None:
        log.warning("clients are computed one by one, which is slower: %s", reason)


def _named(model: FunctionalModel) -> dict[str, Tensor]:
    return model.rows.views(*model.rows.split(model.rows.row_of(model.rows.template)))


def _check_fit(model: FunctionalModel, x: Tensor, y: Tensor, classes: int) -> None:
    row = model.rows.row_of(model.rows.template)
    try:
        output = model.outputs(row, x)
        _check_outputs(output.shape[-1] if output.ndim > 1 else 1, classes)
        losses = model.loss(output, y)
    except CoterieError:
        raise
    except Exception as problem:
        raise CoterieError(
            f"the model does not accept this data: on inputs of shape {tuple(x.shape)} and targets of shape "
            f"{tuple(y.shape)} it says: {first_line(problem)}"
        ) from problem
    each = output.numel() // len(x), y.numel() // len(y)
    if model.loss is squared_error and each[0] != each[1]:
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


def _points_are_separate(model: FunctionalModel, x: Tensor) -> bool:
    row = model.rows.row_of(model.rows.template)
    with torch.no_grad():
        whole, half = model.outputs(row, x), model.outputs(row, x[: max(1, len(x) // 2)])
    return _close(model, whole[: len(half)], half)


def _evaluates_together(model: FunctionalModel, x: Tensor) -> bool:
    rows = torch.stack([model.initial("probe 0"), model.initial("probe 1")])
    with torch.no_grad():
        apart = torch.stack([model.outputs(row, x) for row in rows])
        try:
            return _close(model, vmap(model.outputs)(rows, torch.stack([x, x])), apart)
        except Exception:  # vmap's own refusals have no class of their own
            return False


def _refuses_one_point(model: FunctionalModel, x: Tensor) -> bool:
    try:
        copy.deepcopy(model.rows.template).train()(model.pixels.read(x[:1]))
    except ValueError as problem:
        return "more than 1 value per channel" in str(problem)
    return False


def _why_not_together(model: FunctionalModel, x: Tensor, y: Tensor) -> str | None:
    """Take one step both ways, with one client's batch padded; say how they differ, if they do."""
    rows = torch.stack([model.initial("probe 0"), model.initial("probe 1")])
    x2, y2 = torch.stack([x, x]), torch.stack([y, y])
    mask = torch.ones(2, len(x), dtype=model.dtype, device=model.device)
    if len(x) > 2:
        mask[1, -1] = 0
    weight = mask / mask.sum(1, keepdim=True)
    key = torch.tensor([1, 2], device=model.device)
    model.module.train()
    apart = model.one_by_one(rows, x2, y2, weight, mask, key)
    if not all(part.isfinite().all() for part in apart):
        return None  # nothing to compare: the data is out of the model's range, which a run will say
    try:
        together = model.together(rows, x2, y2, weight, mask, key)
    except Exception as problem:
        return "the model cannot be vectorised (" + str(problem).strip().split(". ")[0].splitlines()[0] + ")"
    if all(_close(model, a, b) for a, b in zip(together, apart, strict=True)) or _only_rounds(model, x, y):
        return None
    return "one step of the vectorised model differs from the plain one"


def _only_rounds(model: FunctionalModel, x: Tensor, y: Tensor) -> bool:
    """Do the two ways agree in double precision? Batch norm of four points can make much of a rounding."""
    if model.dtype == torch.float64:
        return False
    x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
    try:
        return _why_not_together(model.in_double_precision(), x, y) is None
    except Exception:  # a model, a loss or a device that knows single precision alone
        return False


def _close(model: FunctionalModel, a: Tensor, b: Tensor) -> bool:
    slack = 1e-9 if model.dtype == torch.float64 else 1e-3
    return torch.allclose(
        a, b, rtol=slack, atol=slack * float(b.abs().max().clamp(min=1e-3)) if b.numel() else 0
    )


def _check_outputs(width: int, classes: int) -> None:
    if width < classes:
        raise CoterieError(
            f"the model puts out {width} numbers for a point, but labels go up to {classes - 1}; it needs {classes} "
            "outputs (labels count from 0; task='regression' predicts numbers)"
        )


def _count(module: nn.Module, x: Tensor, named: dict[str, Tensor]) -> tuple[int, int, int]:
    """Of a forward pass: numbers that leaves put out, those with what a compiled step stacks; convolutions' FLOPs."""
    total, stacked, flops = x.numel(), 0, 0

    def count(layer: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total, stacked, flops
        tensors = output if isinstance(output, tuple) else (output,)
        total += sum(t.numel() for t in tensors if isinstance(t, Tensor))
        if isinstance(layer, StackedConv2d) and isinstance(output, Tensor):
            if layer.always_stacks:
                total += layer.windows(output)
            else:
                stacked += layer.windows(output)
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and isinstance(output, Tensor):
            flops += 2 * layer.weight.numel() * output.numel() // layer.out_channels

    hooks = [m.register_forward_hook(count) for m in module.modules() if not list(m.children())]
    module.eval()
    with torch.no_grad():
        functional_call(module, named, (x,))
    for hook in hooks:
        hook.remove()
    return total, total + stacked, flops
