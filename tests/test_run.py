"""From Python: a model, data and an algorithm to a finished run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import coterie

TRAINING = coterie.Training(rate=0.05, batch=8, epochs=2)


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
