"""Mixtures, synthetic data and digits."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.data import digits, gaussians, regressions
from coterie.data.federation import Federation, Points
from coterie.data.partitions.mixtures import components, counts, mixtures
from coterie.data.partitions.transforms import relabel, turn
from coterie.data.synthetic import class_means, coefficients
from coterie.errors import CoterieError
from coterie.prng import numpy_generator

ANY_MIXTURE = st.sampled_from(["10:90", "30:70", "12.5:87.5", "0:100", "linear", "random", "pure"])


def same(a: Federation, b: Federation) -> bool:
    def alike(p: Points, q: Points) -> bool:
        return all(
            torch.equal(getattr(p, name), getattr(q, name))
            for name in ("x", "at", "y", "offset", "component")
        )

    distributions = all(
        torch.equal(t, u) for s, r in zip(pairs(a), pairs(b), strict=True) for t, u in zip(s, r, strict=True)
    )
    return alike(a.train, b.train) and alike(a.test, b.test) and distributions


def pairs(data: Federation) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels of each known distribution."""
    known = data.distributions
    own = [of_client(known, s) for s in range(len(known.sizes))]
    return [(known.x[known.at[one]], known.y[one]) for one in own]


def of_client(points: Points, client: int) -> slice:
    return slice(int(points.offset[client]), int(points.offset[client + 1]))


# Mixtures


@given(ANY_MIXTURE, st.integers(1, 40), st.integers(0, 5))
def test_mixtures_are_shares(kind, clients, seed):
    mixture = mixtures(kind, clients, 2, seed)
    assert mixture.shape == (clients, 2)
    assert mixture.dtype == torch.float64
    assert (mixture >= 0).all()
    assert torch.allclose(mixture.sum(1), torch.ones(clients, dtype=torch.float64), atol=1e-12)


@given(st.sampled_from(["random", "pure"]), st.integers(1, 30), st.integers(1, 7), st.integers(0, 5))
def test_any_number_of_distributions(kind, clients, distributions, seed):
    mixture = mixtures(kind, clients, distributions, seed)
    assert mixture.shape == (clients, distributions)
    assert torch.allclose(mixture.sum(1), torch.ones(clients, dtype=torch.float64), atol=1e-12)


def test_ratio_gives_the_first_half_the_smaller_share_of_the_first_distribution():
    mixture = mixtures("10:90", 100, 2)
    assert mixture[:50].tolist() == [[0.1, 0.9]] * 50
    assert torch.allclose(mixture[50:], torch.tensor([0.9, 0.1], dtype=torch.float64))
    assert (
        mixtures("30:70", 5, 2)[:, 0] == torch.tensor([0.3, 0.3, 0.3, 0.7, 0.7], dtype=torch.float64)
    ).all()


def test_linear_is_half_a_percent_plus_k():
    percent = 100 * mixtures("linear", 100, 2)
    expected = torch.arange(100, dtype=torch.float64) + 0.5
    assert torch.allclose(percent[:, 0], expected)
    assert torch.allclose(percent[:, 1], 100 - expected)


def test_pure_takes_turns():
    assert mixtures("pure", 5, 3).argmax(1).tolist() == [0, 1, 2, 0, 1]


def test_random_divides_the_unit_uniformly():
    mixture = mixtures("random", 20000, 3, seed=1)
    # A spacing of two uniform points is Beta(1, 2): mean 1/3, variance 1/18.
    assert torch.allclose(mixture.mean(0), torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.01)
    assert torch.allclose(mixture.var(0), torch.full((3,), 1 / 18, dtype=torch.float64), atol=0.003)
    assert not torch.equal(mixture, mixtures("random", 20000, 3, seed=2))


@pytest.mark.parametrize(
    ("kind", "distributions", "sentence"),
    [
        ("10:80", 2, "mixture is '10:80'; allowed is two shares that add up to 100"),
        ("lnear", 2, "mixture is 'lnear'; allowed is 'pure', 'linear', 'random', 'uniform', 'iid'"),
        (
            "10:90",
            3,
            "mixture is '10:90', which mixes 2 distributions, not 3; 'random', 'iid' and 'pure' mix any",
        ),
        ("linear", 3, "mixture is 'linear', which mixes 2 distributions, not 3"),
        ("pure", 0, "number of distributions is 0; allowed is a whole number from 1"),
    ],
)
def test_wrong_mixtures(kind, distributions, sentence):
    with pytest.raises(CoterieError, match=sentence):
        mixtures(kind, 10, distributions)


