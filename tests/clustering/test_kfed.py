"""k-FED: numbers computed by hand, relations, degenerate devices."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import check_estimator

from coterie import CoterieError, KFed
from coterie.clustering.kfed import combine, local_clusters
from coterie.clustering.local import nearest
from tests.builders import CENTERS, apart_by, column, devices

CANNOT_APPLY = {
    "check_array_api_input": "distances are computed by numpy and BLAS; no other arrays are taken, nor claimed to be"
}


def test_farthest_first_and_one_lloyd_round() -> None:
    sent = [column(4), column(0, 10), column(100)]  # begins with 0 and 10, then 100; 4 is nearer to 0
    found = combine(sent, 3)
    assert found.centers.tolist() == [[2], [10], [100]]
    assert [c.tolist() for c in found.clusters] == [[0], [0, 1], [2]]


def test_more_lloyd_rounds() -> None:
    sent = [column(0, 10), column(4.9), column(6), column(6)]
    assert combine(sent, 2).centers.ravel() == pytest.approx([2.45, 22 / 3])
    assert combine(sent, 2, lloyd_rounds=2).centers.ravel() == pytest.approx([0, 26.9 / 4])
    assert combine(sent, 2, lloyd_rounds=None).centers.ravel() == pytest.approx([0, 26.9 / 4])


def test_sizes_weigh() -> None:
    sent, sizes = [column(0, 10), column(2)], [[1, 1], [3]]
    assert combine(sent, 2).centers.ravel().tolist() == [1, 10]
    assert combine(sent, 2, sizes=sizes).centers.ravel().tolist() == [1.5, 10]


# what each step of Algorithm 1 is for


def test_the_projection_keeps_the_means_and_drops_the_rest() -> None:
    """Two means at right angles, and in four other directions every corner of a cube, as wide as they are apart.

    Uncentred, the two strongest directions are those of the means. Without the projection, or with one of centred
    points, which needs one direction for the means and has one left for the cube, some initialisations split the cube.
    """
    cube = np.array(list(itertools.product([-6.5, 6.5], repeat=4)))
    means = np.repeat([[10.0, 0.0], [0.0, 10.0]], len(cube), axis=0)
    x = np.hstack([means, np.concatenate([cube, cube])])
    for seed in range(50):
        labels = local_clusters(x, 2, random_state=seed).labels
        assert adjusted_rand_score(means[:, 0], labels) == 1


def test_the_filter_leaves_points_between_two_clusters_out_of_the_initialisation() -> None:
    """0 ± 2 and 10, and some at 5.5: nearer to 10 than to 0, but not than to 2, which may be the seed.

    Both ways to divide them are stable. Filtered, the means are those of the two clusters wherever the seeds are
    in them; only seeds at 5.5 and 10 go wrong. Without the filter every seed at 2 does, half of all.
    """
    x = column(*[-2] * 5, *[2] * 5, *[5.5] * 3, *[10] * 10)
    right = 0
    for seed in range(100):
        right += local_clusters(x, 2, random_state=seed).means.min() == 0
    assert right >= 90


def test_local_steps_go_on_until_nothing_changes() -> None:
    x = np.random.default_rng(0).normal(size=(80, 3))
    for seed in range(5):
        found = local_clusters(x, 6, random_state=seed)
        assert np.array_equal(nearest(x, found.means), found.labels)
        for r, mean in enumerate(found.means):
            assert x[found.labels == r].mean(axis=0) == pytest.approx(mean)


def test_a_point_has_the_cluster_of_its_local_mean() -> None:
    """Definition 3.3: 9 is nearest to the center at 10, but its device's mean, 3.75, is of the other cluster."""
    model = KFed(2, 1, random_state=0).fit([column(0), column(10), column(2, 2, 2, 9)])
    first, second, *third = model.labels_.tolist()
    assert first != second
    assert third == [first] * 4
    assert model.predict(column(9)).tolist() == [second]
    assert model.join(column(2, 2, 2, 9)).labels.tolist() == [first] * 4


