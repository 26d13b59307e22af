"""The papers' models, and the user's own by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from coterie.errors import SettingError, require
from coterie.memory import require_memory
from coterie.models.general import cnn, linear, mlp
from coterie.models.mobilenet import mobilenet_v2
from coterie.models.own import builds_model as builds_model
from coterie.models.own import own_model
from coterie.models.papers import (
    fedsoft_cifar,
    fedsoft_letters,
    fedspd_cifar,
    fedspd_mnist,
    lenet,
    wecfl_fashion,
)
from coterie.models.text import char_cnn, char_lstm, leaf_lstm
from coterie.validation import nearest

Factory = Callable[[], nn.Module]


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "fedsoft_letters": fedsoft_letters,
    "fedsoft_cifar": fedsoft_cifar,
    "wecfl_fashion": wecfl_fashion,
    "lenet": lenet,
    "fedspd_mnist": fedspd_mnist,
    "fedspd_cifar": fedspd_cifar,
    "mobilenet_v2": mobilenet_v2,
    "char_lstm": char_lstm,
    "char_cnn": char_cnn,
    "leaf_lstm": leaf_lstm,
}


def build(
    name: str,
    input_shape: Sequence[int],
    n_outputs: int,
    init: str | None = None,
    folder: Path | str | None = None,
    **settings: object,
) -> Factory:
    """What makes a fresh model: one of MODELS sized for the data, or the user's own 'module:Net'.

    The user's own is looked for in `folder`, where there is one, then among installed packages; see own.py.

    `init="xavier-normal"` draws every matrix from Xavier's normal distribution and sets biases to zero; otherwise
    a model is initialised as its layers are.
    """
    require(init in (None, "xavier-normal"), "init", init, "'xavier-normal', or nothing for the layers' own")
    make = own_model(name, None if folder is None else Path(folder)) if ":" in name else _known(name)
    sized = () if ":" in name else _sizes(name, input_shape, n_outputs)
    _check_settings(name, make, len(sized), settings)
    if ":" not in name:
        _check_memory(name, lambda: make(*sized, **settings))

    def factory() -> nn.Module:
        model = make(*sized, **settings)
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise SettingError("name", f"is {name!r}, which gave a {kind}; it must give a torch.nn.Module")
        if init == "xavier-normal":
            xavier_normal(model)
        return model

    return factory


def _check_memory(name: str, make: Factory) -> None:
    """Would a model of ours fit into memory? On the device "meta" it has shapes and no numbers."""
    try:
        with torch.device("meta"):
            numbers = sum(parameter.numel() for parameter in make().parameters())
    except (RuntimeError, OverflowError, TypeError):  # sizes that PyTorch cannot count
        numbers = 2**63
    require_memory(4 * numbers, f"the model {name!r} with these settings")


def xavier_normal(model: nn.Module) -> None:
    """Every matrix by Xavier's normal distribution, every bias zero; scales of normalisations are left alone."""
    for name, parameter in model.named_parameters():
        if "bias" in name.rpartition(".")[2]:
            nn.init.zeros_(parameter)
        elif parameter.ndim >= 2:
            nn.init.xavier_normal_(parameter)


def _known(name: str) -> Callable[..., nn.Module]:
    if name in MODELS:
        return MODELS[name]
    raise SettingError("name", f"is {name!r}{nearest(name, MODELS)}; {_allowed()}")


def _sizes(name: str, input_shape: Sequence[int], n_outputs: int) -> tuple[object, ...]:
    """The arguments of a known model that come from the data; its first one's name says which."""
    first = next(iter(inspect.signature(MODELS[name]).parameters))
    if first == "vocabulary":
        return (n_outputs,)
    return tuple(input_shape) if first == "image" else math.prod(input_shape), n_outputs


def _check_settings(
    name: str, make: Callable[..., nn.Module], from_data: int, settings: dict[str, object]
) -> None:
    if not settings:
        return
    parameters = list(inspect.signature(make).parameters.values())[from_data:]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return
    allowed = [p.name for p in parameters]
    for setting in settings:
        if setting not in allowed:
            known = f"its settings are {', '.join(allowed)}" if allowed else "it has no settings"
            raise SettingError(setting, f"is not a setting of {name!r}{nearest(setting, allowed)}; {known}")


def _allowed() -> str:
    return f"allowed is {', '.join(MODELS)}, or your own as 'module:Net'"
