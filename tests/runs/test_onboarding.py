"""A finished run takes in a client that it never saw."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import coterie
from coterie import (
    ALGORITHMS,
    IFCA,
    Algorithm,
    CoterieError,
    FedEM,
    Federation,
    FedSoft,
    FedSPD,
    Run,
    Stage,
    Training,
    WeCFL,
    toml,
)
from coterie.cli.main import main
from coterie.data import from_table, regressions
from coterie.data.synthetic import coefficients
from coterie.protocol.fit import RIVALS
from tests.builders import TRAINING, linear

SEED, SEPARATION = 1, 166.0


@cache
def clients() -> Federation:
    return regressions(clients=24, sizes=(40, 60), mixture="10:90", separation=SEPARATION, seed=SEED)


@cache
def found(kind: type[Algorithm]) -> Run:
    """A run that has found both regressions."""
    run = coterie.run(linear, clients(), kind(n_clusters=2), rounds=20, training=TRAINING, seed=SEED)
    own = run.summary["centers"]["center_of_distribution"]
    assert all(run.summary["centers"]["loss"][own[d]][d] < 1.3 for d in (0, 1))
    return run


def newcomer(share: float, points: int = 100) -> tuple[Tensor, Tensor]:
    """Points of which `share` are of the first regression."""
    g = torch.Generator().manual_seed(5)
    theta = torch.tensor(coefficients(2, 10, 10.0, SEPARATION, SEED), dtype=torch.float32)
    x = torch.randn(points, 10, generator=g)
    of = (torch.arange(points) >= share * points).long()
    return x, (x * theta[of]).sum(1) + torch.randn(points, generator=g)


def far() -> tuple[Tensor, Tensor]:
    x, _ = newcomer(1.0)
    return x, x @ torch.full((10,), -8.0)


def points_of(data: Federation, client: int) -> tuple[Tensor, Tensor]:
    own = slice(int(data.train.offset[client]), int(data.train.offset[client + 1]))
    return data.train.x[data.train.at[own]], data.train.y[own]


# what it finds


@pytest.mark.parametrize("kind", [FedSPD, FedEM])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.8])
def test_its_mixture_is_found(kind: type[Algorithm], share: float) -> None:
    run = found(kind)
    own = run.summary["centers"]["center_of_distribution"]
    new = run.onboard(*newcomer(share))
    assert new.importance[own[0]] == pytest.approx(share, abs=0.15)
    assert sum(new.importance) == pytest.approx(1)
    assert new.fits
    assert new.margin is not None
    assert new.margin > 50


@pytest.mark.parametrize("kind", [FedSPD, FedEM])
def test_one_of_a_third_distribution_fits_no_cluster(kind: type[Algorithm]) -> None:
    new = found(kind).onboard(*far())
    assert new.fits is False
    assert "fits no cluster" in new.verdict()


@pytest.mark.parametrize("kind", [FedSPD, FedEM, FedSoft, IFCA, WeCFL])
def test_a_center_of_the_run_that_diverged_is_no_newcomers(kind: type[Algorithm]) -> None:
    """3e38 is finite; its losses are not, which is no fault of the newcomer's points."""
    run = coterie.run(linear, clients(), kind(n_clusters=3), rounds=4, training=TRAINING, seed=SEED)
    centers = run._result.centers.clone()
    centers[1] = 3e38
    run._result = replace(run._result, centers=centers)
    new = run.onboard(*newcomer(0.9))
    assert new.importance[1] == 0
    assert sum(new.importance) == pytest.approx(1)
    assert np.isfinite(new.loss)
    assert bool(new.personal.rows[new.personal.weights > 0].isfinite().all())