# relations


def test_one_device_is_its_local_clustering() -> None:
    x = np.concatenate(devices()[0])
    model = KFed(6, random_state=3).fit(x)
    own = local_clusters(x, 6, random_state=3)
    assert np.array_equal(model.device_centers_[0], own.means)
    clusters = model.device_clusters_[0]
    assert sorted(clusters) == list(range(6))
    assert np.array_equal(model.labels_, clusters[own.labels])
    assert model.cluster_centers_[clusters] == pytest.approx(own.means)


def test_a_device_alone_computes_what_it_computes_here() -> None:
    points, _ = devices()
    model = KFed(6, 2, n_init=3, random_state=7).fit(points)
    alone = [local_clusters(x, 2, n_init=3, random_state=7) for x in points]
    for here, there in zip(model.device_centers_, alone, strict=True):
        assert np.array_equal(here, there.means)
    assert np.array_equal(
        model.cluster_centers_, combine([a.means for a in alone], 6, random_state=7).centers
    )


@pytest.mark.parametrize("weights", ["equal", "size"])
@pytest.mark.parametrize("settings", [{"n_clusters": 6, "n_local_clusters": 2}, {}])
def test_the_order_of_devices_does_not_matter(settings: dict[str, Any], weights: str) -> None:
    points, _ = devices(1, n=12)
    order = np.random.default_rng(0).permutation(len(points))
    one = KFed(weights=weights, random_state=5, **settings).fit(points)
    other = KFed(weights=weights, random_state=5, **settings).fit([points[z] for z in order])
    assert np.array_equal(one.cluster_centers_, other.cluster_centers_)
    for place, z in enumerate(order):
        assert np.array_equal(one.device_labels_[z], other.device_labels_[place])


def test_a_list_and_an_array_with_ids_give_the_same() -> None:
    points, _ = devices()
    x, ids = np.concatenate(points), np.repeat([f"phone {z}" for z in range(9)], 40)
    shuffle = np.argsort(
        np.random.default_rng(0).random(len(x)) + np.arange(len(x)) % 40 * 10
    )  # kept within devices
    listed = KFed(6, 2, random_state=0).fit(points)
    model = KFed(6, 2, random_state=0)
    assert np.array_equal(model.fit_predict(x[shuffle], devices=ids[shuffle]), listed.labels_[shuffle])
    assert list(model.devices_) == sorted(set(ids))
    assert np.array_equal(listed.labels_, np.concatenate(listed.device_labels_))


def test_devices_that_never_arrive_are_not_missed() -> None:
    points, truth = devices()
    kept = [0, 4, 8]  # all six clusters between them
    model = KFed(6, 2, random_state=0).fit([points[z] for z in kept])
    assert adjusted_rand_score(np.concatenate([truth[z] for z in kept]), model.labels_) == 1


@pytest.mark.parametrize("settings", [{"n_local_clusters": 2}, {"n_local_clusters": "auto"}])
@pytest.mark.parametrize("n_clusters", [6, None])
def test_separated_clusters_are_recovered(n_clusters: int | None, settings: dict[str, Any]) -> None:
    points, truth = devices()
    model = KFed(n_clusters, random_state=0, n_init=4, **settings).fit(points)
    assert adjusted_rand_score(np.concatenate(truth), model.labels_) == 1
    assert len(model.cluster_centers_) == 6
    assert all(len(means) == 2 for means in model.device_centers_)
    assert np.array_equal(model.predict(np.concatenate(points)), model.labels_)


def test_one_number_for_each_device() -> None:
    points, truth = devices()
    points.append(CENTERS[[0] * 9] + 0.1)
    model = KFed(6, [2] * 9 + [1], random_state=0).fit(points)
    assert [len(m) for m in model.device_centers_] == [2] * 9 + [1]
    assert adjusted_rand_score(np.concatenate([*truth, [0] * 9]), model.labels_) == 1


