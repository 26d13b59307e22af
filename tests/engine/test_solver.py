"""The engine computes what the sequential loop computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.data.federation import Points
from coterie.engine import model as networks
from coterie.engine.model import FunctionalModel
from coterie.engine.probe import probe
from coterie.engine.training import Training
from coterie.prng import id_keys, mix
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import RoundContext
from coterie.protocol.personal import Personal
from tests.builders import CPU, F64
from tests.reference import Client, train


class CharLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 5)
        self.memory = nn.LSTM(5, 7, batch_first=True)
        self.out = nn.Linear(7, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(self.embedding(x))[0])


def cnn(norm: bool) -> nn.Module:
    # No bias before a norm: its gradient is zero but for rounding, which Adam would blow up.
    layers = [
        nn.Conv2d(1, 3, 3, bias=not norm),
        *([nn.BatchNorm2d(3)] if norm else []),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 9, 4))


MODELS = {
    "linear": (lambda: nn.Linear(6, 1, bias=False), networks.squared_error),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)), networks.cross_entropy),
    "cnn": (lambda: cnn(False), networks.cross_entropy),
    "cnn with batch norm": (lambda: cnn(True), networks.cross_entropy),
    "char-lstm": (CharLSTM, networks.next_character),
}
TASKS = {
    networks.squared_error: "regression",
    networks.cross_entropy: "classification",
    networks.next_character: "next-character",
}


def data(name: str, n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    if name == "char-lstm":
        text = torch.randint(0, 12, (n, 9), generator=g)
        return text[:, :-1], text[:, 1:]
    x = torch.randn(n, *((1, 8, 8) if name.startswith("cnn") else (6,)), generator=g, dtype=F64)
    if name == "linear":
        return x, torch.randn(n, generator=g, dtype=F64)
    return x, torch.randint(0, 4, (n,), generator=g)


def federated(name: str, sizes: list[int], training: Training, chunk: int | None = None) -> Cohort:
    build, loss = MODELS[name]
    model = FunctionalModel(build, loss, device=torch.device("cpu"), dtype=F64, chunk=chunk)
    clients = [data(name, n, i) for i, n in enumerate(sizes)]
    probe(model, *(t[:4] for t in max(clients, key=lambda c: len(c[0]))))
    keys = id_keys(str(i) for i in range(len(sizes)))
    return Cohort.whole(model, training, Points.of(clients), keys, TASKS[loss], seed=5)


def starts(cohort: Cohort) -> Tensor:
    return torch.stack([cohort.model.initial(f"start {i}") for i in range(len(cohort))])


def sequential(
    cohort: Cohort,
    start: Tensor,
    anchor: Tensor | None = None,
    pull: float = 0,
    at_least: int = 1,
    keys: Tensor | None = None,
    **per_point: Tensor,
) -> Tensor:
    points, rows = cohort.points, []
    keys = cohort.key("train") if keys is None else keys
    for i in range(len(cohort)):
        own = slice(int(points.offset[i]), int(points.offset[i + 1]))
        extra = {name: value[own] for name, value in per_point.items()}
        client = Client(points.x[points.at[own]], points.y[own], keys[i], at_least=at_least, **extra)
        rows.append(
            train(
                cohort.model, cohort.training, client, start[i], None if anchor is None else anchor[i], pull
            )
        )
    return torch.stack(rows)


SGD = Training(learning_rate=0.05, batch_size=5, epochs=2)
SETTINGS = {
    "sgd": SGD,
    "momentum": Training(
        learning_rate=0.02, momentum=0.9, weight_decay=0.01, nesterov=True, batch_size=4, epochs=2
    ),
    "adam": Training(optimizer="adam", learning_rate=0.01, weight_decay=0.1, batch_size=5, epochs=2),
    "adamw": Training(optimizer="adamw", learning_rate=0.01, weight_decay=0.1, batch_size=None, epochs=3),
    "steps, unshuffled": Training(learning_rate=0.05, batch_size=3, epochs=None, steps=7, shuffle=False),
    "no small batches": Training(learning_rate=0.05, batch_size=5, min_batch=3, epochs=2),
    "steps, whole batches": Training(learning_rate=0.05, batch_size=4, min_batch=4, epochs=None, steps=9),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_equal_to_the_sequential_loop(model: str, setting: str) -> None:
    cohort = federated(model, [7, 50, 1, 12, 23], SETTINGS[setting])
    assert cohort.model.vectorised
    start = starts(cohort)
    expected = sequential(cohort, start)
    assert not torch.allclose(expected, start, atol=1e-4)
    torch.testing.assert_close(cohort.solve(start), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", MODELS)
def test_masks_weights_and_pull(model: str) -> None:
    cohort = federated(model, [9, 31, 2, 14], SGD)
    start, anchor = starts(cohort), starts(cohort).flip(0)
    total = len(cohort.points.at)
    g = torch.Generator().manual_seed(0)
    exists = torch.rand(total, generator=g) < 0.6
    exists[cohort.points.offset[:-1]] = True
    weight = torch.rand(total, generator=g, dtype=F64)
    got = cohort.solve(start, points=exists, weight=weight, anchor=anchor, pull=0.7)
    expected = sequential(cohort, start, anchor, 0.7, exists=exists, weight=weight)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    batch=st.one_of(st.none(), st.integers(1, 12)),
    chunk=st.integers(1, 6),
)
def test_any_sizes_any_chunks(sizes: list[int], batch: int | None, chunk: int) -> None:
    cohort = federated("mlp", sizes, Training(learning_rate=0.05, batch_size=batch, epochs=2), chunk=chunk)
    start = starts(cohort)
    torch.testing.assert_close(cohort.solve(start), sequential(cohort, start), rtol=0, atol=1e-10)


def test_a_client_of_7_points_beside_one_of_500() -> None:
    cohort = federated("mlp", [7, 500], Training(learning_rate=0.05, batch_size=10, epochs=1, momentum=0.5))
    start = starts(cohort)
    torch.testing.assert_close(cohort.solve(start), sequential(cohort, start), rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", ["mlp", "cnn with batch norm"])
def test_order_of_clients_does_not_matter(model: str) -> None:
    cohort = federated(model, [7, 20, 12], SGD)
    start = starts(cohort)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(
        cohort.take(order).solve(start[order]), cohort.solve(start)[order], rtol=0, atol=1e-12
    )


def test_one_problem_per_cluster() -> None:
    """Each problem has its own start, points, weights, anchor and shuffles."""
    cohort = federated("mlp", [7, 20], SGD)
    start = torch.stack([starts(cohort), starts(cohort).flip(0)], 1)
    anchor, g = start.flip(1), torch.Generator().manual_seed(1)
    weight, exists = torch.rand(27, 2, generator=g, dtype=F64), torch.rand(27, 2, generator=g) < 0.6
    exists[[0, 7]] = True
    got = cohort.solve(start, weight=weight, points=exists, anchor=anchor, pull=0.4)
    own = cohort.key("train")
    for s, keys in enumerate((own, mix(own, "lane", 1))):
        expected = sequential(
            cohort, start[:, s], anchor[:, s], 0.4, keys=keys, weight=weight[:, s], exists=exists[:, s]
        )
        torch.testing.assert_close(got[:, s], expected, rtol=0, atol=1e-10)


def test_each_cluster_keeps_its_own_optimizer_state() -> None:
    """Momentum gathered in one slot does not move a row that is trained in another."""
    training = Training(learning_rate=0.1, batch_size=None, momentum=0.9, keep_optimizer=True)
    cohort = cohort_of(lambda: nn.Linear(6, 4), [7, 9], training)
    start = starts(cohort)
    first = cohort.solve(start, optimizer_slot=torch.tensor([0, 1]))
    other = cohort.solve(start, optimizer_slot=torch.tensor([1, 0]))
    torch.testing.assert_close(
        other, first, rtol=0, atol=1e-12
    )  # full batches: a fresh slot does as the first did
    again = cohort.solve(start, optimizer_slot=torch.tensor([0, 0]))
    assert not torch.allclose(again[0], first[0])


def test_shuffles_differ_from_round_to_round_and_stage_to_stage() -> None:
    cohort = federated("mlp", [40], SGD)
    start = starts(cohort)
    contexts = [RoundContext(5), RoundContext(5, round=1), RoundContext(5, stage=1), RoundContext(6)]
    rows = [cohort.when(context).solve(start) for context in contexts]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])
    even = torch.full((1, 1000), 0.001)
    draws = {int(cohort.when(context).draw(even)) for context in contexts}
    assert len(draws) > 2


def test_no_points_leave_the_row_alone() -> None:
    cohort = federated("mlp", [3, 4], SGD)
    start = starts(cohort)
    exists = torch.tensor([False] * 3 + [True] * 4)
    got = cohort.solve(start, points=exists)
    assert torch.equal(got[0], start[0])
    assert not torch.equal(got[1], start[1])


def test_kept_optimizer_goes_on_where_it_was() -> None:
    """Two rounds of one unshuffled full-batch step with Adam kept are one round of two steps."""
    once = Training(optimizer="adam", learning_rate=0.01, batch_size=None, epochs=1, keep_optimizer=True)
    twice = Training(optimizer="adam", learning_rate=0.01, batch_size=None, epochs=2)
    cohort, longer = federated("mlp", [7, 20], once), federated("mlp", [7, 20], twice)
    start = starts(cohort)
    torch.testing.assert_close(cohort.solve(cohort.solve(start)), longer.solve(start), rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_losses_by_concatenation_equal_those_by_client(model: str) -> None:
    cohort = federated(model, [5, 9, 2], SGD)
    centers = starts(cohort)[:2]
    shared = cohort.losses(centers.expand(3, 2, -1))
    own = cohort.losses(centers.repeat(3, 1, 1))
    assert shared.shape == (16, 2)
    torch.testing.assert_close(shared, own, rtol=0, atol=1e-12)
    module = cohort.model.rows.module_of(centers[1])
    expected = cohort.model.loss(module(cohort.points.x), cohort.points.y)
    torch.testing.assert_close(shared[:, 1], expected.detach(), rtol=0, atol=1e-12)


class Branching(nn.Module):
    """What vmap cannot take: Python that reads the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        return y * 2 if y.sum().item() > 0 else y


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(nn.functional.dropout(x, 0.5, self.training))


