"""A loss of one's own: what the outputs stand for, how they are scored, and what is refused before the start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import coterie
from coterie import CoterieError, FedAvg, FedEM, Training
from coterie.data import from_arrays
from coterie.engine.model import cross_entropy
from coterie.engine.scores import Outputs
from coterie.report.compare import measured

TRAINING = Training(learning_rate=0.3, batch_size=10, epochs=3)


def logistic(output: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        output.reshape(len(y)), y.to(output.dtype), reduction="none"
    )


def squared(output: Tensor, y: Tensor) -> Tensor:
    return (output.reshape(len(y), -1).mean(1) - y).square()


def patients(n_clients: int = 4, classes: int = 2) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Half of the clients have the labels the other way round."""
    chance, found = np.random.default_rng(1), {}
    for client in range(n_clients):
        x = chance.normal(size=(60, 3)).astype(np.float32)
        y = np.clip(x.sum(1) * (-1) ** client + classes / 2, 0, classes - 1).astype(np.int64)
        found[f"c{client}"] = x, y
    return found


class Flat(nn.Linear):
    """One number per point without an axis of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(3, 1), lambda: Flat(3, 1)], ids=["(point, 1)", "(point,)"]
)
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(n_clusters=2)], ids=["one model", "a mixture"])
def test_one_output_for_two_classes_is_a_logit(build, algorithm, tmp_path: Path) -> None:
    data = from_arrays(patients())
    run = coterie.run(
        build,
        data,
        algorithm,
        rounds=12,
        training=TRAINING,
        loss=logistic,
        evaluate_every=3,
        out=tmp_path / "run",
    )
    scores = run.summary["personal"]
    assert scores["accuracy"] > (0.9 if isinstance(algorithm, FedEM) else 0.3)
    assert run.history["test_f1"].notna().any()
    assert data.test is not None
    again = coterie.load(tmp_path / "run", build)
    right, losses = [], []
    for i, name in enumerate(data.ids):
        here = slice(int(data.test.offset[i]), int(data.test.offset[i + 1]))
        x, y = data.test.x[here], data.test.y[here]
        guess = run.personal[name].predict(x)
        assert torch.equal(guess, (run.personal[name](x).reshape(-1) > 0).long())
        assert torch.equal(guess, again.personal[name].predict(x))
        right.append((guess == y).float().mean())
        losses.append(logistic(run.personal[name](x), y).mean().detach())
    assert float(torch.stack(right).mean()) == pytest.approx(scores["accuracy"], abs=1e-6)
    assert float(torch.stack(losses).mean()) == pytest.approx(scores["loss"], rel=1e-4)
    assert measured(run.summary)["personal accuracy"] == scores["accuracy"]


def test_the_mixture_of_logits_is_that_of_probabilities() -> None:
    outputs = [torch.tensor([[2.0], [-1.0]]), torch.tensor([[-3.0], [60.0]])]
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    mixed = Outputs("classification", 2, own_loss=True).mixed(outputs, weights)
    expected = 0.25 * torch.sigmoid(torch.tensor(2.0)) + 0.75 * torch.sigmoid(torch.tensor(-3.0))
    torch.testing.assert_close(torch.sigmoid(mixed[0, 0]), expected)
    assert mixed.shape == (2, 1)
    assert mixed.isfinite().all()


@pytest.mark.parametrize(
    ("task", "labels", "own", "shape", "kind"),
    [
        ("classification", 3, False, (5, 3), "classes"),
        ("classification", 3, True, (5, 3), "classes"),
        ("classification", 3, True, (5, 7), "classes"),
        ("classification", 2, True, (5, 1), "binary"),
        ("classification", 1, True, (5,), "binary"),
        ("classification", 3, True, (5, 1), "numbers"),
        ("classification", 3, True, (5, 2), "numbers"),
        ("classification", 2, True, (5, 4, 4), "numbers"),
        ("next-character", 80, True, (5, 9, 80), "classes"),
        ("next-character", 80, True, (5, 80), "numbers"),
        ("regression", 1, True, (5, 1), "numbers"),
        ("regression", 1, False, (5, 1), "numbers"),
    ],
)
def test_what_outputs_stand_for(task, labels: int, own: bool, shape: tuple[int, ...], kind: str) -> None:
    assert Outputs(task, labels, own).kind(torch.zeros(shape)) == kind


@pytest.mark.parametrize("width", [1, 2])
def test_outputs_that_are_no_classes_are_scored_by_the_loss_alone(width: int) -> None:
    run = coterie.run(
        lambda: nn.Linear(3, width),
        patients(classes=4),
        FedEM(n_clusters=2),
        rounds=3,
        training=TRAINING,
        loss=squared,
        evaluate_every=1,
    )
    assert "accuracy" not in run.summary["personal"]
    assert "test_accuracy" not in run.history
    x = torch.randn(5, 3)
    assert torch.equal(run.personal["c0"].predict(x), run.personal["c0"](x))
    assert "personal loss" in measured(run.summary)
    assert "personal MSE" not in measured(run.summary)


def test_ones_own_loss_of_classes_is_scored_as_before() -> None:
    def own(output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output, y)

    runs = [
        coterie.run(lambda: nn.Linear(3, 4), patients(classes=4), FedEM(n_clusters=2), rounds=3, loss=loss)
        for loss in (own, None)
    ]
    assert runs[0].summary["personal"] == runs[1].summary["personal"]


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (
            lambda o, y: o.mean(),
            r"the loss gives shape \(\); it must give one number per point .*reduction='none'",
        ),
        (lambda o, y: (o - y).square(), r"the loss gives shape \(4, 4\)"),
        (lambda o, y: 1.0, "the loss gives float; it must give a tensor of floats"),
        (lambda o, y: (o[:, 0] > 0) == y, "the loss gives torch.bool; it must give a tensor of floats"),
        (
            lambda o, y: o[:, 0].detach() - y,
            "cannot be trained on this data: a step of training says: .*grad",
        ),
        (
            lambda o, y: logistic(o, y) if int(y.max()) < 2 else 1 / 0,
            "cannot be evaluated on this data: .*, its scores say: division by zero",
        ),
    ],
    ids=["a mean", "a matrix", "a number", "booleans", "no gradient", "not for all labels"],
)
def test_a_bad_loss_is_said_before_the_start(loss, sentence: str, tmp_path: Path) -> None:
    clients = {name: (x[y.argsort()], np.sort(y)) for name, (x, y) in patients(classes=3).items()}
    with pytest.raises(CoterieError, match=sentence):
        coterie.run(lambda: nn.Linear(3, 1), clients, FedAvg(), rounds=2, loss=loss, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_new_client_needs_the_runs_own_loss(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Linear(3, 1)

    coterie.run(
        build,
        patients(),
        FedEM(n_clusters=2),
        rounds=8,
        training=TRAINING,
        loss=logistic,
        out=tmp_path / "run",
    )
    x, y = patients(1)["c0"]
    made = {"algorithm": FedEM(n_clusters=2), "training": TRAINING}
    with pytest.raises(CoterieError, match=r"was made with a loss of its own; .* loss=\.\.\."):
        coterie.load(tmp_path / "run", build, **made).onboard(x, y)
    new = coterie.load(tmp_path / "run", build, loss=logistic, **made).onboard(x, y)
    assert float((new.model.predict(x).numpy() == y).mean()) > 0.8
