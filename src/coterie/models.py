"""The papers' models, and the user's own by name."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from coterie.checked import nearest
from coterie.errors import CoterieError, SettingError, require

Factory = Callable[[], nn.Module]


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Module:
    """Linear or, with a cross-entropy loss, logistic regression."""
    _require_counts(inputs=inputs, outputs=outputs)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias))


def mlp(inputs: int, outputs: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    _require_counts(inputs=inputs, outputs=outputs)
    _require_widths("hidden", hidden)
    return nn.Sequential(nn.Flatten(), *_dense([inputs, *hidden, outputs]))


def cnn(
    inputs: Sequence[int], outputs: int, channels: Sequence[int] = (32, 64), hidden: Sequence[int] = ()
) -> nn.Module:
    """Two 5x5 convolutions, each halving the (channel, height, width) image, then fully connected layers."""
    _require_counts(outputs=outputs)
    _require_widths("channels", channels)
    _require_widths("hidden", hidden)
    require(len(channels) == 2, "channels", channels, "two whole numbers, one for each convolution")
    if len(inputs) != 3 or min(inputs[1:]) < 4:
        allowed = "(channel, height, width) of 4x4 pixels or more"
        raise CoterieError(f"the shape of an input is {tuple(inputs)}; allowed is {allowed}")
    depth, height, width = inputs
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(depth, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_dense([second * (height // 4) * (width // 4), *hidden, outputs]),
    )


class CharLSTM(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.output(states)
        return logits


def char_lstm(vocabulary: int, embedding: int = 8, hidden: int = 64) -> nn.Module:
    """Predicts every next character: tokens (batch, time) to logits (batch, time, vocabulary)."""
    _require_counts(vocabulary=vocabulary, embedding=embedding, hidden=hidden)
    return CharLSTM(vocabulary, embedding, hidden)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "char_lstm": char_lstm,
}


def build(
    name: str, input_shape: Sequence[int], n_outputs: int, init: str | None = None, **settings: object
) -> Factory:
    """What makes a fresh model: one of MODELS sized for the data, or the user's own 'package.module:factory'.

    `init="xavier-normal"` draws every matrix from Xavier's normal distribution and sets biases to zero; otherwise
    a model starts as its layers do.
    """
    require(init in (None, "xavier-normal"), "init", init, "'xavier-normal', or nothing for the layers' own")
    make, sized = (_own(name), ()) if ":" in name else (_known(name), _sizes(name, input_shape, n_outputs))
    _check_settings(name, make, len(sized), settings)

    def factory() -> nn.Module:
        model = make(*sized, **settings)
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise SettingError("name", f"is {name!r}, which gave a {kind}; it must give a torch.nn.Module")
        if init == "xavier-normal":
            xavier_normal(model)
        return model

    return factory


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


def _own(name: str) -> Callable[..., nn.Module]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            "name", f"is {name!r}, which cannot be imported ({error}); {_allowed()}"
        ) from error
    require(callable(found), "name", name, "what can be called to make a torch.nn.Module")
    return found  # type: ignore[no-any-return]


def _sizes(name: str, input_shape: Sequence[int], n_outputs: int) -> tuple[object, ...]:
    """The arguments of a known model that come from the data."""
    if name == "cnn":
        return tuple(input_shape), n_outputs
    if name == "char_lstm":
        return (n_outputs,)
    return math.prod(input_shape), n_outputs


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
    return f"allowed is {', '.join(MODELS)}, or your own as 'package.module:factory'"


def _dense(widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers from width to width, with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require_counts(**counts: object) -> None:
    for name, value in counts.items():
        require(_is_count(value), name, value, "a whole number from 1")


def _require_widths(name: str, widths: object) -> None:
    right = isinstance(widths, list | tuple) and all(_is_count(w) for w in widths)
    require(right, name, widths, "a list of whole numbers from 1")