@given(
    st.integers(1, 20).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, 500), min_size=n, max_size=n))
    ),
    st.integers(1, 6),
    st.integers(0, 9),
)
def test_counts_add_up_and_are_near(clients_and_sizes, distributions, seed):
    clients, sizes = clients_and_sizes
    mixture = mixtures("random", clients, distributions, seed)
    size = torch.tensor(sizes)
    whole = counts(mixture, size)
    assert whole.dtype == torch.int64
    assert torch.equal(whole.sum(1), size)
    assert (whole >= 0).all()
    assert ((whole - mixture * size[:, None]).abs() < 1).all()


def test_counts_by_hand():
    mixture = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [0.29, 0.71, 0.0]], dtype=torch.float64)
    # 3.5, 2.1, 1.4 -> 4, 2, 1; 10.1, 90.9 -> 10, 91; 29, 71 although 0.29 * 100 is below 29 in floats
    assert counts(mixture, torch.tensor([7, 101, 100])).tolist() == [[4, 2, 1], [10, 91, 0], [29, 71, 0]]


def test_components_follow_the_counts_in_a_mixed_order():
    whole = torch.tensor([[30, 30], [0, 5], [40, 20]])
    component, offset = components(whole, numpy_generator(0, "test"))
    assert offset.tolist() == [0, 60, 65, 125]
    for client, row in enumerate(whole):
        mine = component[offset[client] : offset[client + 1]]
        assert torch.equal(mine.bincount(minlength=2), row)
    first = component[:60]
    assert not torch.equal(first, first.sort().values)


def test_seed_must_be_a_whole_number():
    with pytest.raises(CoterieError, match="seed is -1; allowed is a whole number from 0"):
        numpy_generator(-1, "test")


# Mixtures of regressions


def test_regressions_have_the_shape_asked_for():
    data = regressions(clients=30, sizes=(50, 60), test_points=7, distribution_points=11, dimension=4)
    assert len(data) == 30
    assert data.task == "regression"
    assert data.n_outputs == 1
    assert set(data.train.sizes.tolist()) <= set(range(50, 61))
    assert data.test.sizes.tolist() == [7] * 30
    assert [tuple(x.shape) for x, _ in pairs(data)] == [(11, 4), (11, 4)]
    assert data.train.y.shape == (len(data.train.x), 1)


def test_sizes_reach_both_ends():
    assert set(regressions(clients=60, sizes=(3, 5), dimension=1).train.sizes.tolist()) == {3, 4, 5}


def test_regressions_hold_the_mixture_that_was_asked_for():
    data = regressions(clients=100, mixture="10:90")
    expected = mixtures("10:90", 100, 2)
    assert (data.mixture - expected).abs().max() <= 1 / 100  # a point more or less of at least 100


@pytest.mark.parametrize("side", ["train", "test"])
def test_each_component_is_its_own_regression_with_noise_of_one(side):
    data = regressions(clients=100, test_points=100, seed=3)
    theta = coefficients(2, 10, 10.0, seed=3)
    points = getattr(data, side)
    x, y = points.x[points.at].double(), points.y.double()
    for s in range(2):
        mine = points.component == s
        fit = torch.linalg.lstsq(x[mine], y[mine]).solution
        residual = y[mine] - x[mine] @ fit
        assert abs(float(residual.var()) - 1) < 0.06
        assert np.allclose(fit[:, 0], theta[s], atol=0.08)


def test_the_distributions_points_come_from_their_own_coefficients():
    data = regressions(noise=0.0, seed=4)
    theta = torch.from_numpy(coefficients(2, 10, 10.0, seed=4))
    for s, (x, y) in enumerate(pairs(data)):
        assert len(x) >= 1000
        assert torch.allclose(x.double() @ theta[s], y[:, 0].double(), atol=1e-4)
        assert not torch.allclose(x.double() @ theta[1 - s], y[:, 0].double(), atol=1.0)


def test_variance_is_a_variance():
    drawn = coefficients(200, 200, variance=10.0)
    assert abs(drawn.var() - 10) < 0.3
    assert abs(drawn.mean()) < 0.1


