"""Integer inputs: an embedding takes them as they are, a linear layer as floats, and everybody finds the same."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import CoterieError, FedAvg, FedEM, Stage, Stages, Training
from coterie.cli.main import main
from coterie.data import from_arrays, from_table
from tests.builders import apart, close, finish, simulation
from tests.contract.pipes import over_pipes

WORDS, LENGTH = 12, 5
TRAINING = Training(learning_rate=0.5, batch_size=8, epochs=2)


class Bag(nn.Module):
    """The mean of the words' vectors, then a linear layer."""

    def __init__(self, words: int = WORDS):
        super().__init__()
        self.words, self.last = nn.Embedding(words, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.words(x).mean(1))
        return output


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(LENGTH, 8), nn.ReLU(), nn.Linear(8, 2))


def sentences(n_clients: int = 4, kind: str = "int64") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Whether most words are of the first half; for half of the clients it is the other way round."""
    chance, found = np.random.default_rng(3), {}
    for client in range(n_clients):
        x = chance.integers(0, WORDS, (60, LENGTH))
        y = ((x < WORDS / 2).sum(1) > LENGTH / 2) ^ (client % 2)
        found[f"c{client}"] = x.astype(kind), y.astype(np.int64)
    return found


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("int64", "int64"),
        ("int32", "int32"),
        ("int16", "int16"),
        ("uint8", "int16"),
        ("uint32", "int64"),
        ("uint64", "int64"),
    ],
)
def test_integers_of_any_kind_stay_integers(kind: str, kept: str) -> None:
    """uint8 is for images alone. A model is given int64."""
    data = from_arrays(sentences(kind=kind))
    assert data.train.x.dtype == getattr(torch, kept)
    assert torch.equal(data.train.x.long(), from_arrays(sentences()).train.x)
    cohort = simulation(Stages((Stage(FedAvg(), 1),)), data, model=Bag).clients.cohort
    assert cohort.points.x.dtype == cohort.test.x.dtype == torch.int64


@pytest.mark.parametrize("kind", ["float32", "bool"])
def test_other_numbers_are_floats(kind: str) -> None:
    assert from_arrays(sentences(kind=kind)).train.x.dtype == torch.float32


def test_integers_beyond_int64_are_floats() -> None:
    x = np.array([[2**64 - 1], [1]], np.uint64)
    assert from_arrays([(x, [0, 1])], test_fraction=0).train.x.tolist() == [[2.0**64], [1.0]]


def test_where_one_client_has_floats_all_have() -> None:
    clients = sentences()
    clients["c1"] = (clients["c1"][0].astype(np.float64), clients["c1"][1])
    data = from_arrays(clients)
    assert data.train.x.dtype == torch.float64
    assert torch.equal(data.train.x, from_arrays(sentences()).train.x.double())


def test_an_embedding_learns_them_and_takes_in_a_client(tmp_path: Path) -> None:
    data = from_arrays(sentences())
    run = coterie.run(Bag, data, FedEM(n_clusters=2), rounds=15, training=TRAINING, out=tmp_path / "run")
    assert run.summary["integers"] is True
    assert run.summary["personal"]["accuracy"] > 0.9
    x, y = sentences(1)["c0"]
    again = coterie.load(tmp_path / "run", Bag, algorithm=FedEM(n_clusters=2), training=TRAINING)
    for one in (run, again):
        new = one.onboard(x, y)
        assert new.fits
        assert (new.model.predict(x).numpy() == y).mean() > 0.9
        assert (
            one.onboard(x.astype(np.float32), y).importance == new.importance
        )  # whole floats stand for integers
        with pytest.raises(CoterieError, match="'newcomer' has other inputs than whole numbers"):
            one.onboard(x + 0.5, y)
        with pytest.raises(CoterieError, match="whole numbers from 0 to 40: it says: index out of range"):
            one.onboard(np.concatenate([x, x[:1] * 0 + 40]), np.append(y, 0))


def test_integer_features_of_a_linear_layer_give_what_floats_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "coterie")
    runs = [
        coterie.run(mlp, sentences(kind=kind), FedEM(n_clusters=2), rounds=3, training=TRAINING)
        for kind in ("int64", "float32")
    ]
    ints, floats = (run._result for run in runs)
    assert torch.equal(ints.centers, floats.centers)
    assert torch.equal(ints.personal.rows, floats.personal.rows)
    assert [line for line in caplog.messages if "takes floats" in line] == [
        "the inputs are whole numbers, and the model takes floats: it is given them as floats"
    ]
    x, y = sentences(1)["c0"]
    assert runs[0].onboard(x, y).losses == runs[0].onboard(x.astype(float), y).losses
    for model in (*runs[0].centers, runs[0].personal["c1"], runs[0].onboard(x, y).model):
        assert torch.equal(
            model(x), model(x.astype(np.float32))
        )  # integers or floats, as the run's other half


def test_models_take_integers_as_the_data_was() -> None:
    run = coterie.run(Bag, sentences(kind="int16"), FedEM(n_clusters=2), rounds=1, training=TRAINING)
    x = sentences(1)["c0"][0]
    for model in (run.centers[0], run.personal["c1"]):
        for same in (x.astype(np.int16), x.astype(np.uint8), x.astype(np.float64), x.tolist()):
            assert torch.equal(model(same), model.module(torch.from_numpy(x)))
        with pytest.raises(CoterieError, match="x has other inputs than whole numbers"):
            model(x + 0.5)


@pytest.mark.parametrize("build", [Bag, mlp])
def test_the_same_in_every_place(build: type[nn.Module]) -> None:
    """Each client alone decides as all together do, whatever its own integers are."""
    clients = sentences()
    clients["c2"] = (clients["c2"][0] * 0, clients["c2"][1])
    data, plan = from_arrays(clients), Stages((Stage(FedAvg(), 2, TRAINING),))
    together = finish(simulation(plan, data, model=build)).finish()
    close(apart(build, data, plan, seed=3)[0], together)
    with over_pipes(build, data, plan) as run:
        close(finish(run).finish(), together)


def test_a_table_of_integers(tmp_path: Path) -> None:
    import pandas as pd

    tables = [pd.DataFrame(x).add_prefix("w").assign(y=y, client=c) for c, (x, y) in sentences().items()]
    pd.concat(tables).to_csv(tmp_path / "whole.csv", index=False)
    data = from_table(tmp_path / "whole.csv")
    assert data.train.x.dtype == torch.int64
    assert torch.equal(data.train.x, from_arrays(sentences()).train.x)


def written(folder: Path, model: str, end: str) -> Path:
    import pandas as pd

    clients = folder / "clients"
    clients.mkdir()
    for name, (x, y) in sentences().items():
        if end == "npz":
            np.savez(clients / f"{name}.npz", x=x, y=y)
        else:
            pd.DataFrame(x).add_prefix("w").assign(y=y).to_csv(clients / f"{name}.csv", index=False)
    (folder / "bags.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Bag(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.words, self.last = nn.Embedding(12, 6), nn.Linear(6, 2)\n\n"
        "    def forward(self, x):\n        return self.last(self.words(x).mean(1))\n"
    )
    (folder / "experiment.toml").write_text(
        f"rounds = 15\ndata = {{ source = 'folder', path = 'clients' }}\nmodel = {{ name = '{model}' }}\n"
        "training = { learning_rate = 0.5, batch_size = 8, epochs = 2 }\n"
        "algorithm = { name = 'FedEM', n_clusters = 2 }\n"
    )
    return folder / "experiment.toml"


@pytest.mark.parametrize("end", ["csv", "npz"])
def test_on_the_command_line(tmp_path: Path, end: str) -> None:
    experiment, out = written(tmp_path, "bags:Bag", end), tmp_path / "run"
    assert main(["run", str(experiment), "--out", str(out)]) == 0
    assert main(["onboard", str(out), str(tmp_path / f"clients/c0.{end}")]) == 0
    assert coterie.load(out).summary["personal"]["accuracy"] > 0.9


def test_a_table_of_integers_still_runs_with_linear_layers(tmp_path: Path) -> None:
    experiment, out = written(tmp_path, "mlp", "csv"), tmp_path / "run"
    assert main(["run", str(experiment), "--out", str(out)]) == 0
    assert coterie.load(out).summary["integers"] is False
    assert main(["onboard", str(out), str(tmp_path / "clients/c0.csv")]) == 0


def test_an_integer_that_the_embedding_has_not_is_said_before_the_start() -> None:
    clients = sentences()
    clients["c3"][0][-1, 2] = 999
    with pytest.raises(
        CoterieError,
        match="does not accept all inputs, which are whole numbers from 0 to 999: it says: index",
    ):
        coterie.run(Bag, clients, FedAvg(), rounds=1)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: nn.Linear(LENGTH + 1, 2), "shapes cannot be multiplied"),
        (
            lambda: nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(4, 2)),
            "cannot be multiplied",
        ),
    ],
)
def test_a_model_that_takes_neither_says_why(build, says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        coterie.run(build, sentences(), FedAvg(), rounds=1)


def test_padding_of_zeros_alone_is_no_obstacle() -> None:
    """Lengths that are counted from what is not 0 refuse a sentence of zeros, and are tried with ones."""

    class Padded(Bag):
        def forward(self, x: Tensor) -> Tensor:
            if not bool((x != 0).any()):
                raise RuntimeError("length of all samples has to be greater than 0")
            return super().forward(x)

    clients = {name: (x + 1, y) for name, (x, y) in sentences().items()}
    run = coterie.run(lambda: Padded(WORDS + 1), clients, FedAvg(), rounds=1, training=TRAINING)
    assert run.summary["integers"] is True


def test_data_says_whether_it_has_integers() -> None:
    data = from_arrays(sentences())
    assert data.description.integers
    assert not from_arrays(sentences(kind="float32")).description.integers
