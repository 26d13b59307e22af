"""k-FED, then FedAvg for each cluster: on two lines far from each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import coterie
from coterie import CoterieError, FedAvg, Federation, Training
from coterie.data import from_arrays
from coterie.data.federation import Points
from coterie.recipes import Personalised, kfed_personalise

SETTINGS: dict[str, Any] = {
    "rounds": 40,
    "training": Training(learning_rate=0.3, batch_size=None),
    "dtype": torch.float64,
}


def line() -> nn.Module:
    return nn.Linear(2, 1)


def points(where: int, number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """y = ±x0, by whether the input lies at x1 = −1 or 1."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(number, 2, generator=g, dtype=torch.float64) * 0.2
    x[:, 0] = (x[:, 0] - 0.1) * 10
    x[:, 1] += 2 * where - 1
    return x, x[:, :1] * (2 * where - 1)


def pure() -> Federation:
    return federation([[0], [1], [0], [1], [1]])


def mixed() -> Federation:
    return federation([[0, 1], [1, 0], [0, 1], [1, 0]])


def federation(places: list[list[int]]) -> Federation:
    def side(number: int, seed: int) -> Points:
        each = [[points(p, number, seed + 10 * i + p) for p in own] for i, own in enumerate(places)]
        return Points.of([(torch.cat([x for x, _ in c]), torch.cat([y for _, y in c])) for c in each])

    ids = tuple("abcdefgh"[: len(places)])
    return Federation(ids, side(12, 0), side(4, 1000), "regression")


def error(found: Personalised, data: Federation) -> float:
    assert data.test is not None
    each = []
    for i, name in enumerate(data.ids):
        own = slice(int(data.test.offset[i]), int(data.test.offset[i + 1]))
        each.append(found.predict(name, data.test.x[data.test.at[own]]) - data.test.y[own])
    return float(torch.cat(each).abs().max())


def test_clients_of_one_cluster_share_a_model() -> None:
    data = pure()
    found = kfed_personalise(line, data, 2, 1, **SETTINGS)
    assert sorted(run.ids for run in found.runs.values()) == [("a", "c"), ("b", "d", "e")]
    assert error(found, data) < 0.05


def test_a_client_of_two_clusters_trains_both_models_and_a_point_uses_that_of_its_nearest_mean() -> None:
    data = mixed()
    found = kfed_personalise(line, data, 2, 2, **SETTINGS)
    assert [run.ids for run in found.runs.values()] == [data.ids, data.ids]
    assert error(found, data) < 0.05
    one = found.clusters("a", [[0.0, -1.0], [0.0, 1.0], [0.0, -0.9]])
    assert one[0] == one[2] != one[1]
    both = found.predict("a", [[1.0, -1.0], [1.0, 1.0]])
    assert both.flatten().tolist() == pytest.approx([-1, 1], abs=0.1)
    blind = kfed_personalise(line, data, 2, 1, **SETTINGS)  # clients as wholes are all alike
    assert error(blind, data) > 0.5


def test_each_part_is_a_run_of_just_those_points() -> None:
    """As if the clients of a cluster had been alone, to the bit."""
    data = pure()
    found = kfed_personalise(line, data, 2, 1, **SETTINGS)
    alone = coterie.run(line, federation_of(data, ["b", "d", "e"]), FedAvg(), **SETTINGS)
    run = next(run for run in found.runs.values() if run.ids == ("b", "d", "e"))
    x = torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(run.personal["d"](x), alone.personal["d"](x))
    assert run.summary["personal"] == alone.summary["personal"]
    assert run.summary["traffic"] == alone.summary["traffic"]


def federation_of(data: Federation, ids: list[str]) -> Federation:
    assert data.test is not None
    at = torch.tensor([data.ids.index(name) for name in ids])
    return Federation(tuple(ids), data.train.take(at), data.test.take(at), data.task)


def test_one_cluster_is_fedavg() -> None:
    data = mixed()
    found = kfed_personalise(line, data, 1, 1, **SETTINGS)
    alone = coterie.run(line, data, FedAvg(), **SETTINGS)
    x = torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(found.predict("b", x), alone.personal["b"].predict(x))
    means = 8 * 4 * (2 + 1) / 1e6  # a mean of two features up, and its cluster down, of four clients
    assert found.megabytes == pytest.approx(alone.summary["megabytes"] + means)


def test_the_order_of_clients_does_not_matter() -> None:
    data = mixed()
    one = kfed_personalise(line, data, 2, 2, **SETTINGS)
    other = kfed_personalise(line, data.permuted([2, 0, 3, 1]), 2, 2, **SETTINGS)
    x = torch.tensor([[0.5, -1.0], [0.5, 1.0]], dtype=torch.float64)
    for name in data.ids:
        torch.testing.assert_close(one.predict(name, x), other.predict(name, x))


def test_your_own_arrays_classes_images_and_folders(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    data = {
        f"phone {i}": (torch.rand(20, 1, 2, 2, generator=g) + 5 * (i % 2), torch.arange(20) % 2)
        for i in range(4)
    }

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    found = kfed_personalise(net, data, 2, 1, rounds=1, out=tmp_path / "both")
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["cluster-0", "cluster-1"]
    assert set(found.predict("phone 1", torch.rand(3, 1, 2, 2)).tolist()) <= {0, 1}


def test_pixels_are_normalised_in_each_cluster_as_in_the_whole() -> None:
    g = torch.Generator().manual_seed(0)
    dark, light = ((torch.rand(12, 1, 2, 2, generator=g) * 50 + 200 * i).to(torch.uint8) for i in range(2))
    points = Points.of([(dark, torch.arange(12) % 2), (light, torch.arange(12) % 2)])
    data = Federation(("a", "b"), points, n_outputs=2, normalise=((100.0,), (50.0,)))

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    found = kfed_personalise(net, data, 2, 1, rounds=2)
    for r, name in enumerate(data.ids):
        at = int(found.clusters(name, data.train.x[12 * r : 12 * r + 1])[0])
        alone = replace(data, ids=(name,), train=data.train.take(torch.tensor([r])))
        pairs = zip(found.runs[at].centers, coterie.run(net, alone, FedAvg(), rounds=2).centers, strict=True)
        for one, other in pairs:
            assert torch.equal(one.module[1].weight, other.module[1].weight)


def test_a_cluster_without_test_points_has_no_test() -> None:
    train, one = [points(0, 9, 1), points(1, 9, 2)], points(0, 3, 3)
    none = (one[0][:0], one[1][:0])
    data = Federation(("a", "b"), Points.of(train), Points.of([one, none]), "regression")
    found = kfed_personalise(line, data, 2, 1, **{**SETTINGS, "rounds": 1})
    tested = {run.ids: run.summary["personal"] for run in found.runs.values()}
    assert tested[("a",)]
    assert not tested[("b",)]


def test_what_is_wrong_is_said() -> None:
    data = pure()
    with pytest.raises(CoterieError, match=r"^n_clusters is 6 and the devices have 5 local means in all"):
        kfed_personalise(line, data, 6, 1, **SETTINGS)
    found = kfed_personalise(line, from_arrays([points(0, 9, 1)], 0.0, task="regression"), 1, rounds=0)
    with pytest.raises(CoterieError, match=r"^there is no client 'z'; allowed are the 1 of the data"):
        found.predict("z", [[0.0, 0.0]])
