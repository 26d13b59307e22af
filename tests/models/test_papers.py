"""The papers' models: their sizes by hand, their shapes, and through the engine as through plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie import ALGORITHMS, Federation, Points, Stage, Stages, Training
from coterie.backends.simulation import simulate
from coterie.errors import CoterieError
from coterie.models import MODELS, build
from coterie.protocol.coordinator import Coordinator
from tests.builders import CPU, F64
from tests.reference import Client, train

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def conv(before: int, after: int, kernel: int) -> int:
    return after * (before * kernel * kernel + 1)


def dense(before: int, after: int) -> int:
    return (before + 1) * after


def lstm(before: int, hidden: int) -> int:
    return 4 * hidden * (before + hidden + 2)  # PyTorch has two biases


SIZES = {
    "linear": (MNIST, 10, dense(784, 10)),
    "mlp": (MNIST, 10, dense(784, 200) + dense(200, 10)),
    "fedsoft_letters": (MNIST, 26, 1_671_578),  # "1.67 million"
    "fedsoft_cifar": (
        CIFAR,
        10,
        sum(conv(a, b, 3) for a, b in [(3, 32), (32, 64), (64, 128), (128, 128), (128, 256), (256, 256)])
        + dense(256 * 4 * 4, 1024)
        + dense(1024, 512)
        + dense(512, 10),
    ),
    "wecfl_fashion": (MNIST, 10, conv(1, 16, 5) + 2 * 16 + conv(16, 32, 5) + 2 * 32 + dense(7 * 7 * 32, 10)),
    "lenet": (CIFAR, 10, 62_006),  # Table 4; the well-known size of LeNet on CIFAR
    "fedspd_mnist": (MNIST, 10, conv(1, 10, 5) + conv(10, 20, 5) + dense(20 * 49, 50) + dense(50, 10)),
    "fedspd_cifar": (
        CIFAR,
        10,
        conv(3, 128, 5) + conv(128, 128, 5) + conv(128, 256, 3) + conv(256, 256, 3) + 2 * (2 * 128 + 2 * 256)
        + dense(256 * 8 * 8, 1024) + 2 * 1024 + dense(1024, 512) + 2 * 512 + dense(512, 10),
    ),
    "mobilenet_v2": ((3, 224, 224), 1000, 3_504_872),  # "3.4M" in its paper; the common count with 1000 classes
    "leaf_lstm": ((80,), 80, 80 * 8 + lstm(8, 256) + lstm(256, 256) + dense(256, 80)),
}  # fmt: skip
OF_TEXT = ("char_lstm", "char_cnn", "leaf_lstm")


@pytest.mark.parametrize("name", SIZES)
def test_size(name: str) -> None:
    shape, outputs, expected = SIZES[name]
    settings = {"hidden": [200]} if name == "mlp" else {}
    model = build(name, shape, outputs, **settings)()
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("name", [n for n in MODELS if n not in OF_TEXT])
@pytest.mark.parametrize("shape", [MNIST, CIFAR])
def test_every_image_model_takes_mnist_and_cifar(name: str, shape: tuple[int, ...]) -> None:
    settings = {"width": 0.1} if name == "mobilenet_v2" else {}
    assert build(name, shape, 7, **settings)()(torch.randn(2, *shape)).shape == (2, 7)


def test_mobilenet_keeps_more_of_small_images() -> None:
    seen: list[tuple[int, ...]] = []
    for shape in (CIFAR, (3, 64, 64)):
        model = build("mobilenet_v2", shape, 10, width=0.1)().eval()
        model[-3].register_forward_pre_hook(lambda _m, x: seen.append(tuple(x[0].shape[2:])))
        model(torch.randn(1, *shape))
    assert seen == [(4, 4), (2, 2)]  # 32 / 8, and 64 / 32


def test_fedspd_cifar_has_its_layers_in_order() -> None:
    block = ["Conv2d", "BatchNorm2d", "ReLU"] * 2 + ["MaxPool2d", "Dropout2d"]
    dense = ["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 2
    kinds = [type(layer).__name__ for layer in build("fedspd_cifar", CIFAR, 10)()]
    assert kinds == [*block, *block, "Flatten", *dense, "Linear"]


def test_mobilenet_has_a_bounded_relu_wherever_it_does_not_narrow() -> None:
    model = build("mobilenet_v2", CIFAR, 10)()
    kinds = [type(layer).__name__ for layer in model.modules()]
    assert kinds.count("Bottleneck") == 17
    # the first convolution, the last one, and two of each bottleneck except the first, which does not widen
    assert kinds.count("ReLU6") == 1 + 1 + 2 * 17 - 1
    assert kinds.count("ReLU") == 0


def test_fedsoft_as_published_has_no_relu_and_puts_out_probabilities() -> None:
    written, published = (build("fedsoft_letters", MNIST, 26, published=p)() for p in (False, True))
    published.load_state_dict(dict(zip(published.state_dict(), written.state_dict().values(), strict=True)))
    x = torch.randn(3, *MNIST)
    conv1, conv2, hidden, last = (m for m in written if isinstance(m, nn.Conv2d | nn.Linear))
    pool = nn.MaxPool2d(2)
    flat = pool(conv2(pool(conv1(x)))).flatten(1)
    torch.testing.assert_close(published(x), last(hidden(flat).relu()).softmax(1))
    flat = pool(conv2(pool(conv1(x).relu())).relu()).flatten(1)
    torch.testing.assert_close(written(x), last(hidden(flat).relu()))


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("linear", "mlp") and n not in OF_TEXT])
def test_what_is_no_image_is_refused(name: str) -> None:
    with pytest.raises(
        CoterieError, match=r"the shape of an input is \(64,\); allowed is \(channel, height, width\)"
    ):
        build(name, (64,), 10)()


@pytest.mark.parametrize("name", ["fedspd_mnist", "fedspd_cifar", "mobilenet_v2"])
def test_dropout_is_a_share(name: str) -> None:
    with pytest.raises(CoterieError, match=r"dropout is 1\.0; allowed is a number from 0 and below 1"):
        build(name, CIFAR, 10, dropout=1.0)()


@pytest.mark.parametrize("name", MODELS)
def test_xavier_normal_for_every_model(name: str) -> None:
    shape = (9,) if name in OF_TEXT else (3, 16, 16)
    model = build(name, shape, 10, init="xavier-normal")()
    assert all(not p.any() for n, p in model.named_parameters() if "bias" in n.rpartition(".")[2])


# through the engine

TINY: dict[str, tuple[tuple[int, ...], dict[str, object]]] = {
    "linear": ((6,), {}),
    "mlp": ((1, 4, 4), {"hidden": [5]}),
    "cnn": ((1, 4, 4), {"channels": [3, 4]}),
    "fedsoft_letters": ((1, 4, 4), {}),
    "fedsoft_cifar": ((1, 8, 8), {}),
    "wecfl_fashion": ((1, 4, 4), {}),
    "lenet": ((1, 16, 16), {}),
    "fedspd_mnist": ((1, 4, 4), {"dropout": 0.0}),
    "fedspd_cifar": ((1, 4, 4), {"dropout": 0.0, "channel_dropout": 0.0}),
    "mobilenet_v2": ((1, 16, 16), {"dropout": 0.0, "width": 0.1}),
    "char_lstm": ((5,), {"hidden": 6}),
    "char_cnn": ((5,), {"channels": 6, "window": 3}),
    "leaf_lstm": ((5,), {"hidden": 8}),
}
RATE = 0.005


def points(shape: tuple[int, ...], text: bool, sizes: tuple[int, ...]) -> Points:
    g = torch.Generator().manual_seed(3)

    def client(n: int) -> tuple[Tensor, Tensor]:
        if text:
            tokens = torch.randint(0, 4, (n, shape[0] + 1), generator=g)
            return tokens[:, :-1], tokens[:, 1:]
        return torch.randn(n, *shape, generator=g, dtype=F64), torch.randint(0, 4, (n,), generator=g)

    return Points.of([client(n) for n in sizes])


def simulation(name: str, chunk: int | None = None, **settings: object) -> Coordinator:
    shape, tiny = TINY[name]
    text = name in OF_TEXT
    data = Federation(
        ("a", "b", "c"),
        points(shape, text, (5, 4, 2)),
        task="next-character" if text else "classification",
        n_outputs=4,
    )
    plan = Stages((Stage(ALGORITHMS["FedAvg"](), 1, Training(learning_rate=RATE, batch_size=3)),))
    make = build(name, shape, 4, **{**tiny, **settings})
    return simulate(make, data, plan, dtype=F64, chunk=chunk, device=CPU)


@pytest.mark.parametrize("name", MODELS)
def test_a_round_of_fedavg_is_as_in_plain_pytorch(name: str) -> None:
    engine = simulation(name)
    assert engine.model.vectorised
    start = engine.state.centers[0, 0].clone()
    cohort = engine.clients.cohort
    keys, rows = cohort.key("train"), []
    for i, (begin, end) in enumerate(zip(cohort.points.offset, cohort.points.offset[1:], strict=False)):
        own = slice(int(begin), int(end))
        at_least = 2 if engine.model.needs_two else 1
        client = Client(cohort.points.x[own], cohort.points.y[own], keys[i], at_least=at_least)
        rows.append(train(engine.model, cohort.training, client, start))
    expected = (5 * rows[0] + 4 * rows[1] + 2 * rows[2]) / 11
    engine.step()
    assert (expected - start).abs().max() > 1e-4
    torch.testing.assert_close(engine.state.centers[0, 0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["fedspd_mnist", "fedspd_cifar", "mobilenet_v2"])
def test_dropout_is_the_same_in_every_chunk(name: str) -> None:
    whole, single = (simulation(name, chunk, dropout=0.4) for chunk in (None, 1))
    plain = simulation(name)
    for each in (whole, single, plain):
        each.step()
    torch.testing.assert_close(whole.state.centers, single.state.centers, rtol=0, atol=1e-9)
    assert not torch.allclose(whole.state.centers, plain.state.centers, atol=1e-6)