class OwnBatchNorm(nn.Module):
    """A layer of the user's that couples the points of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x - x.mean(0) if self.training else x)


def cohort_of(build, sizes: list[int], training: Training, chunk: int | None = None) -> Cohort:
    model = FunctionalModel(build, networks.cross_entropy, device=torch.device("cpu"), dtype=F64, chunk=chunk)
    clients = [data("mlp", n, i) for i, n in enumerate(sizes)]
    probe(model, *(t[:4] for t in clients[0]))
    return Cohort.whole(
        model, training, Points.of(clients), id_keys(map(str, range(len(sizes)))), "classification", seed=5
    )


@pytest.mark.parametrize("build", [Branching, OwnBatchNorm])
def test_what_cannot_be_vectorised_is_computed_one_by_one(build, caplog: pytest.LogCaptureFixture) -> None:
    cohort = cohort_of(build, [7, 12], SGD)
    assert not cohort.model.vectorised
    assert len(caplog.records) == 1
    assert "one by one" in caplog.text
    start = starts(cohort)
    torch.testing.assert_close(cohort.solve(start), sequential(cohort, start), rtol=0, atol=1e-10)


@pytest.mark.parametrize("rounded", [torch.float32, None])
def test_a_step_that_only_rounds_otherwise_is_vectorised(
    rounded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deep batch norms of four points do on a GPU; None: what differs in double precision too."""
    together = FunctionalModel.together

    def otherwise(self: FunctionalModel, rows: Tensor, *others: Tensor) -> Any:
        gradient, *rest = together(self, rows, *others)
        return (gradient * 1.01 if rounded in (None, rows.dtype) else gradient, *rest)

    monkeypatch.setattr(FunctionalModel, "together", otherwise)
    model = FunctionalModel(with_dropout, networks.cross_entropy, device=torch.device("cpu"))
    x, y = data("mlp", 4, 0)
    probe(model, x.float(), y)
    assert model.vectorised is (rounded is not None)


