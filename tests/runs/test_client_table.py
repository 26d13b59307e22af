"""Who is in which cluster: run.clients, clients.csv, importance.csv, and sizes of clusters in the history."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from pandas.testing import assert_frame_equal
from safetensors.torch import load_file, save_file

import coterie
from coterie import IFCA, Algorithm, FedAvg, Federation, FedSPD, Local, Privacy, Stage, Stages, WeCFL
from coterie.algorithms.plus import FedAvgPlus
from coterie.backends.loopback import Loopback, loopback
from coterie.data import from_arrays, gaussians, regressions
from coterie.protocol.envelope import opened
from coterie.protocol.remote import Parts
from coterie.runs.folder import TABLES, RunFolder
from coterie.runs.metrics import cluster_of, cluster_sizes
from coterie.runs.play import play
from coterie.runs.result import Run
from tests.builders import TRAINING, affine, clients, linear

STRANGE = ["=1+1", 'a "b"', "c, d", "007", "NA", "new\nline"]


def small(**more: Any) -> Federation:
    settings: dict[str, Any] = {
        "clients": 8,
        "sizes": (12, 20),
        "test_points": 5,
        "separation": 166.0,
        **more,
    }
    return regressions(seed=2, **settings)


def played(algorithm: Algorithm, data: Federation | None = None, **more: Any) -> Run:
    return coterie.run(affine, data or small(), algorithm, rounds=2, training=TRAINING, init="random", **more)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# what is in it


def test_one_line_per_client() -> None:
    data = small()
    run = played(FedSPD(2), data)
    found = run.clients
    assert list(found.columns) == ["cluster", "importance", "margin", "points", "loss"]
    assert found.index.tolist() == list(data.ids)
    assert found.index.name == "id"
    assert found.points.tolist() == data.train.sizes.tolist()
    assert found.cluster.tolist() == run.importance.to_numpy().argmax(1).tolist()
    assert found.importance.tolist() == pytest.approx(run.importance.to_numpy().max(1).tolist())
    personal = run.summary["personal"]
    assert found.loss.mean() == pytest.approx(personal["loss"])
    assert found.points.nunique() > 1
    weighted = (found.loss * found.points).sum() / found.points.sum()
    assert weighted == pytest.approx(personal["loss_by_points"], rel=1e-5)
    assert weighted != pytest.approx(personal["loss"], rel=1e-3)


@pytest.mark.parametrize("algorithm", [FedSPD(2), IFCA(2)], ids=lambda a: a.title())
def test_the_margin_by_hand(algorithm: Algorithm) -> None:
    """On held-out points: of each point where clusters are soft, of the client as a whole where they are hard."""
    data = small()
    run = played(algorithm, data)
    assert data.test is not None
    x, y = data.test.x[data.test.at], data.test.y
    with torch.no_grad():
        each = torch.cat([(center(x) - y).square() for center in run.centers], 1).view(8, 5, 2)
    two = each.sort(2).values.mean(1) if algorithm.soft else each.mean(1).sort(1).values
    assert run.clients.margin.tolist() == pytest.approx((two[:, 1] - two[:, 0]).tolist(), rel=1e-4)


def test_without_held_out_points_the_margin_is_on_training_points() -> None:
    data = small(test_points=0)
    run = played(IFCA(2), data)
    x, y, owner = data.train.x[data.train.at], data.train.y, data.train.owner
    with torch.no_grad():
        each = torch.cat([(center(x) - y).square() for center in run.centers], 1)
    means = torch.stack([each[owner == i].mean(0) for i in range(8)])
    assert run.clients.margin.tolist() == pytest.approx((means[:, 0] - means[:, 1]).abs().tolist(), rel=1e-4)
    assert run.clients.loss.isna().all()


def test_classes_have_accuracy_and_f1() -> None:
    data = gaussians(clients=6, sizes=(6, 8), dimension=3, test_points=10)
    run = coterie.run(lambda: torch.nn.Linear(3, data.n_outputs), data, IFCA(2), rounds=2, training=TRAINING)
    for name in ("loss", "accuracy", "f1"):
        assert run.clients[name].mean() == pytest.approx(run.summary["personal"][name], rel=1e-5)


@pytest.mark.parametrize("algorithm", [Local(), FedAvgPlus(2)], ids=lambda a: a.title())
def test_nobody_has_a_cluster_where_there_are_none(algorithm: Algorithm) -> None:
    run = played(algorithm)
    assert run.clients[["cluster", "importance"]].isna().all(axis=None)
    assert run.clients[["points", "loss"]].notna().all(axis=None)
    assert not [name for name in run.history if name.startswith("cluster_size")]


def test_one_model_for_all_has_no_margin() -> None:
    run = played(FedAvg())
    assert run.summary["clusters"] == 1
    assert run.clients.cluster.tolist() == [0] * 8
    assert run.clients.margin.isna().all()


def test_sizes_that_privacy_withholds_stay_empty() -> None:
    assert played(FedAvg(), privacy=Privacy(noise=0.0)).clients.points.isna().all()
    sent = Privacy(noise=0.0, size="sent")
    assert played(FedAvg(), privacy=sent).clients.points.notna().all()


class Taciturn(Loopback):
    """One client leaves some questions unanswered."""

    unanswered: tuple[str, ...] = ()

    def carry(self, parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        replies = dict(super().carry(parcels))
        if opened(next(iter(parcels.values()))[0])[0].question in self.unanswered:
            replies.pop(clients().ids[1])
        return replies


@pytest.mark.parametrize(
    ("question", "empty"),
    [("fit", {"margin"}), ("size", {"points"}), ("finish", {"cluster", "importance", "loss"})],
)
def test_who_does_not_answer_has_empty_cells(question: str, empty: set[str], tmp_path: Path) -> None:
    run = loopback(linear, clients(), Stages((Stage(IFCA(2), 2, TRAINING),)), seed=3)
    run.clients.__class__, run.clients.unanswered = Taciturn, (question,)  # type: ignore
    ended = play(run, clients().description, experiment="", evaluate_every=1, out=tmp_path / "run")
    found = ended.clients
    silent = found.index[1]
    assert set(found.columns[found.loc[silent].isna()]) == empty
    assert found.drop(index=silent).notna().all(axis=None)
    line = read(tmp_path / "run" / "clients.csv")[1]
    assert {name for name, cell in line.items() if cell == ""} == empty


# files


def test_files_say_what_python_says(tmp_path: Path) -> None:
    points = small()
    pairs = {
        name: (
            points.train.x[points.train.at[points.train.owner == i]],
            points.train.y[points.train.owner == i],
        )
        for i, name in enumerate(STRANGE)
    }
    run = played(FedSPD(2), from_arrays(pairs), out=tmp_path / "run")
    assert [line["id"] for line in read(tmp_path / "run" / "clients.csv")] == STRANGE
    plain: dict[str, Any] = {
        "dtype": {"id": str},
        "index_col": "id",
        "na_values": [""],
        "keep_default_na": False,
    }
    table = pandas.read_csv(tmp_path / "run" / "clients.csv", **plain)
    assert_frame_equal(table, run.clients, check_dtype=False, check_exact=True, check_index_type=False)
    shares = pandas.read_csv(tmp_path / "run" / "importance.csv", **plain)
    assert shares.index.tolist() == STRANGE
    assert shares.columns.tolist() == ["0", "1"]
    assert shares.to_numpy().astype("float32").tolist() == run.importance.to_numpy().tolist()


@pytest.mark.parametrize("algorithm", [FedSPD(2), IFCA(2), Local()], ids=lambda a: a.title())
def test_a_loaded_run_has_the_same_lines(algorithm: Algorithm, tmp_path: Path) -> None:
    run = played(algorithm, out=tmp_path / "run")
    assert_frame_equal(coterie.load(tmp_path / "run", affine).clients, run.clients, check_exact=True)


def test_a_diverged_client_is_not_an_unknown_one(tmp_path: Path) -> None:
    one_step = coterie.Training(
        learning_rate=1e25, epochs=1, batch_size=None
    )  # to a model that is just finite
    run = coterie.run(affine, small(), Local(), rounds=1, training=one_step, out=tmp_path / "run")
    assert run.clients.loss.tolist() == [float("inf")] * 8
    assert read(tmp_path / "run" / "clients.csv")[0]["loss"] == "inf"


@pytest.mark.parametrize(("algorithm", "scored"), [(IFCA(2), True), (FedSPD(2, final_epochs=5), False)])
def test_an_old_folder_shows_what_it_has(algorithm: Algorithm, scored: bool, tmp_path: Path) -> None:
    """Scores were kept of the last round alone, which are not those of models that a final phase changed."""
    run = played(algorithm, out=tmp_path / "run")
    path = tmp_path / "run" / "result.safetensors"
    kept = ("centers", "importance", "personal.rows", "personal.weights", "fit")
    tensors = {name: tensor for name, tensor in load_file(path).items() if name in kept}
    save_file(tensors, path, {"ids": json.dumps(run.ids)})
    summary = RunFolder(tmp_path / "run").summary()
    del summary["clusters"]
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    for name in TABLES:
        (tmp_path / "run" / name).unlink()
    old = coterie.load(tmp_path / "run", affine).clients
    names = ["cluster", "importance", *(["loss"] if scored else [])]
    assert_frame_equal(old[names], run.clients[names])
    assert old[["margin", "points"]].isna().all(axis=None)
    assert old.loss.notna().all() == scored


def test_tables_belong_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("mine")
    store = RunFolder(tmp_path)
    assert store.taken
    store.clear()
    assert not store.taken


# sizes of clusters


def test_clusters_by_hand() -> None:
    importance = torch.tensor([[0.2, 0.8, 0.0], [torch.nan] * 3, [0.5, 0.5, 0.0], [0.0, 0.9, 0.1]])
    assert cluster_of(importance).tolist() == [1, -1, 0, 1]
    assert cluster_sizes(importance) == [1, 2, 0]
    assert cluster_of(torch.full((3, 2), 0.5)).tolist() == [-1, -1, -1]
    assert cluster_of(torch.ones(3, 1)).tolist() == [0, 0, 0]


def test_where_the_server_clusters_sizes_are_known_in_every_round() -> None:
    run = coterie.run(affine, small(), WeCFL(2), rounds=5, training=TRAINING, evaluate_every=5)
    sizes = run.history[["cluster_size_0", "cluster_size_1"]]
    assert sizes.sum(axis=1).tolist() == [8] * 5
    assert sizes.iloc[-1].tolist() == [(run.clients.cluster == s).sum() for s in range(2)]


def test_sizes_of_clusters_are_in_the_history(tmp_path: Path) -> None:
    run = coterie.run(
        affine, small(), IFCA(3), rounds=5, training=TRAINING, evaluate_every=2, out=tmp_path / "run"
    )
    names = ["cluster_size_0", "cluster_size_1", "cluster_size_2"]
    sizes = run.history[names]
    # of IFCA when it is evaluated; the first round is of its initialisation, by WeCFL
    assert sizes.notna().all(axis=1).tolist() == [True, True, False, True, True]
    assert sizes.dropna().sum(axis=1).tolist() == [8] * 4
    assert sizes.iloc[-1].tolist() == [(run.clients.cluster == s).sum() for s in range(3)]
    for round in (1, 3):
        importance = RunFolder(tmp_path / "run").columns(round)["importance"]
        assert sizes.iloc[round].tolist() == importance.sum(0).tolist()
