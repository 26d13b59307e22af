"""From Python: a model, data and an algorithm to a finished run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coterie
import coterie.data

DIVERGING = coterie.Training(learning_rate=9.0)
TRAINING = coterie.Training(learning_rate=0.05, batch_size=8, epochs=2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def clients(n: int = 8) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    teach = rng.normal(size=(6, 3))

    def one(i: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(30, 6)).astype(np.float32)
        return x, ((x @ teach).argmax(1) + i % 2) % 3

    return {f"hospital-{i}": one(i) for i in range(n)}


def test_one_number_per_point_needs_no_axis_of_its_own() -> None:
    x = torch.linspace(-1, 1, 20)
    run = coterie.run(
        lambda: nn.Linear(1, 1), [(x, 2 * x + 0.5)], coterie.FedAvg(), rounds=1, training=TRAINING
    )
    for model in (run.centers[0], run.personal["0"]):
        assert torch.equal(model.predict(x), model.module(x[:, None]).detach())


@pytest.mark.parametrize("model", [Net, Net(), lambda: Net()], ids=["class", "module", "function"])
def test_own_model_and_data(model) -> None:
    run = coterie.run(
        model, clients(), coterie.FedSoft(n_clusters=2), rounds=3, training=TRAINING, evaluate_every=1
    )
    assert len(run.centers) == 2
    assert run.importance.shape == (8, 2)
    assert list(run.importance.index) == [f"hospital-{i}" for i in range(8)]
    assert len(run.history) == 3
    assert {"loss", "test_accuracy", "down", "up"} <= set(run.history.columns)
    personal = run.personal["hospital-3"]
    x = clients()["hospital-3"][0]
    assert personal(x).shape == (30, 3)
    assert personal.predict(x).shape == (30,)
    fresh = Net()
    fresh.load_state_dict(personal.state_dicts()[0])
    torch.testing.assert_close(fresh(torch.as_tensor(x)), personal(x))


def test_a_run_learns() -> None:
    before, after = (
        coterie.run(Net, clients(), coterie.Local(), rounds=n, training=TRAINING).summary["personal"][
            "accuracy"
        ]
        for n in (0, 30)
    )
    assert after > before + 0.25


def test_a_module_that_cannot_be_started_anew_is_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(6, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    with pytest.raises(coterie.CoterieError, match=r"Bare has parameters but no reset_parameters"):
        coterie.run(Bare(), clients(), coterie.FedAvg(), rounds=1)
    coterie.run(Bare, clients(), coterie.FedAvg(), rounds=1)


def test_personal_models_made_in_another_way_are_loaded_by_its_name(tmp_path: Path) -> None:
    algorithm, made = coterie.FedEM(2), {"training": TRAINING, "personal": "mean"}
    coterie.run(Net, clients(), algorithm, rounds=2, out=tmp_path / "run", **made)
    with pytest.raises(coterie.CoterieError) as refused:
        coterie.load(tmp_path / "run", Net, algorithm=algorithm, training=TRAINING)
    assert str(refused.value) == (
        f"personal is 'own', but the run in {tmp_path / 'run'} was made with personal='mean'; give that"
    )
    run = coterie.load(tmp_path / "run", Net, algorithm=algorithm, **made)
    assert run.onboard(*clients()["hospital-0"]).points == 30


def test_a_model_with_too_few_outputs_is_told_so() -> None:
    with pytest.raises(
        coterie.CoterieError, match=r"puts out 2 numbers for a point, but labels go up to 8; it needs 9"
    ):
        coterie.run(
            nn.Linear(6, 2), {"a": (np.zeros((9, 6), "f4"), np.arange(9)[::-1])}, coterie.FedAvg(), rounds=1
        )


def test_kept_resumed_and_loaded(tmp_path: Path) -> None:
    def go(rounds: int, **settings) -> coterie.Run:
        stage = coterie.Stage(coterie.FedSPD(2), rounds, TRAINING, coterie.Graph("complete"))
        return coterie.run(Net, clients(), stage, out=tmp_path / "run", checkpoint_every=1, **settings)

    def stop(record: dict, _rounds: int) -> None:
        if record["round"] == 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        go(4, watch=stop)
    with pytest.raises(coterie.CoterieError, match="already holds a run"):
        go(4)
    with pytest.raises(coterie.CoterieError, match="has other settings"):
        go(5, resume=True)
    finished = go(4, resume=True)
    assert finished.history["round"].tolist() == [0, 1, 2, 3]
    read = coterie.load(tmp_path / "run", Net)
    x = clients()["hospital-0"][0]
    assert torch.equal(read.personal["hospital-0"](x), finished.personal["hospital-0"](x))
    assert read.summary == finished.summary
    with pytest.raises(coterie.CoterieError, match="it must be the model of that run"):
        coterie.load(tmp_path / "run", nn.Linear(6, 3))


def test_staged_in_python() -> None:
    first = coterie.Stage(coterie.FedSoft(2), 2, TRAINING)
    run = coterie.run(
        Net, clients(), first.then(coterie.Stage(coterie.FedSPD(2), 2, TRAINING)), evaluate_every=0
    )
    assert run.history["algorithm"].tolist() == ["FedSoft", "FedSoft", "FedSPD", "FedSPD"]


def test_data_that_does_not_fit_the_model() -> None:
    with pytest.raises(coterie.CoterieError, match="the model does not accept this data"):
        coterie.run(nn.Linear(5, 3), clients(), coterie.FedAvg(), rounds=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": "10"}, "rounds is '10'; allowed is a whole number"),
        ({"rounds": 2.5}, "rounds is 2.5; allowed is a whole number"),
        ({"training": {"learning_rate": 0.1}}, "training is .*; allowed is a Training"),
        ({"algorithm": coterie.FedSoft}, "algorithm is .*; allowed is an algorithm with its settings"),
        ({"algorithm": "FedSoft"}, "allowed is"),
        ({"topology": "complete"}, "topology is 'complete'; allowed is a Server or a Graph"),
        ({"participation": 0.5}, "participation is 0.5; allowed is a Participation"),
        ({"model": "mlp"}, "model is 'mlp'; allowed is an nn.Module"),
        ({"model": nn.Linear}, "the model could not be built: TypeError"),
        ({"model": nn.Sequential(nn.LazyLinear(3))}, "lazy layers"),
        ({"seed": 1.5}, "seed is 1.5; allowed is a whole number from 0"),
        (
            {"evaluate_every": "often"},
            "evaluate_every is 'often'; allowed is a whole number from 0 or 'auto'",
        ),
        ({"evaluate_every": 2.5}, "evaluate_every is 2.5; allowed is a whole number from 0 or 'auto'"),
        ({"evaluate_every": True}, "evaluate_every is True; allowed is a whole number from 0 or 'auto'"),
        ({"dtype": "float64"}, "dtype is 'float64'; allowed is torch.float32"),
        ({"device": "gpu"}, "device is 'gpu'; allowed is 'cpu' or 'cuda'"),
        ({"chunk": 0}, "chunk is 0; allowed is 1 or more"),
        ({"resume": True}, "resume is True; allowed is true only with out"),
        (
            {"model": lambda: nn.Linear(6, 2)},
            "puts out 2 numbers .* labels go up to 2; it needs 3 outputs",
        ),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_mistakes_in_python_are_one_sentence(wrong: dict, message: str) -> None:
    right = {"model": Net, "data": clients(), "algorithm": coterie.FedAvg(), "rounds": 1}
    with pytest.raises(coterie.CoterieError, match=message):
        coterie.run(**{**right, **wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: coterie.Training(optimizer="adma"),
            "optimizer is 'adma'; allowed is one of 'sgd', 'adam', 'adamw'",
        ),
        (lambda: coterie.Training(learning_rate="0.1"), "rate is '0.1'; allowed is a number"),
        (lambda: coterie.Training(epochs=1.5), "epochs is 1.5; allowed is a whole number"),
        (lambda: coterie.Training(schedule="cos"), "schedule is 'cos'"),
        (lambda: coterie.FedSoft(n_clusters=2.0), "n_clusters is 2.0; allowed is a whole number"),
        (lambda: coterie.FedSoft(2, start="centre"), "start is 'centre'; allowed is one of 'center', 'own'"),
        (lambda: coterie.Graph(degree=True), "degree is True; allowed is a number"),
    ],
)
def test_settings_are_checked_when_they_are_made(make, message: str) -> None:
    with pytest.raises(coterie.CoterieError, match=message):
        make()


def test_labels_beyond_the_models_outputs_leave_no_folder(tmp_path: Path) -> None:
    data = {name: (x, y + 1) for name, (x, y) in clients().items()}
    with pytest.raises(coterie.CoterieError, match="labels count from 0"):
        coterie.run(Net, data, coterie.FedAvg(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_targets_and_outputs_must_agree_in_a_regression() -> None:
    data = [(x, x[:, 0]) for x, _ in clients().values()]
    with pytest.raises(coterie.CoterieError, match="puts out 3 numbers for a point and the target has 1"):
        coterie.run(Net, data, coterie.FedAvg(), rounds=1)


def test_words_as_labels_can_be_had_again() -> None:
    names = np.array(["cat", "dog", "eel"])
    run = coterie.run(Net, {n: (x, names[y]) for n, (x, y) in clients().items()}, coterie.FedAvg(), rounds=1)
    assert run.classes == ["cat", "dog", "eel"]


def test_an_unknown_client_is_named() -> None:
    run = coterie.run(Net, clients(), coterie.FedAvg(), rounds=0)
    with pytest.raises(KeyError, match="there is no client 'hospital-33'; did you mean 'hospital-3'"):
        run.personal["hospital-33"]


def test_a_module_keeps_its_frozen_layers_and_is_not_changed() -> None:
    module = Net()
    nn.init.constant_(module.layers[0].weight, 0.25)
    module.layers[0].requires_grad_(False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    run = coterie.run(module, clients(), coterie.FedAvg(), rounds=2, training=TRAINING)
    assert torch.equal(run.centers[0].module.layers[0].weight, before["layers.0.weight"])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_diverged_run_ends_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = coterie.data.regressions(clients=4, sizes=(20, 30), seed=0)
    run = coterie.run(
        lambda: nn.Linear(10, 1),
        data,
        coterie.Local(),
        rounds=30,
        training=coterie.Training(learning_rate=1e9),
        out=tmp_path / "r",
    )
    assert "client '0' diverged in round 1: its model is not finite (its largest input is" in caplog.text
    assert run.history["loss"].isna().all()
    assert run.summary["stopped"]["rounds"] == 3
    assert run.summary["personal"]["loss"] is None
    assert "Infinity" not in (tmp_path / "r" / "rounds.jsonl").read_text()


def test_what_a_diverged_client_sends_is_left_out() -> None:
    """One client's inputs are so large that its row overflows; the others' center stays finite."""
    g = torch.Generator().manual_seed(0)
    data = {n: (torch.randn(20, 3, generator=g), torch.randn(20, generator=g)) for n in "abcd"}
    data["d"] = (data["d"][0] * 1e18, data["d"][1])
    for topology in (coterie.Server(), coterie.Graph("complete")):
        run = coterie.run(
            lambda: nn.Linear(3, 1), data, coterie.FedAvg(), rounds=3, training=TRAINING, topology=topology
        )
        assert all(p.isfinite().all() for p in run.centers[0].parameters())
        assert run.history["sent"].tolist() == [3, 3, 3]


def test_resumed_by_id_not_by_position(tmp_path: Path) -> None:
    def stop(record: dict, _rounds: int) -> None:
        if record["round"] == 1:
            raise RuntimeError("stopped")

    def go(data: dict, name: str, **settings) -> coterie.Run:
        return coterie.run(
            Net,
            data,
            coterie.Local(),
            rounds=4,
            training=TRAINING,
            out=tmp_path / name,
            checkpoint_every=1,
            **settings,
        )

    straight = go(clients(), "straight")
    with pytest.raises(RuntimeError, match="stopped"):
        go(clients(), "stopped", watch=stop)
    backwards = dict(reversed(clients().items()))
    resumed = go(backwards, "stopped", resume=True)
    x = clients()["hospital-0"][0]
    torch.testing.assert_close(resumed.personal["hospital-0"](x), straight.personal["hospital-0"](x))
    other = {name: (x + 1, y) for name, (x, y) in clients().items()}
    with pytest.raises(coterie.CoterieError, match="has other settings"):
        go(other, "stopped", resume=True)


def test_loading_what_has_no_model_of_its_own(tmp_path: Path) -> None:
    coterie.run(Net, clients(), coterie.FedAvg(), rounds=0, out=tmp_path / "all" / "one")
    with pytest.raises(coterie.CoterieError, match="made in Python; give its model"):
        coterie.load(tmp_path / "all" / "one")
    with pytest.raises(coterie.CoterieError, match="holds the runs one"):
        coterie.load(tmp_path / "all")
