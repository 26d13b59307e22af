"""The models, by hand and by name."""

import math
import sys
import types

import pytest
import torch
from torch import nn

from coterie.errors import CoterieError
from coterie.models import MODELS, build, builds_model, char_cnn, char_lstm, cnn, linear, mlp


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_linear_is_linear():
    model = linear(3, 2)
    x = torch.randn(5, 3)
    weight, bias = model.parameters()
    assert torch.allclose(model(x), x @ weight.T + bias)
    assert torch.equal(linear(3, 2, bias=False)(torch.zeros(1, 3)), torch.zeros(1, 2))
    assert size(linear(3, 2, bias=False)) == 6


def test_mlp_by_hand():
    model = mlp(4, 3, hidden=(5, 6))
    w1, b1, w2, b2, w3, b3 = model.parameters()
    x = torch.randn(7, 2, 2)
    hidden = torch.relu(torch.relu(x.flatten(1) @ w1.T + b1) @ w2.T + b2)
    assert torch.allclose(model(x), hidden @ w3.T + b3, atol=1e-6)
    assert size(mlp(64, 10)) == 64 * 64 + 64 + 64 * 10 + 10


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 5, 7)])
def test_cnn_fits_the_image(shape):
    model = cnn(shape, 10)
    assert model(torch.randn(2, *shape)).shape == (2, 10)
    convolutions = 25 * shape[0] * 32 + 32 + 25 * 32 * 64 + 64
    assert size(model) == convolutions + 64 * (shape[1] // 4) * (shape[2] // 4) * 10 + 10


def test_cnn_with_a_hidden_layer():
    assert cnn((1, 28, 28), 10, hidden=(512,))(torch.randn(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("make", [char_lstm, char_cnn])
def test_models_of_text_predict_every_character_from_those_before(make):
    model = make(20)
    tokens = torch.randint(20, (3, 9))
    logits = model(tokens)
    assert logits.shape == (3, 9, 20)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 20
    assert torch.allclose(model(changed)[:, :5], logits[:, :5])
    assert not torch.allclose(model(changed)[:, 5:], logits[:, 5:])


@pytest.mark.parametrize(
    ("name", "shape", "x"),
    [
        ("linear", (1, 8, 8), torch.randn(2, 1, 8, 8)),
        ("mlp", (64,), torch.randn(2, 64)),
        ("cnn", (1, 8, 8), torch.randn(2, 1, 8, 8)),
        ("char_lstm", (6,), torch.randint(10, (2, 6))),
        ("char_cnn", (3,), torch.randint(10, (2, 3))),
    ],
)
def test_build_sizes_a_model_for_the_data(name, shape, x):
    model = build(name, shape, 10)()
    assert model(x).shape[-1] == 10
    assert build(name, shape, 10)() is not model


def test_every_model_is_listed_by_its_name():
    assert {"linear": linear, "mlp": mlp, "cnn": cnn, "char_lstm": char_lstm}.items() <= MODELS.items()
    assert all(make.__name__ == name for name, make in MODELS.items())


def test_settings_reach_the_model():
    assert size(build("linear", (10,), 1, bias=False)()) == 10
    assert size(build("mlp", (4,), 2, hidden=[3])()) == 4 * 3 + 3 + 3 * 2 + 2


def test_a_factory_makes_models_that_are_initialised_differently():
    factory = build("linear", (10,), 1)
    assert not torch.equal(next(factory().parameters()), next(factory().parameters()))


def test_xavier_normal():
    torch.manual_seed(0)
    model = build("mlp", (300,), 100, hidden=[200], init="xavier-normal")()
    for module in model:
        if isinstance(module, nn.Linear):
            expected = math.sqrt(2 / (module.in_features + module.out_features))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.03)
            assert not module.bias.any()
    flat = model[1].weight.detach().flatten()
    # A uniform draw of the same spread would end at sqrt(3) deviations.
    assert float(flat.abs().max()) > 3 * float(flat.std())


def test_xavier_normal_leaves_normalisations_alone(monkeypatch):
    module = types.ModuleType("some_models")
    module.normed = builds_model(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    monkeypatch.setitem(sys.modules, "some_models", module)
    model = build("some_models:normed", (3,), 4, init="xavier-normal")()
    assert torch.equal(model[1].weight, torch.ones(4))
    assert not model[0].bias.any()


def test_own_factory(monkeypatch):
    module = types.ModuleType("my_models")
    module.Net = builds_model(lambda width=5: nn.Linear(2, width))
    module.not_a_model = builds_model(lambda: 3)
    module.number = 3
    monkeypatch.setitem(sys.modules, "my_models", module)
    assert build("my_models:Net", (2,), 9)().out_features == 5
    assert build("my_models:Net", (2,), 9, width=7)().out_features == 7
    with pytest.raises(
        CoterieError,
        match=r"name is 'my_models:not_a_model', which gave a int; it must give a torch.nn.Module",
    ):
        build("my_models:not_a_model", (2,), 9)()
    with pytest.raises(
        CoterieError,
        match="name is 'my_models:number', which is not known to build a model; allowed is a subclass",
    ):
        build("my_models:number", (2,), 9)
    with pytest.raises(
        CoterieError, match="widht is not a setting of 'my_models:Net', the nearest is 'width'"
    ):
        build("my_models:Net", (2,), 9, widht=7)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        (
            "mpl",
            {},
            "name is 'mpl', the nearest is 'mlp'; allowed is linear, mlp, cnn, .*char_cnn, leaf_lstm, or your",
        ),
        ("char-lstm", {}, "the nearest is 'char_lstm'"),
        ("no.such.module:Net", {}, "name is 'no.such.module:Net', which cannot be imported"),
        ("math:Net", {}, "name names the module 'math' of Python itself, which has no models; allowed is"),
        (":Net", {}, "name is ':Net'; your own model is written 'module:Net'"),
        (
            "mlp",
            {"hiden": [3]},
            "hiden is not a setting of 'mlp', the nearest is 'hidden'; its settings are hidden",
        ),
        ("mlp", {"outputs": 3}, "outputs is not a setting of 'mlp'"),
        ("mlp", {"hidden": [0]}, r"hidden is \[0\]; allowed is a list of whole numbers from 1"),
        ("mlp", {"hidden": 64}, "hidden is 64; allowed is a list"),
        ("cnn", {}, r"the shape of an input is \(64,\); allowed is \(channel, height, width\)"),
        ("linear", {"init": "xavier"}, "init is 'xavier'; allowed is 'xavier-normal'"),
        ("char_lstm", {"embedding": 0}, "embedding is 0; allowed is a whole number from 1"),
    ],
)
def test_mistakes(name, settings, sentence):
    with pytest.raises(CoterieError, match=sentence):
        build(name, (64,), 10, **settings)()
