"""k-FED's clusterings, each on a small case."""

from __future__ import annotations

from typing import Any

import pytest

from coterie import CoterieError
from coterie.reproduction.clusterings import mixture, play
from tests.reproduction.test_items import METHODS

SMALL: dict[str, dict[str, Any]] = {
    "gaussians": {"d": 20, "k": 9, "m0": 3, "points": 20, "nearest": 50.0},
    "partitions": {"source": "digits", "k": 9, "local": 2, "devices": 12, "points": 600},
    "separation": {"source": "digits", "k": 9, "points": 300},
    "personalise": {
        "source": "digits",
        "devices": 8,
        "local": 2,
        "rounds": 2,
        "hidden": [8],
        "points": 40,
        "training": {"learning_rate": 0.1, "batch_size": 10, "steps": 5},
    },
}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, dict[str, float]]]:
    return {task: play({"task": task, **settings}, seed=0) for task, settings in SMALL.items()}


def test_each_task_has_its_methods(found: dict[str, Any]) -> None:
    assert {task: set(each) for task, each in found.items()} == METHODS


def test_gaussians_far_apart_are_separated(found: dict[str, Any]) -> None:
    for each in found["gaussians"].values():
        assert each["accuracy"] == 1
    assert found["gaussians"]["k-FED"]["megabytes"] < found["gaussians"]["pooled k-means"]["megabytes"]


def test_the_theorem_s_separation() -> None:
    """c·k·√m0, so that this c gives the same means as 50σ."""
    by_c = play({"task": "gaussians", **{**SMALL["gaussians"], "nearest": None, "c": 50 / (9 * 3**0.5)}}, 0)
    assert by_c == play({"task": "gaussians", **SMALL["gaussians"]}, 0)
    near = play({"task": "gaussians", **{**SMALL["gaussians"], "nearest": 0.1}}, 0)
    assert near["k-FED"]["accuracy"] < 0.5


def test_the_mixture_has_k_prime_components_on_a_device() -> None:
    devices, components = mixture(d=5, k=16, m0=3, points=4, apart=10.0, seed=0)
    assert len(devices) == 4 * 3
    assert {len(x) for x in devices} == {4 * 4}
    assert len(set(components[:16])) == 4


def test_devices_of_few_clusters_come_nearer_to_the_oracle(found: dict[str, Any]) -> None:
    each = found["partitions"]
    assert each["k-FED"]["cost"] < each["k-FED IID"]["cost"]
    assert each["k-FED"]["relative"] == pytest.approx(
        (each["k-FED"]["cost"] - 1) / (each["k-FED IID"]["cost"] - 1)
    )
    naive = each["distributed k-means"]
    assert naive["cost"] <= naive["after five rounds"] <= naive["after one round"]
    assert naive["rounds"] > 1


def test_shares_of_pairs(found: dict[str, Any]) -> None:
    each = found["separation"]["pooled k-means"]
    assert 0 < each["median separation"] < 1
    assert each["share above 0.5"] <= each["share below 1"] <= 1


def test_images_get_the_model_of_their_cluster(found: dict[str, Any]) -> None:
    each = found["personalise"]
    assert all(0 < one["accuracy"] <= 1 for one in each.values())
    assert each["Local"]["megabytes"] == 0
    assert each["Global"]["megabytes"] < each["k-FED"]["megabytes"] < each["IFCA random init"]["megabytes"]


def test_a_task_that_is_not_known() -> None:
    with pytest.raises(CoterieError, match=r"clustering.task .*allowed is gaussians, partitions"):
        play({"task": "spectral"}, 0)