def test_a_model_of_single_precision_alone_is_asked_in_it() -> None:
    class Single(OwnBatchNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) @ torch.eye(4)

    model = FunctionalModel(Single, networks.cross_entropy, device=torch.device("cpu"))
    x, y = data("mlp", 4, 0)
    probe(model, x.float(), y)
    assert not model.vectorised


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))


@pytest.mark.parametrize(("build", "vectorised"), [(with_dropout, True), (FunctionalDropout, False)])
def test_dropout_depends_on_the_client_not_on_its_place(build, vectorised: bool) -> None:
    cohort, small = (cohort_of(build, [7, 12, 9], SGD, chunk) for chunk in (None, 1))
    assert cohort.model.vectorised is vectorised
    start = starts(cohort)
    got = cohort.solve(start)
    torch.testing.assert_close(got, small.solve(start), rtol=0, atol=1e-12)
    order = torch.tensor([1, 2, 0])
    torch.testing.assert_close(cohort.take(order).solve(start[order]), got[order], rtol=0, atol=1e-12)


def test_dropout_drops_the_share_it_should_and_not_in_use() -> None:
    model = FunctionalModel(
        lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(5000, 1)),
        networks.squared_error,
        dtype=F64,
        device=CPU,
    )
    layer, x = model.module[0], torch.ones(4, 5000, dtype=F64)
    layer.train()
    y = layer(x)
    assert set(y.unique().tolist()) == {0.0, 1 / 0.7}
    assert abs((y == 0).double().mean() - 0.3) < 0.02
    assert not torch.equal(y[0], y[1])
    layer.eval()
    assert torch.equal(layer(x), x)