def test_more_initialisations_do_not_cost_more() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))

    def cost(n_init: int) -> float:
        found = local_clusters(x, 6, n_init=n_init, random_state=1)
        return float(((x - found.means[found.labels]) ** 2).sum())

    assert cost(10) <= cost(3) <= cost(1)
    assert cost(10) < cost(1)


def test_far_from_the_origin_nothing_is_lost() -> None:
    points, truth = devices()
    model = KFed(6, 2, random_state=0).fit([x + 1e8 for x in points])
    assert (
        adjusted_rand_score(np.concatenate(truth), model.labels_) > 0.6
    )  # one of two directions is the offset
    x = column(1e8, 1e8 + 1, 1e8 + 10, 1e8 + 11)
    assert local_clusters(x, 2, random_state=0).sizes.tolist() == [2, 2]


@pytest.mark.parametrize("separation", [3.0, 6.0, 20.0])
def test_clusters_that_overlap_are_warned_of_and_others_never(separation: float) -> None:
    for seed in range(20):
        points, _ = apart_by(separation, seed)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = KFed(6, 2, random_state=seed).fit(points)
        expected = ["the nearest two of the 6 clusters"] if separation < 4 else []
        assert [str(one.message)[:33] for one in said] == expected
        assert (model.gap_ < 4) == (separation < 4)


def test_ten_initialisations_by_default_find_what_one_misses() -> None:
    """Means 6σ apart in 100 dimensions, four of sixteen on a device, with 15 points each."""
    found = {}
    for n_init in (None, 1):
        accuracies = []
        for seed in range(6):
            chance = np.random.default_rng(seed)
            means = chance.normal(size=(16, 100))
            means *= 6 / pdist(means).min()
            truth = [np.repeat(np.arange(4) + 4 * (z % 4), 15) for z in range(20)]
            points = [means[t] + chance.normal(size=(len(t), 100)) for t in truth]
            settings = {} if n_init is None else {"n_init": n_init}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = KFed(16, 4, random_state=seed, **settings).fit(points)
            accuracies.append(adjusted_rand_score(np.concatenate(truth), model.labels_))
        found[n_init] = np.mean(accuracies)
    assert found[None] > 0.95
    assert found[1] < 0.8


# later devices


def test_joining_changes_nothing_and_labels_rightly() -> None:
    points, _ = devices()
    model = KFed(6, 2, random_state=0).fit(points[:6])
    before = {name: np.copy(value) for name, value in vars(model).items() if name.endswith("_")}
    for z in range(9):
        joined = model.join(points[z])
        assert np.array_equal(
            joined.labels, joined.clusters[local_clusters(points[z], 2, random_state=0).labels]
        )
        assert joined.means.shape == (2, 5)
        assert np.array_equal(
            joined.labels, model.device_labels_[z % 3]
        )  # has the same clusters, in the same order
    assert np.array_equal(model.join(points[0]).labels, model.device_labels_[0])
    assert len(model.join(points[8], n_local_clusters=1).clusters) == 1
    for name, value in before.items():
        np.testing.assert_array_equal(value, getattr(model, name), name)


def test_without_a_random_state_joining_repeats_the_draws_of_fit() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))  # nothing to find, so that the initialisation matters
    model = KFed(5, 5).fit([x, x + 1])
    assert np.array_equal(model.join(x).means, model.device_centers_[0])


def test_joining_needs_one_number_and_a_fit() -> None:
    points, _ = devices()
    with pytest.raises(NotFittedError):
        KFed(6, 2).join(points[0])
    with pytest.raises(CoterieError, match="one device that joins"):
        KFed(6, [2] * 9).fit(points).join(points[0])


# degenerate devices