@given(st.floats(0.5, 1e4), st.integers(0, 50))
@settings(max_examples=30)
def test_separation_is_exact(separation, seed):
    a, b = coefficients(2, 10, 10.0, separation, seed)
    assert ((a - b) ** 2).sum() == pytest.approx(separation, rel=1e-12)
    theta = coefficients(4, 10, 10.0, separation, seed)
    pairs = [((theta[i] - theta[j]) ** 2).sum() for i in range(4) for j in range(i)]
    assert np.mean(pairs) == pytest.approx(separation, rel=1e-12)
    assert np.allclose(theta.mean(0), coefficients(4, 10, 10.0, None, seed).mean(0))


def test_separation_reaches_the_data():
    data = regressions(separation=166.0, noise=0.0)
    fits = [torch.linalg.lstsq(x.double(), y.double()).solution for x, y in pairs(data)]
    assert float(((fits[0] - fits[1]) ** 2).sum()) == pytest.approx(166.0, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sizes": (0, 10)}, r"sizes is \(0, 10\); allowed is the fewest and the most"),
        ({"sizes": (20, 10)}, "sizes is"),
        ({"variance": 0.0}, "variance is 0.0; allowed is a number above 0"),
        ({"noise": -1.0}, "noise is -1.0"),
        (
            {"clusters": 1, "mixture": "pure", "separation": 2.0},
            "clusters is 1; allowed is a whole number from 2 when",
        ),
        ({"clients": 0}, "clients is 0; allowed is a whole number from 1"),
        ({"test_points": -1}, "test_points is -1"),
        ({"dimension": 0}, "dimension is 0"),
    ],
)
def test_wrong_settings_of_regressions(settings, sentence):
    with pytest.raises(CoterieError, match=sentence):
        regressions(**settings)


# Mixtures of Gaussians


def test_gaussians_lie_around_the_means_of_their_cluster_and_class():
    data = gaussians(
        clients=100, clusters=3, mixture="random", classes=4, dimension=6, separation=8.0, seed=2
    )
    means = torch.from_numpy(class_means(3, 4, 6, 8.0, seed=2)).float()
    away = data.train.x - means[data.train.component, data.train.y]
    assert abs(float(away.var()) - 1) < 0.02
    assert abs(float(away.mean())) < 0.02
    assert data.n_outputs == 4
    assert set(data.train.y.tolist()) == {0, 1, 2, 3}


def test_class_means_are_as_far_apart_as_asked():
    means = class_means(2, 5, 10, 5.0).reshape(10, 10)
    squared = [((means[i] - means[j]) ** 2).sum() for i in range(10) for j in range(i)]
    assert np.sqrt(np.mean(squared)) == pytest.approx(5.0, rel=1e-12)


def test_a_class_means_different_things_in_different_clusters():
    data = gaussians(separation=8.0, distribution_points=2000)
    means = torch.from_numpy(class_means(2, 5, 10, 8.0)).float()
    accuracy = torch.tensor(
        [[float((torch.cdist(x, m).argmin(1) == y).float().mean()) for m in means] for x, y in pairs(data)]
    )
    assert (accuracy.diagonal() > 0.9).all()
    assert (accuracy.flip(1).diagonal() < 0.7).all()


# Digits