def test_vectorised_dropout_equals_the_plain_loop() -> None:
    cohort, loop = (cohort_of(with_dropout, [7, 12], SGD) for _ in range(2))
    loop.model.vectorised = False
    start = starts(cohort)
    torch.testing.assert_close(cohort.solve(start), loop.solve(start), rtol=0, atol=1e-12)


def test_batch_norm_leaves_out_a_last_batch_of_one_value() -> None:
    """PyTorch refuses such a batch; nobody can choose a batch size that suits every client, so it is left out."""

    def flat() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))

    cohort = cohort_of(flat, [6, 12, 1], SGD)
    assert cohort.model.needs_two
    start = starts(cohort)
    got = cohort.solve(start)
    torch.testing.assert_close(got[:2], sequential(cohort, start, at_least=2)[:2], rtol=0, atol=1e-10)
    assert torch.equal(got[2], start[2])


def test_a_changed_least_batch_is_not_mistaken_for_the_one_before() -> None:
    """Batches of the same points are drawn from what is remembered of them."""
    cohort = federated("mlp", [7, 12], SGD)
    start = starts(cohort)
    first = cohort.solve(start)
    whole = replace(cohort, training=replace(SGD, min_batch=5))
    assert not torch.allclose(whole.solve(start), first)
    torch.testing.assert_close(whole.solve(start), sequential(whole, start), rtol=0, atol=1e-10)