ODD = {
    "one point": np.ones((1, 5)),
    "fewer points than clusters": np.arange(10.0).reshape(2, 5),
    "identical points": np.ones((7, 5)),
    "zeros": np.zeros((7, 5)),
    "two different points": np.repeat(np.eye(5)[:2], 4, axis=0),
    "no points": np.empty((0, 5)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("k", [1, 3, "auto"])
def test_odd_devices(name: str, k: Any) -> None:
    x = ODD[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = local_clusters(x, k, n_init=2, random_state=0)
        distinct = len(np.unique(x, axis=0))
        assert len(found.means) == (min(k, distinct) if k != "auto" else len(found.means)) <= distinct
        assert found.sizes.sum() == len(x) == len(found.labels)
        if len(x):
            assert len(local_clusters(x[:, :1], k, random_state=0).means) >= 1  # d < k'
        points, truth = devices()
        model = KFed(6, random_state=0).fit([*points, x])
    assert len(model.device_labels_[-1]) == len(x)
    assert adjusted_rand_score(np.concatenate(truth), model.labels_[: 9 * 40]) == 1


def test_identical_points_on_all_devices_are_fewer_clusters() -> None:
    with pytest.warns(ConvergenceWarning, match="only 1 of the 2"):
        model = KFed(2, 1, random_state=0).fit([np.ones((3, 2))] * 4)
    assert model.cluster_centers_.tolist() == [[1, 1]]
    assert len(KFed().fit([np.ones((3, 2))] * 4).cluster_centers_) == 1


def test_clusters_seen_once_cannot_be_counted_and_that_is_said() -> None:
    with pytest.warns(ConvergenceWarning, match="no number of clusters separates the 6 means"):
        assert len(KFed(None, 2, random_state=0).fit(devices()[0][:3]).cluster_centers_) == 2


def test_more_local_clusters_than_clusters() -> None:
    points, _ = devices()
    model = KFed(2, 3, random_state=0).fit(points)
    assert set(model.labels_) == {0, 1}


# as a scikit-learn estimator


@pytest.mark.parametrize("settings", [{}, {"n_clusters": 2}, {"weights": "size", "lloyd_rounds": None}])
def test_scikit_learn_checks(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning for each check that is skipped
        checked = check_estimator(KFed(**settings), on_fail=None, expected_failed_checks=CANNOT_APPLY)
    odd = {one["check_name"]: one["exception"] for one in checked if one["status"] != "passed"}
    assert odd.keys() <= CANNOT_APPLY.keys(), odd
    assert len(checked) > 30


def test_parameters_and_clone() -> None:
    model = KFed(4, 2, n_init=3, random_state=1)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(n_init=5).n_init == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_clusters": 0}, "n_clusters is 0; allowed is a whole number from 1, or None"),
        ({"n_local_clusters": "many"}, "n_local_clusters is 'many'; allowed is 'auto', a whole number"),
        ({"n_local_clusters": [2, 2]}, "one for each of the 9 devices"),
        ({"n_init": 0}, "n_init is 0"),
        ({"lloyd_rounds": 0}, "lloyd_rounds is 0"),
        ({"weights": "none"}, "allowed is 'equal' or 'size'"),
        ({"random_state": -1}, "random_state is -1"),
        ({"n_clusters": 19, "n_local_clusters": 2}, "n_clusters is 19 and the devices have 18 local means"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        KFed(**settings).fit(devices()[0])


def test_wrong_data() -> None:
    points, _ = devices()
    with pytest.raises(CoterieError, match="device 1 cannot be used"):
        KFed(6, 2).fit([points[0], points[1][:, :3]])
    with pytest.raises(CoterieError, match="one id for each of the 40 points"):
        KFed(6, 2).fit(points[0], devices=[1, 2])
    with pytest.raises(CoterieError, match="missing ids"):
        KFed(6, 2).fit(points[0], devices=[np.nan] * 40)
    with pytest.raises(CoterieError, match="no device has a point"):
        KFed().fit([np.empty((0, 2))])
    with pytest.raises(CoterieError, match="the means of device 1"):
        combine([np.ones((2, 3)), np.full((2, 3), np.nan)], 1)