def test_the_rule_by_hand() -> None:
    """Points have the loss of their best center, and a rank among the held-out points of the clients that have it."""
    run, data = found(FedSPD), clients()
    assert data.test is not None
    own, center = best_centers(run, data.test.x[data.test.at], data.test.y)
    x, y = newcomer(0.5)
    losses, best = best_centers(run, x, y[:, None])
    ranks = [
        float((own[center == s] < loss).double().mean())
        for loss, s in zip(losses, best.tolist(), strict=True)
    ]
    new = run.onboard(x, y)
    assert new.worse == pytest.approx(np.mean(np.array(ranks) ** RIVALS), abs=0.01)
    assert new.loss == pytest.approx(float(losses.mean()), rel=1e-4)
    with torch.no_grad():
        each = torch.cat([(center(x) - y[:, None]).square() for center in run.centers], 1)
    assert new.losses == pytest.approx(each.mean(0).tolist(), rel=1e-4)
    assert new.margin == pytest.approx(float((each[:, 0] - each[:, 1]).abs().mean()), rel=1e-4)


def best_centers(run: Run, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(point,) the least loss of the centers, and whose it is."""
    with torch.no_grad():
        least = torch.cat([(center(x) - y).square() for center in run.centers], 1).min(1)
    return least.values, least.indices


def test_the_margin_of_a_hard_choice_is_that_of_the_means() -> None:
    run = small("IFCA")
    new = run.onboard(*newcomer(0.3))
    least, second = sorted(new.losses)
    assert (new.loss, new.margin) == (pytest.approx(least), pytest.approx(second - least))
    assert new.importance[new.losses.index(least)] == 1


@pytest.mark.parametrize("kind", [FedSPD, FedEM])
def test_a_client_of_the_run_gets_what_it_had(kind: type[Algorithm]) -> None:
    run = found(kind)
    for client in (0, 11, 23):
        again = run.onboard(*points_of(clients(), client), id=run.ids[client])
        assert again.importance == pytest.approx(run.importance.iloc[client].tolist(), abs=0.02)
        assert again.fits


def test_few_points_do_not_tell() -> None:
    run = found(FedSPD)
    for points, told in ((29, None), (30, True)):
        new = run.onboard(*newcomer(0.5, points))
        assert new.fits is told
        assert ("too few points to tell" in new.verdict()) == (told is None)
    x, y = far()
    assert run.onboard(x[:29], y[:29]).fits is None
    assert run.onboard(x[:30], y[:30]).fits is False


def test_it_is_drawn_by_its_id() -> None:
    rows = [found(FedSPD).onboard(*newcomer(0.3), id=id).personal.rows for id in ("a", "a", "b")]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


# every algorithm


@cache
def small(name: str, place: str = "server") -> Run:
    kind = ALGORITHMS[name]
    algorithm = kind(n_clusters=2) if "n_clusters" in {f.name for f in fields(kind)} else kind()
    if name == "pFedMe":
        algorithm = coterie.pFedMe(local_rounds=5)
    topology = coterie.Graph("erdos-renyi", degree=3.0) if place == "graph" else None
    training = Training(learning_rate=0.02, epochs=1, momentum=0.5, keep_optimizer=True)
    data = regressions(clients=8, sizes=(20, 30), separation=SEPARATION, seed=SEED)
    return coterie.run(linear, data, algorithm, rounds=3, training=training, topology=topology)


CASES = [(name, "server") for name in ALGORITHMS]
CASES += [(name, "graph") for name, kind in ALGORITHMS.items() if not kind.needs_server]


@pytest.mark.parametrize(("name", "place"), CASES)
def test_every_algorithm_takes_in_a_client(name: str, place: str) -> None:
    run = small(name, place)
    before = run._result.centers.clone()
    x, y = newcomer(0.3, 30)
    new = run.onboard(x, y)
    assert len(new.importance) == run.importance.shape[1]
    assert sum(new.importance) == pytest.approx(1, abs=1e-5)
    assert new.model(x).shape == (30, 1)
    assert new.model(x).isfinite().all()
    assert new.personal.rows.shape[1:] == run._result.personal.rows.shape[1:]
    assert torch.equal(run._result.centers, before)
    assert (new.margin is None) == (len(new.importance) == 1)
    assert (new.fits is None) == (name == "Local")


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "WeCFL", "FeSEM", "IFCA", "HypCluster", "CFL"])
def test_hard_methods_give_the_center_of_least_loss(name: str) -> None:
    run = small(name)
    x, y = newcomer(0.3, 30)
    new = run.onboard(x, y)
    with torch.no_grad():
        losses = [float((center(x)[:, 0] - y).square().mean()) for center in run.centers]
    best = losses.index(min(losses))
    torch.testing.assert_close(new.personal.rows[0, 0], run._result.centers[best])


def test_alone_it_is_as_if_it_had_been_there() -> None:
    run = small("Local")
    data = regressions(clients=8, sizes=(20, 30), separation=SEPARATION, seed=SEED)
    again = run.onboard(*points_of(data, 2), id="2")
    torch.testing.assert_close(again.personal.rows[0], run._result.personal.rows[2])


@pytest.mark.parametrize("name", ["FedSoft", "pFedMe", "FedSPD", "Local"])
def test_a_model_of_its_own_does_better_than_the_centers(name: str) -> None:
    x, y = newcomer(0.9, 60)
    run = small(name)
    new = run.onboard(x, y)
    mixed = torch.tensor(new.importance) @ run._result.centers
    assert (new.model(x)[:, 0] - y).square().mean() < (x @ mixed - y).square().mean()


def test_a_newcomer_of_fedsoft_as_published_starts_at_its_centers() -> None:
    """It has no last row, and a random one would be far."""
    plan = coterie.FedSoft.as_published(2), Training(learning_rate=1e-6)
    run = coterie.run(linear, clients(), plan[0], rounds=2, training=plan[1])
    new = run.onboard(*newcomer(0.3))
    mixed = torch.tensor(new.importance) @ run._result.centers
    torch.testing.assert_close(new.personal.rows[0, 0], mixed, atol=1e-2, rtol=0)


def test_words_are_the_runs_own_labels() -> None:
    x = np.eye(3, dtype=np.float32).repeat(4, 0)
    words = np.array(["dog", "ant", "cat"]).repeat(4)
    data = {"a": (x, words), "b": (x, words)}
    run = coterie.run(
        nn.Linear(3, 3), data, coterie.FedAvg(), rounds=30, training=Training(learning_rate=1.0)
    )
    assert run.classes == ["ant", "cat", "dog"]
    assert run.onboard(x.repeat(3, 0), words.repeat(3)).fits
    assert run.onboard(x.repeat(3, 0), np.roll(words, 4).repeat(3)).fits is False
    with pytest.raises(CoterieError, match=r"label 'cow'; the run's labels are ant, cat, dog"):
        run.onboard(x[:1], ["cow"])
    with pytest.raises(CoterieError, match="another kind"):
        run.onboard(x[:1], [0])


# from a folder


def keep(out: Path, **changes: Any) -> Run:
    data = regressions(clients=6, sizes=(20, 30), seed=SEED)
    return coterie.run(linear, data, FedSPD(2), rounds=2, training=TRAINING, out=out, **changes)


def test_a_run_from_python_is_loaded_with_what_made_it(tmp_path: Path) -> None:
    run, folder = keep(tmp_path / "run"), tmp_path / "run"
    again = coterie.load(folder, linear, algorithm=FedSPD(2), training=TRAINING)
    one, two = (r.onboard(*newcomer(0.3)) for r in (run, again))
    assert torch.equal(one.personal.rows, two.personal.rows)
    assert replace(one, model=two.model, personal=two.personal) == two
    with pytest.raises(CoterieError, match="give its algorithm and training too"):
        coterie.load(folder, linear).onboard(*newcomer(0.3))
    with pytest.raises(CoterieError, match=r"algorithm is FedEM.* is Stage\(algorithm=FedSPD"):
        coterie.load(folder, linear, algorithm=FedEM(2), training=TRAINING)
    with pytest.raises(CoterieError, match="training is Training"):
        coterie.load(folder, linear, algorithm=FedSPD(2))


def test_a_run_of_stages_is_loaded_with_them(tmp_path: Path) -> None:
    data = regressions(clients=6, sizes=(20, 30), seed=SEED)
    stages = Stage(WeCFL(2), 2, TRAINING).then(Stage(FedSPD(2), 2, TRAINING))
    run = coterie.run(linear, data, stages, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run", linear, algorithm=stages)
    one, two = (r.onboard(*newcomer(0.3)) for r in (run, again))
    assert torch.equal(one.personal.rows, two.personal.rows)


def test_an_old_run_does_not_say_whether_it_fits(tmp_path: Path) -> None:
    keep(tmp_path / "run")
    path = tmp_path / "run" / "result.safetensors"
    tensors = load_file(path)
    assert tensors.pop("fit.losses").shape == (6, 2, 20)
    assert tensors.pop("fit.points").shape == (6, 2)
    tensors["fit"] = torch.ones(6)  # the losses that runs once kept
    save_file(tensors, path, {"ids": json.dumps(list("012345"))})
    run = coterie.load(tmp_path / "run", linear, algorithm=FedSPD(2), training=TRAINING)
    new = run.onboard(*far())
    assert (new.fits, new.worse, new.limit) == (None, None, None)
    assert "not known" in new.verdict()
    assert "not known" in run.onboard(*newcomer(0.3, 5)).verdict()


# on the command line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from one table, which is gone afterwards: nothing of the other clients is needed."""
    folder = tmp_path_factory.mktemp("trained")
    data = clients()
    x, y = data.train.x[data.train.at].numpy(), data.train.y[:, 0].numpy()
    frame = pandas.DataFrame(x, columns=[f"f{i}" for i in range(10)])
    frame["cost"], frame["clinic"] = y, data.train.owner.numpy()
    frame.to_parquet(folder / "visits.parquet")
    read = from_table(folder / "visits.parquet", client="clinic", target="cost")
    assert read.features == tuple(f"f{i}" for i in range(10))
    experiment = {
        "rounds": 20,
        "seed": SEED,
        "data": {"source": "table", "table": "visits.parquet", "client": "clinic", "target": "cost"},
        "model": {"name": "linear", "bias": False},
        "algorithm": {"name": "FedSPD", "n_clusters": 2},
        "training": {"learning_rate": 0.02, "epochs": 2},
    }
    (folder / "soft.toml").write_text(toml.write(experiment))
    assert main(["run", str(folder / "soft.toml"), "--out", str(folder / "run")]) == 0
    (folder / "visits.parquet").unlink()
    return folder / "run"


def table_of(x: Tensor, y: Tensor) -> pandas.DataFrame:
    return pandas.DataFrame({**{f"f{i}": x[:, i].numpy() for i in range(10)}, "cost": y.numpy()})


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_there_and_back(trained: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = newcomer(0.3)
    file, out = tmp_path / f"new.{form}", tmp_path / "out"
    if form == "npz":
        np.savez(file, x=x.numpy(), y=y.numpy())
    else:
        table = table_of(x, y)[["cost", *(f"f{i}" for i in reversed(range(10)))]]  # found by their names
        table.to_csv(file, index=False) if form == "csv" else table.to_parquet(file)
    capsys.readouterr()
    assert main(["onboard", str(trained), str(file), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "it fits" in printed.out
    assert printed.err == ""
    sent = json.loads((out / "onboarded.json").read_text())
    expected = coterie.load(trained).onboard(x, y, id="new")
    assert sent["importance"] == pytest.approx(expected.importance, abs=1e-4)
    assert sorted(sent["importance"]) == pytest.approx([0.3, 0.7], abs=0.15)
    assert f"{sent['importance'][0]:.3f}" in printed.out
    assert (sent["id"], sent["points"], sent["fits"]) == ("new", 100, True)
    saved = load_file(out / "personal.safetensors")
    torch.testing.assert_close(saved["rows"], expected.personal.rows[0], atol=1e-3, rtol=0)
    assert saved["weights"].tolist() == [1]
    assert sorted(p.name for p in out.iterdir()) == ["onboarded.json", "personal.safetensors"]
    assert main(["onboard", str(trained), str(file), "--out", str(out)]) == 2
    assert "already holds a client" in capsys.readouterr().err


def test_one_that_fits_no_cluster_is_reported(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(*far()).to_csv(tmp_path / "far.csv", index=False)
    assert main(["onboard", str(trained), str(tmp_path / "far.csv")]) == 0
    assert "it fits no cluster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((4, 9)), "y": np.zeros(4)}, "has 9 features and the clients of the run have 10"),
        ({"x": np.full((4, 10), np.nan), "y": np.zeros(4)}, "point 0: an input is not a finite number"),
        ({"x": np.zeros((4, 10)), "y": np.full(4, np.inf)}, "point 0: the target is not a finite number"),
        ({"x": np.zeros((4, 10)), "y": np.zeros(3)}, "x has 4 points and y has 3"),
        ({"x": np.zeros((0, 10)), "y": np.zeros(0)}, "has no points; at least one is needed"),
        ({"x": np.zeros((4, 10)), "y": np.zeros((4, 2))}, "puts out 1 numbers for a point and the target has 2"),
        ({"x": np.zeros((4, 10)), "y": np.array(list("abcd"))}, "targets are words; regression needs numbers"),
        ({"x": np.full((4, 10), 1e30), "y": np.zeros(4)}, "loss of the run's centers is not finite"),
        ({"x": np.zeros((4, 10))}, "has the arrays x; x and y are needed"),
    ],
)  # fmt: skip
def test_wrong_points(
    trained: Path, tmp_path: Path, arrays: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "new.npz", **arrays)
    refused(capsys, says, str(trained), str(tmp_path / "new.npz"))


def test_wrong_files(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    refused(capsys, "not a whole .npz archive", str(trained), str(tmp_path / "torn.npz"))
    refused(capsys, "is no file of a client", str(trained), str(tmp_path / "none.npz"))
    refused(capsys, "is no file of a client", str(trained), str(tmp_path))
    table = table_of(*newcomer(0.3))
    table.drop(columns="f3").to_csv(tmp_path / "less.csv", index=False)
    refused(capsys, "has no column 'f3'", str(trained), str(tmp_path / "less.csv"))
    table.to_csv(tmp_path / "good.csv", index=False)
    refused(capsys, "has no column 'price'", str(trained), str(tmp_path / "good.csv"), "--target", "price")
    refused(
        capsys, "cannot make the folder", str(trained), str(tmp_path / "good.csv"), "--out",
        str(tmp_path / "good.csv"),
    )  # fmt: skip


def test_wrong_runs(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new.csv"
    table_of(*newcomer(0.3)).to_csv(file, index=False)
    refused(capsys, "has no finished run", str(tmp_path / "nowhere"), str(file))
    shutil.copytree(trained, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "summary.json").unlink()
    refused(capsys, "has no finished run", str(tmp_path / "unfinished"), str(file))
    keep(tmp_path / "python")
    refused(capsys, "was made in Python; take clients in there", str(tmp_path / "python"), str(file))


def test_labels_beyond_the_models_outputs() -> None:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % 3
    run = coterie.run(nn.Linear(3, 3), [(x, y), (x, y)], coterie.IFCA(2), rounds=2)
    with pytest.raises(CoterieError, match=r"label 3; the run's model has outputs for the labels 0 to 2"):
        run.onboard(x, y + 1)
    with pytest.raises(CoterieError, match="label -1; labels are whole numbers from 0"):
        run.onboard(x, y - 1)


def refused(capsys: pytest.CaptureFixture[str], says: str, *arguments: str) -> None:
    capsys.readouterr()
    assert main(["onboard", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1