class Twice(nn.Module):
    """Layers that are used more than once in a pass, and on points with time folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        folded = x.reshape(len(x) * 2, 3)
        folded = self.norm(self.line(torch.tanh(self.norm(self.line(folded)))))
        return self.out(folded.reshape(len(x), 6))


def test_batch_norm_used_twice_on_a_folded_batch() -> None:
    cohort = cohort_of(Twice, [7, 12], SGD)
    assert cohort.model.vectorised
    start = starts(cohort)
    torch.testing.assert_close(cohort.solve(start), sequential(cohort, start), rtol=0, atol=1e-10)


def test_dropout_used_twice_draws_twice_and_anew_each_step() -> None:
    model = FunctionalModel(
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4000, 1)),
        networks.squared_error,
        dtype=F64,
        device=CPU,
    )
    layer, x = model.module[0].train(), torch.ones(1, 4000, dtype=F64)

    def masks(key: int, calls: int) -> list[Tensor]:
        layer.key = torch.tensor(key)
        layer.calls = 0
        return [layer(x) == 0 for _ in range(calls)]

    first, second = masks(1, 2)
    assert abs((first & second).double().mean() - 0.25) < 0.04
    (other,) = masks(2, 1)
    assert not torch.equal(first, other)
    assert torch.equal(first, masks(1, 1)[0])


def test_scores_by_hand() -> None:
    """Two clients, three classes; the row is the output itself."""
    cohort = cohort_of(lambda: nn.Linear(6, 4), [4, 4], SGD)
    x = torch.zeros(4, 6, dtype=F64)
    points = Points.of([(x, torch.tensor([0, 0, 1, 2])), (x, torch.tensor([3, 3, 3, 3]))])
    rows = torch.zeros(2, cohort.model.rows.width, dtype=F64)
    rows[0, -4] = 9.0  # bias: always class 0
    rows[1, -1] = 9.0  # always class 3
    scores = cohort.score(Personal.single(rows), points)
    assert scores.accuracy.tolist() == [0.5, 1.0]
    torch.testing.assert_close(scores.f1, torch.tensor([2 * 2 / 6 / 3, 1.0], dtype=F64))


def test_averaged_predictions_by_hand() -> None:
    """Half a model that is sure of class 0 and half one that is sure of class 1."""
    cohort = cohort_of(lambda: nn.Linear(6, 4), [2], SGD)
    points = Points.of([(torch.zeros(2, 6, dtype=F64), torch.tensor([0, 1]))])
    rows = torch.zeros(1, 2, cohort.model.rows.width, dtype=F64)
    rows[0, 0, -4], rows[0, 1, -3] = 50.0, 50.0
    scores = cohort.score(Personal(rows, torch.tensor([[0.75, 0.25]])), points)
    expected = -(torch.tensor(0.75).log() + torch.tensor(0.25).log()) / 2
    torch.testing.assert_close(scores.loss[0], expected.double(), rtol=1e-6, atol=0)


def test_statistics_of_the_batch_are_each_clients_own_in_use() -> None:
    """Batch norm without running statistics: a client's points must not meet another's, nor padding."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 4))

    cohort = cohort_of(build, [5, 9, 3], Training(learning_rate=0.05, batch_size=None, epochs=2))
    centers = starts(cohort)[:1]
    got = cohort.losses(centers.expand(3, 1, -1))[:, 0]
    module = cohort.model.rows.module_of(centers[0])
    parts = zip(cohort.points.x.split([5, 9, 3]), cohort.points.y.split([5, 9, 3]), strict=True)
    expected = torch.cat([cohort.model.loss(module(x), y) for x, y in parts])
    torch.testing.assert_close(got, expected.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        cohort.solve(starts(cohort)), sequential(cohort, starts(cohort)), rtol=0, atol=1e-10
    )


def test_frozen_parameters_stay_and_tied_ones_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, bias=False)
            self.second = nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight
            self.out = nn.Linear(6, 4)
            self.out.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.second(self.first(x)))

    cohort = cohort_of(Tied, [7, 12], SGD)
    rows = cohort.model.rows
    assert (rows.n_parameters, rows.width) == (36 + 24, 36 + 24 + 4)
    start = starts(cohort)
    got = cohort.solve(start)
    assert torch.equal(got[:, -4:], start[:, -4:])
    torch.testing.assert_close(got, sequential(cohort, start), rtol=0, atol=1e-10)


def test_the_rate_of_the_round_is_used() -> None:
    training = Training(learning_rate=0.1, batch_size=None, schedule="exponential", decay=0.5)
    cohort = cohort_of(lambda: nn.Linear(6, 4), [7], training)
    start = starts(cohort)
    first, third = (cohort.when(RoundContext(5, 0, t, 4)).solve(start) - start for t in (0, 2))
    torch.testing.assert_close(third, first / 4, rtol=1e-9, atol=0)


def test_weights_as_they_are() -> None:
    """Half the weight on every point is half the step; relative to their mean it is no change."""
    cohort = cohort_of(lambda: nn.Linear(6, 4), [7, 9], Training(learning_rate=0.1, batch_size=None))
    start, half = starts(cohort), torch.full((16,), 0.5, dtype=F64)
    plain = cohort.solve(start) - start
    torch.testing.assert_close(cohort.solve(start, weight=half) - start, plain)
    torch.testing.assert_close(cohort.solve(start, weight=half, normalise=False) - start, plain / 2)