def sides(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The images to train on and those to test on."""
    order = torch.from_numpy(numpy_generator(seed, "sides").permutation(1797))
    return order[:1347], order[1347:]


def test_digits_are_the_images_of_scikit_learn():
    from sklearn.datasets import load_digits

    data = digits()
    images = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    assert torch.equal(torch.cat([data.train.x, data.test.x]), images[torch.cat(sides())])
    assert (float(data.train.x.min()), float(data.train.x.max())) == (0.0, 1.0)
    assert data.train.sizes.tolist() == [80] * 100
    assert data.test.sizes.tolist() == [20] * 100
    assert data.n_outputs == 10
    assert digits(image=True).train.x.shape == (1347, 1, 8, 8)


def test_relabeled_digits_are_shifted_by_four():
    from sklearn.datasets import load_digits

    truth = torch.tensor(load_digits().target)
    for points, side in zip((digits().train, digits().test), sides(), strict=True):
        assert torch.equal(points.y, (truth[side[points.at]] + 4 * points.component) % 10)
        assert set(points.component.tolist()) == {0, 1}


@pytest.mark.parametrize("distributions", ["relabel", "rotate"])
def test_no_image_twice_and_no_image_on_both_sides(distributions):
    data = digits(distributions=distributions, train_points=300)
    for points, images in ((data.train, 1347), (data.test, 450)):
        for client in range(len(data)):
            mine = points.at[of_client(points, client)] % images
            assert len(mine.unique()) == len(mine)
    assert len((data.train.at % 1347).unique()) == 1347
    assert sorted(torch.cat(sides()).tolist()) == list(range(1797))
    assert len(pairs(data)[0][0]) == 450


def test_the_held_out_images_of_a_distribution_are_never_trained_on():
    data = digits()
    trained = {row.numpy().tobytes() for row in data.train.x[data.train.at]}
    tested = [row.numpy().tobytes() for row in pairs(data)[0][0]]
    assert sum(row in trained for row in tested) == 0
    (x0, y0), (x1, y1) = pairs(data)
    assert torch.equal(x0, x1)
    assert torch.equal(y1, (y0 + 4) % 10)


def test_rotated_digits_are_turned_once_per_distribution():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    data = digits(distributions="rotate", clusters=4, mixture="random", image=True, clients=10)
    assert len(data.train.x) == 4 * 1347
    for point in range(0, 800, 37):
        s, at = int(data.train.component[point]), int(data.train.at[point])
        image = int(sides()[0][at % 1347])
        turned = np.rot90(bunch.images[image] / 16, s)
        assert np.array_equal(data.train.x[at, 0].numpy(), turned.astype(np.float32))
        assert int(data.train.y[point]) == bunch.target[image]


def test_digits_hold_the_linear_mixture():
    assert (digits().mixture - mixtures("linear", 100, 2)).abs().max() <= 0.5 / 80 + 1e-9


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"distributions": "turn"}, "distributions is 'turn'; allowed is rotate, relabel"),
        ({"distributions": "rotate", "clusters": 5, "mixture": "pure"}, "clusters is 5; allowed is 1 to 4"),
        (
            {"shift": 5, "clusters": 3, "mixture": "pure"},
            "shift is 5; allowed is a shift that gives 3 different",
        ),
        ({"shift": 0}, "shift is 0"),
        (
            {"train_points": 1348},
            "train_points is 1348, .* of the training images; allowed is at most the 1347",
        ),
        ({"train_points": 0}, "train_points is 0"),
        (
            {"test_points": 451},
            "test_points is 451, .* of the test images; allowed is at most the 450",
        ),
    ],
)
def test_wrong_settings_of_digits(settings, sentence):
    with pytest.raises(CoterieError, match=sentence):
        digits(**settings)


def test_no_test_points_means_no_test_set():
    assert digits(test_points=0).test is None
    assert regressions(test_points=0).test is None


# All of them


@pytest.mark.parametrize("make", [regressions, gaussians, digits])
def test_same_seed_same_data(make):
    one, again, other = (
        make(mixture="random", seed=5),
        make(mixture="random", seed=5),
        make(mixture="random", seed=6),
    )
    assert same(one, again)
    assert not torch.equal(one.train.component, other.train.component)
    assert not torch.equal(one.train.y, other.train.y)


def test_more_test_points_leave_the_training_points_alone():
    assert torch.equal(regressions(test_points=5).train.x, regressions(test_points=50).train.x)


def test_distributions_are_reusable():
    assert relabel(torch.tensor([0, 5, 9]), 2, shift=3, classes=10).tolist() == [6, 1, 5]
    image = torch.arange(12).reshape(1, 3, 4)
    square = torch.arange(9).reshape(1, 3, 3)
    for s in range(-1, 6):
        assert np.array_equal(turn(square, 90 * s)[0].numpy(), np.rot90(square[0].numpy(), s))
    assert np.array_equal(turn(image, 180)[0].numpy(), np.rot90(image[0].numpy(), 2))
    with pytest.raises(CoterieError, match="angle is 90; allowed is 180 for images of 3x4 pixels"):
        turn(image, 90)


# imports


IMPORT_DATA_ALONE = """
import sys, types
coterie = types.ModuleType("coterie")  # in place of coterie/__init__.py, which imports more than the data
coterie.__path__ = [sys.argv[1]]
sys.modules["coterie"] = coterie
import coterie.data
print(*sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[2:])))
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("coterie.")}))
"""


def test_importing_the_data_imports_nothing_slow_and_no_other_room():
    slow = ["pandas", "pyarrow", "sklearn", "matplotlib", "datasets", "networkx", "pydantic"]
    command = [sys.executable, "-c", IMPORT_DATA_ALONE, str(Path(coterie.__file__).parent), *slow]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[0] == ""
    assert set(found[1].split()) <= {"data", "errors", "files", "memory", "prng", "toml", "validation"}
