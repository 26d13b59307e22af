"""Sources partitioned among clients: every image as promised, every component and mixture true."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.data import Partition, Source, partition
from coterie.data.federation import Federation, Points
from coterie.data.partitions.assign import dirichlet, divided, filled, weights
from coterie.data.partitions.mixtures import few, mixtures, structured
from coterie.data.partitions.transforms import _interpolated, cases, turn
from coterie.data.sources.joined import fitted, joined
from coterie.errors import CoterieError

SHOWN = ["none", "rotate", "relabel", "permute"]
SIDES = ("train", "test")


def toy(train: int = 240, test: int = 80, classes: int = 10, seed: int = 0, side: int = 4) -> Source:
    """Images that are all different, of classes that are equally frequent."""
    rng = np.random.default_rng(seed)
    n = train + test
    x = torch.from_numpy(rng.integers(0, 256, (n, 1, side, side), dtype=np.uint8))
    x[:, 0, 0, 0], x[:, 0, 0, 1] = (
        torch.arange(n, dtype=torch.uint8) % 251,
        torch.arange(n).div(251, rounding_mode="floor"),
    )
    y = torch.from_numpy(
        np.concatenate([rng.permutation(np.arange(m) % classes) for m in (train, test)])
    ).long()
    return Source("toy", x[:train], y[:train], x[train:], y[train:], classes)


def lettered() -> Source:
    """As EMNIST: digits, capitals, and small letters of only some."""
    words = (*"012", *"ABCD", *"abd")
    source = toy(300, 100, len(words))
    return Source("letters", source.x_train, source.y_train, source.x_test, source.y_test, 10, words)


def owned(owners: int = 6, train: int = 240, test: int = 80) -> Source:
    source = toy(train, test)
    rng = np.random.default_rng(1)
    own = [torch.from_numpy(rng.integers(0, owners, n)) for n in (train, test)]
    names = tuple(f"writer {k}" for k in range(owners))
    return Source(
        "owned", source.x_train, source.y_train, source.x_test, source.y_test, 10, (), own[0], own[1], names
    )


def held(points: Points, images: int) -> Tensor:
    """(point,) the image that a point is, however it is shown."""
    return points.at % images


def mixture_of(points: Points, n: int) -> Tensor:
    whole = torch.stack(
        [part.bincount(minlength=n) for part in points.component.split(points.sizes.tolist())]
    )
    return whole.double() / points.sizes[:, None]


def classes_of(points: Points, n: int = 10) -> Tensor:
    """(client, class)"""
    return torch.stack([y.bincount(minlength=n) for y in points.y.split(points.sizes.tolist())])


def both(data: Federation) -> list[Points]:
    return [data.train, data.test]


def same(a: Federation, b: Federation) -> bool:
    pairs = [*zip(both(a), both(b), strict=True), (a.distributions, b.distributions)]
    return all(torch.equal(p.at, q.at) and torch.equal(p.y, q.y) for p, q in pairs) and a.ids == b.ids


# which images


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(SHOWN),
    st.sampled_from(["pure", "random", "iid", "10:90", "uniform", "linear"]),
    st.integers(1, 30),
    st.integers(0, 9),
    st.sampled_from([{}, {"imbalance": 3.0}, {"power_law": 0.5}]),
)
def test_once_means_every_image_once(distributions, mixture, clients, seed, sizes):
    if distributions == "none":
        mixture = "pure"
    source = toy()
    data = partition(source, seed, clients=clients, distributions=distributions, mixture=mixture, **sizes)
    for points, n in zip(both(data), (240, 80), strict=True):
        assert held(points, n).sort().values.tolist() == list(range(n))
        assert (points.sizes >= 1).all()


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(SHOWN[1:]),
    st.sampled_from(["pure", "random", "iid"]),
    st.integers(1, 80),
    st.integers(0, 9),
)
def test_shared_means_no_client_has_an_image_twice(distributions, mixture, points, seed):
    data = partition(
        toy(),
        seed,
        clients=9,
        distributions=distributions,
        mixture=mixture,
        train_points=3 * points,
        draw="shared",
    )
    assert data.train.sizes.tolist() == [3 * points] * 9
    assert data.test.sizes.tolist() == [points] * 9  # 80 of 240
    for side, n in zip(both(data), (240, 80), strict=True):
        for own in held(side, n).split(side.sizes.tolist()):
            assert len(set(own.tolist())) == len(own)


def test_replace_draws_a_class_and_then_an_image_of_it():
    source = toy()
    rare = source.y_train != 0
    rare[:3] = True  # few of class 0 are left, and images 0 to 2
    few_zeros = Source(
        "few", source.x_train[rare], source.y_train[rare], source.x_test, source.y_test, source.n_classes
    )
    data = partition(few_zeros, clients=20, train_points=1000, test_points=5, draw="replace")
    share = data.train.y.bincount() / len(data.train.y)
    present = few_zeros.y_train.unique()
    error = (share[present] - 1 / len(present)).abs().max()
    assert error < 5 * (0.1 * 0.9 / 20000) ** 0.5
    own = data.train.at[data.train.y == present[1]].bincount()
    own = own[own > 0].double()
    assert len(own) == int((few_zeros.y_train == present[1]).sum())  # every image of the class comes up
    assert (own / own.mean() - 1).abs().max() < 5 * (1 / own.mean()) ** 0.5


@pytest.mark.parametrize("distributions", ["none", "relabel", "permute", "groups"])
def test_images_are_never_copied(distributions):
    source = toy()
    data = partition(source, distributions=distributions, clients=8)
    assert data.train.x.data_ptr() == source.x_train.data_ptr()
    assert data.test.x.data_ptr() == data.distributions.x.data_ptr() == source.x_test.data_ptr()


def test_turned_images_are_kept_once_for_each_distribution():
    data = partition(toy(), distributions="rotate", clusters=4, clients=8)
    assert len(data.train.x) == 4 * 240
    assert data.train.x.dtype == torch.uint8


# components and mixtures


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["pure", "random", "iid"]), st.integers(2, 4), st.integers(0, 20))
def test_rotated_images_are_turned_as_their_component_says(mixture, clusters, seed):
    source = toy()
    data = partition(source, seed, distributions="rotate", clusters=clusters, mixture=mixture, clients=10)
    for points, x, y in zip(
        both(data), (source.x_train, source.x_test), (source.y_train, source.y_test), strict=True
    ):
        image = held(points, len(x))
        for s in range(clusters):
            mine = points.component == s
            assert torch.equal(points.x[points.at[mine]], torch.rot90(x[image[mine]], s, (-2, -1)))
        assert torch.equal(points.y, y[image])


@pytest.mark.parametrize(("distributions", "shift"), [("relabel", 3), ("permute", None)])
def test_relabeled_images_are_called_as_their_component_says(distributions, shift):
    source = toy(1000, 500)
    data = partition(
        source, 4, distributions=distributions, shift=shift, clusters=3, mixture="random", clients=10
    )
    names = torch.full((3, 10), -1)
    for points, truth in zip(both(data), (source.y_train, source.y_test), strict=True):
        for s, y, named in zip(points.component, truth[points.at], points.y, strict=True):
            assert names[s, y] in (-1, named)  # the same everywhere
            names[s, y] = named
    assert names[0].tolist() == list(range(10))
    assert all(sorted(one.tolist()) == list(range(10)) for one in names)
    if shift:
        assert torch.equal(names, (torch.arange(10) + 3 * torch.arange(3)[:, None]) % 10)
    else:
        assert len({tuple(one.tolist()) for one in names}) == 3


def test_permuted_labelings_are_all_different():
    source = toy(60, 30, classes=3)
    for seed in range(10):  # all six orders of three classes
        data = partition(source, seed, distributions="permute", clusters=6, clients=6)
        assert len({tuple(y.tolist()) for y in data.distributions.y.split(30)}) == 6
    with pytest.raises(CoterieError, match="clusters is 7; allowed is at most 6 orders of 3 classes"):
        partition(source, distributions="permute", clusters=7, clients=7)


def test_label_groups_are_components():
    source = toy()
    odd = partition(source, distributions="groups", mixture="uniform", clients=6)
    given = partition(
        source, distributions="groups", groups=((7,), (0, 1), (4, 9, 2)), mixture="random", clients=6
    )
    of = torch.tensor([1, 1, 2, -1, 2, -1, -1, 0, -1, 2])
    for points in both(odd):
        assert torch.equal(points.component, points.y % 2)
    for points in both(given):
        assert torch.equal(points.component, of[points.y])
    assert given.distributions.y.unique().tolist() == [0, 1, 2, 4, 7, 9]
    assert given.n_outputs == 10


def test_case_joins_the_letters_that_have_both():
    source = lettered()
    data = partition(source, distributions="case", mixture="10:90", clients=4)
    assert data.names == ("A", "B", "D")
    assert data.n_outputs == 3
    for points, y in zip(both(data), (source.y_train, source.y_test), strict=True):
        words = [source.classes[label] for label in y[points.at].tolist()]
        assert [word.upper() for word in words] == [data.names[label] for label in points.y.tolist()]
        assert [int(word.islower()) for word in words] == points.component.tolist()


def test_emnist_balanced_has_eleven_letters_of_both_cases():
    assert "".join(cases((*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"abdefghnqrt"))[2]) == "ABDEFGHNQRT"


def test_a_list_multiplies_and_a_mixture_of_two_mixes_the_first():
    source = toy(1200, 400)
    data = partition(source, distributions=("groups", "rotate"), mixture="uniform", clients=10, draw="shared")
    assert data.mixture.shape == (10, 4)
    for points, n in zip(both(data), (1200, 400), strict=True):
        assert torch.equal(points.component // 2, points.y % 2)
        assert torch.equal(points.component % 2, points.at // n)
    turned = data.mixture[:, [1, 3]].sum(1)
    assert (turned - 0.5).abs().max() <= 1 / int(data.train.sizes.min())
    first = data.mixture[:, :2].sum(1)
    assert (first - mixtures("uniform", 10, 2)[:, 0]).abs().max() <= 1 / int(data.train.sizes.min())


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["rotate", "relabel", "groups"]),
    st.sampled_from(["pure", "random", "10:90", "30:70", "linear", "uniform"]),
    st.integers(1, 12),
    st.integers(0, 9),
)
def test_both_sides_have_the_mixture_that_was_asked_for(distributions, mixture, clients, seed):
    data = partition(toy(1200, 400), seed, clients=clients, distributions=distributions, mixture=mixture)
    promised = mixtures(mixture, clients, 2, seed)
    assert torch.equal(data.mixture, mixture_of(data.train, 2))
    for points in both(data):
        assert ((mixture_of(points, 2) - promised).abs() * points.sizes[:, None] <= 1 + 1e-6).all()


def test_uniform_shares_lie_between_ten_and_ninety_percent():
    first = mixtures("uniform", 20000, 2, seed=3)[:, 0]
    assert 0.1 <= float(first.min()) < 0.101
    assert 0.899 < float(first.max()) <= 0.9
    assert abs(float(first.mean()) - 0.5) < 5 * 0.8 / (12 * 20000) ** 0.5


def test_the_known_points_of_a_distribution_are_all_its_test_images():
    source = toy()
    data = partition(source, distributions="rotate", clusters=3, clients=6)
    known = data.distributions
    assert known.sizes.tolist() == [80, 80, 80]
    for s, at in enumerate(known.at.split(80)):
        assert torch.equal(known.x[at], torch.rot90(source.x_test, s, (-2, -1)))


@pytest.mark.parametrize("degrees", [90.0, 180.0, 270.0])
def test_any_angle_turns_the_same_way(degrees):
    images = toy(side=7).x_train
    assert torch.equal(_interpolated(images, degrees), turn(images, degrees))
    wide = images[..., :5].contiguous()
    assert torch.equal(_interpolated(wide, 180.0), turn(wide, 180.0))


def test_forty_five_degrees_by_hand():
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 1, 2] = 1.0  # right of the middle, so it goes to the upper right
    turned = turn(image, 45.0)[0, 0]
    assert turned.argmax() == 2
    assert torch.allclose(turned[0, 2], torch.tensor((1 - (2**0.5 - 1)) * 1.0), atol=1e-6)


# by class


@settings(deadline=None, max_examples=25)
@given(st.floats(0.3, 50), st.integers(1, 8), st.integers(0, 9))
def test_dirichlet_divides_every_class_the_same_on_both_sides(alpha, clients, seed):
    data = partition(toy(1200, 400), seed, clients=clients, alpha=alpha)
    train, test = classes_of(data.train), classes_of(data.test)
    assert held(data.train, 1200).sort().values.tolist() == list(range(1200))
    assert (train.sum(0) == 120).all()
    assert (test.sum(0) == 40).all()
    assert (
        (train / 120 - test / 40).abs() <= 1 / 120 + 1 / 40 + 1e-6
    ).all()  # one image rounded on each side


def test_dirichlet_shares_have_the_mean_and_variance_of_dirichlet():
    rng = np.random.default_rng(0)
    for divide in (True, False):
        share = dirichlet([torch.arange(5)], 4000 if divide else 5, 0.7, divide, rng)
        if not divide:
            share = torch.cat([dirichlet([torch.arange(800)], 5, 0.7, divide, rng) for _ in range(5)])
        # Dirichlet(0.7) of 5: mean 1/5, variance (1/5)(4/5) / (5 * 0.7 + 1)
        assert torch.allclose(share.sum(0 if divide else 1), torch.ones(4000, dtype=torch.float64))
        assert abs(float(share.mean()) - 0.2) < 1e-9
        assert abs(float(share.var()) - 0.16 / 4.5) < 0.002


def test_cluster_wise_dirichlet_varies_between_clusters_more_than_inside():
    data = partition(toy(6000, 2000), 1, clients=50, clusters=5, alpha=(0.1, 10.0))
    assert torch.equal(data.mixture, torch.eye(5, dtype=torch.float64)[torch.arange(50) % 5])
    for points in both(data):
        share = classes_of(points) / points.sizes[:, None]
        cluster = torch.stack([share[s::5].mean(0) for s in range(5)])
        inside = torch.stack([share[s::5].var(0).sum() for s in range(5)]).mean()
        assert cluster.var(0).sum() > 5 * inside
    assert held(data.train, 6000).sort().values.tolist() == list(range(6000))
    known = data.distributions
    for s, y in enumerate(known.y.split(known.sizes.tolist())):
        assert torch.equal(y.bincount(minlength=10), classes_of(data.test)[s::5].sum(0))


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 6), st.integers(1, 10), st.integers(0, 20))
def test_n_class_by_cluster(clusters, each, seed):
    clients = 4 * clusters
    outer, inner = min(each + 1, 10), each
    data = partition(toy(2400, 1200), seed, clients=clients, clusters=clusters, classes=(outer, inner))
    for points in both(data):
        has = classes_of(points) > 0
        assert has.sum(1).tolist() == [inner] * clients
        for s in range(clusters):
            assert int(has[s::clusters].any(0).sum()) == min(outer, 4 * inner)
    assert len(set(data.train.at.tolist())) == len(data.train.at)


def test_classes_may_be_drawn_alone():
    """Ten clusters of 3 classes: a class is divided evenly among the clusters that drew it, and in each among its
    clients that did; what no cluster drew is left out, and clients differ in size."""
    data = partition(
        toy(6000, 2000), 3, clients=100, clusters=10, classes=(3, 2), class_holders="random", test_points=None
    )
    has = classes_of(data.train)
    assert ((has > 0).sum(1) == 2).all()
    holders = torch.stack([(has[s::10] > 0).any(0) for s in range(10)])
    assert (holders.sum(1) == 3).all()
    assert int(holders.sum(0).max() - holders.sum(0).min()) > 1
    for label in range(10):
        of_cluster = torch.stack([has[s::10, label].sum() for s in range(10)])[holders[:, label]]
        assert (
            len(of_cluster) == 0 or int(of_cluster.max() - of_cluster.min()) <= 10
        )  # 600 over them, rounded
        assert int(of_cluster.sum()) == (600 if len(of_cluster) else 0)
    assert data.train.sizes.max() > 2 * data.train.sizes.min()
    even = partition(toy(6000, 2000), 3, clients=100, clusters=10, classes=(3, 2))
    assert even.train.sizes.max() < 1.3 * even.train.sizes.min()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 20))
def test_few_gives_every_kind_as_many_holders(holders, kinds, seed):
    each = 1 + seed % kinds
    holds = few(holders, kinds, each, np.random.default_rng(seed))
    assert holds.sum(1).tolist() == [each] * holders
    assert int(holds.sum(0).max() - holds.sum(0).min()) <= 1


def test_classes_with_given_sizes():
    data = partition(toy(1000, 500), clients=30, alpha=0.3, train_points=60, draw="shared")
    assert data.train.sizes.tolist() == [60] * 30
    assert data.test.sizes.tolist() == [30] * 30
    train, test = (classes_of(points) / points.sizes[:, None] for points in both(data))
    assert ((train - test).abs() <= 1 / 60 + 1 / 30 + 1e-6).all()


def test_turned_images_may_be_given_by_class_too():
    data = partition(
        toy(1200, 400), distributions="rotate", clusters=2, mixture="random", alpha=1.0, clients=6
    )
    assert torch.equal(data.train.component, data.train.at // 1200)
    assert (data.mixture - mixtures("random", 6, 2)).abs().max() <= 1 / int(data.train.sizes.min())
    assert (classes_of(data.train).sum(0) == 120).all()


# k-FED


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_structured_sets_are_had_by_m0_clients(sets, per_client, m0):
    k = sets * per_client
    share = structured(m0 * sets, k, per_client, m0, seed=0)
    assert ((share > 0).sum(1) == per_client).all()
    assert ((share > 0).sum(0) == m0).all()
    assert len({tuple(row) for row in (share > 0).tolist()}) == sets  # sets have nothing in common


def test_structured_divides_an_oracle_clustering():
    source = toy(1500, 500)
    data = partition(
        source, distributions="oracle", clusters=6, mixture="structured", per_client=2, clients=30
    )
    assert ((data.mixture > 0).sum(1) <= 2).all()
    assert held(data.train, 1500).sort().values.tolist() == list(range(1500))
    means = torch.stack(
        [source.x_train[data.train.at[data.train.component == s]].float().mean(0) for s in range(6)]
    )
    own = torch.cdist(source.x_train.flatten(1).float(), means.flatten(1)).argmin(1)
    assert (own[data.train.at] == data.train.component).float().mean() > 0.9  # up to its unfinished steps


def test_structured_with_m0_gives_each_device_one_m0th():
    data = partition(
        toy(2400, 480),
        distributions="rotate",
        clusters=4,
        mixture="structured",
        per_client=2,
        m0=3,
    )
    whole = (data.mixture * data.train.sizes[:, None]).round()
    assert sorted(set(whole.flatten().tolist())) == [0.0, 200.0]  # 2400 / 4 / m0


def test_iid_has_no_regard_to_the_distribution():
    source = toy(6000, 1000)
    data = partition(
        source, 2, distributions="groups", groups=((0,), tuple(range(1, 10))), mixture="iid", clients=40
    )
    assert held(data.train, 6000).sort().values.tolist() == list(range(6000))
    first = data.mixture[:, 0]  # hypergeometric: 150 of 6000, of which a tenth
    deviation = (0.1 * 0.9 / 150) ** 0.5
    assert (first - 0.1).abs().max() < 5 * deviation
    assert 0.5 * deviation < float(first.std()) < 1.5 * deviation  # not the same for everybody


# sizes


@given(st.integers(3, 60), st.floats(1, 20), st.integers(0, 9))
def test_imbalance_has_three_levels(clients, r, seed):
    each = weights(clients, r, None, np.random.default_rng(seed))
    levels = each.unique()
    assert float(levels[-1] / levels[0]) == pytest.approx(r)
    assert float(each.mean()) == pytest.approx(1)
    low, average, high = (int((each - each.min() * f).abs().lt(1e-9).sum()) for f in (1, (1 + r) / 2, r))
    if r > 1.001:
        assert low >= average >= high >= low - 1  # thirds


def test_imbalance_and_power_law_reach_the_clients():
    data = partition(toy(3000, 900), clients=30, imbalance=9.0)
    assert sorted(set(data.train.sizes.tolist())) == [20, 100, 180]
    assert sorted(set(data.test.sizes.tolist())) == [6, 30, 54]
    data = partition(toy(3000, 900), clients=10, power_law=1.0, train_points=100)
    ordered = data.train.sizes.sort(descending=True).values
    harmonic = sum(1 / i for i in range(1, 11))
    assert ordered.tolist() == [round(1000 / harmonic / i) for i in range(1, 11)]


def test_imbalance_goes_with_classes_and_with_sets():
    data = partition(toy(3000, 900), clients=30, classes=10, imbalance=9.0)
    assert sorted(set(data.train.sizes.tolist())) == [20, 100, 180]
    how = {"distributions": "rotate", "mixture": "structured", "per_client": 2}
    data = partition(toy(2400, 480), clients=3, imbalance=3.0, **how)
    assert sorted(data.train.sizes.tolist()) == [400, 800, 1200]
    assert sorted(data.test.sizes.tolist()) == [80, 160, 240]


def test_sizes_may_be_drawn():
    data = partition(toy(3000, 900), clients=100, train_points=[10, 12])
    assert set(data.train.sizes.tolist()) == {10, 11, 12}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 9))
def test_divided_gives_all_that_anybody_holds(stock, clients, seed):
    share = torch.from_numpy(np.random.default_rng(seed).random((clients, len(stock)))) * (
        torch.arange(len(stock)) > 0
    )
    whole = divided(share, torch.tensor(stock))
    assert whole.sum(0).tolist() == [0, *stock[1:]]
    quota = share / share.sum(0).clamp(min=1e-300) * torch.tensor(stock)
    assert ((whole - quota).abs()[:, 1:] < 1).all()


@given(st.lists(st.integers(30, 90), min_size=2, max_size=4), st.integers(1, 8), st.integers(0, 9))
def test_filled_takes_no_more_than_there_is(stock, clients, seed):
    n = len(stock)
    mixture = mixtures("random", clients, n, seed)
    whole = filled(mixture, torch.ones(clients, dtype=torch.float64), torch.arange(n), torch.tensor(stock))
    left = torch.tensor(stock) - whole.sum(0)
    assert (left >= 0).all()
    assert int(left.min()) <= n * clients  # and hardly less: rounding costs at most a few


# owners


def test_by_owner_everybody_has_its_own():
    source = owned()
    data = partition(source, by_owner=True)
    assert data.ids == source.owners
    for points, owner in zip(both(data), (source.owner_train, source.owner_test), strict=True):
        assert torch.equal(owner[points.at], points.owner)
        assert points.at.sort().values.tolist() == list(range(len(owner)))


def test_some_owners_with_some_of_their_images_turned():
    source = owned(12)
    data = partition(source, 3, by_owner=True, clients=5, train_points=7, distributions="rotate", clusters=4)
    assert len(data) == 5
    assert set(data.ids) < set(source.owners)
    assert data.train.sizes.tolist() == [7] * 5
    assert torch.equal(data.mixture, mixtures("pure", 5, 4))
    for points, owner in zip(both(data), (source.owner_train, source.owner_test), strict=True):
        names = [data.ids[k] for k in points.owner.tolist()]
        assert [source.owners[k] for k in owner[points.at % len(owner)].tolist()] == names
    assert (
        len({partition(source, seed, by_owner=True, clients=5).ids for seed in range(5)}) > 1
    )  # they are drawn


# several data sets


def test_stretched_pixels_by_hand():
    image = torch.tensor([[[[0, 100], [0, 100]]]], dtype=torch.uint8)
    larger = fitted(
        image, (3, 4, 4)
    )  # centers of pixels lie at 1/4 and 3/4, the new ones at 1/8, 3/8, 5/8, 7/8
    assert larger.shape == (1, 3, 4, 4)
    assert (larger == torch.tensor([0, 25, 75, 100])).all()


def test_joined_sources_have_one_shape_and_are_distributions():
    small = toy(90, 30, side=4)
    color = Source(
        "color",
        torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8),
        torch.arange(60) % 10,
        torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8),
        torch.arange(30) % 10,
        10,
        normalise=((0.5, 0.4, 0.3), (0.2, 0.2, 0.2)),
    )
    source = joined([color, small])
    assert source.x_train.shape == (150, 3, 8, 8)
    assert source.normalise == color.normalise
    assert torch.equal(source.x_train[:60], color.x_train)
    grey = source.x_train[60:]
    assert torch.equal(grey[:, 0], grey[:, 2])
    assert torch.equal(grey[:, 0, 0, 0], small.x_train[:, 0, 0, 0])  # corners stay
    data = partition(source, distributions="datasets", mixture="uniform", clients=5)
    assert torch.equal(data.train.component, (data.train.at >= 60).long())
    assert data.n_outputs == 10
    apart = joined([color, small], "offset")
    assert apart.n_classes == 20
    assert torch.equal(apart.y_train[60:], small.y_train + 10)


# seeds


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(
        [
            {"distributions": "rotate", "mixture": "random"},
            {"distributions": "permute", "clusters": 3},
            {"distributions": "groups", "mixture": "iid"},
            {"alpha": 1.0},
            {"clusters": 2, "classes": (4, 2)},
            {"imbalance": 4.0, "train_points": 20, "draw": "replace"},
        ]
    ),
    st.integers(0, 2**40),
)
def test_same_seed_same_partition(how, seed):
    source = toy(600, 300)
    one, again, other = (partition(source, s, clients=5, **how) for s in (seed, seed, seed + 1))
    assert same(one, again)
    assert one.fingerprint() == again.fingerprint()
    assert not torch.equal(one.train.at, other.train.at)
    order = [3, 1, 4, 0, 2]
    assert one.permuted(order).fingerprint() == one.fingerprint()


def test_the_test_side_does_not_move_the_training_side():
    source = toy(600, 300)
    for how in (
        {"distributions": "rotate", "mixture": "random"},
        {"alpha": 1.0, "train_points": 30, "draw": "shared"},
    ):
        one, other = (partition(source, clients=5, test_points=n, **how) for n in (3, 9))
        assert torch.equal(one.train.at, other.train.at)
        assert torch.equal(one.train.y, other.train.y)
    assert partition(source, clients=5, test_points=0).test is None


# what cannot be


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"clients": 0}, "clients is 0; allowed is a whole number from 1"),
        ({"clients": 81}, "clients is 81, which leaves client '80' without test images"),
        (
            {"clients": 10, "train_points": 25},
            "train_points is 25, .* 250 of the training images; allowed is at most the 240",
        ),
        ({"draw": "twice"}, "draw is 'twice'; allowed is one of 'once', 'shared', 'replace'"),
        (
            {"draw": "shared", "train_points": 241},
            "241 of the training images; allowed is at most the 240 that there are$",
        ),
        ({"distributions": "rotat"}, "distributions is 'rotat', the nearest is 'rotate'"),
        (
            {"distributions": ("rotate", "relabel")},
            "allowed is one of .*, or a list of two: first one of case",
        ),
        ({"distributions": ("groups", "groups")}, "allowed is one of"),
        ({"distributions": "rotate", "clusters": 5}, "clusters is 5; allowed is 1 to 4 turns by 90 degrees"),
        (
            {"distributions": "rotate", "clusters": 5, "angle": 90.0},
            "angle is 90.0; allowed is an angle of which 5",
        ),
        ({"distributions": "groups", "clusters": 3}, "clusters is 3; allowed is 2, as many as there are"),
        ({"distributions": ("groups", "rotate"), "clusters": 3}, "clusters is 3; allowed is a multiple of 2"),
        (
            {"distributions": "groups", "groups": ((1, 2), (2, 3))},
            "groups is .*; allowed is lists of labels from 0 to 9",
        ),
        (
            {"distributions": "case"},
            "distributions is 'case'; allowed is that for labels of both cases, and toy has none",
        ),
        ({"distributions": "datasets"}, "'datasets'; allowed is that for several sources"),
        (
            {"angle": 30.0},
            "angle is 30.0, which has no effect; allowed is angle beside distributions = 'rotate'",
        ),
        ({"shift": 3, "distributions": "rotate"}, "shift is 3, which has no effect"),
        ({"clusters": 3}, "clusters is 3, which has no effect"),
        ({"m0": 3}, "m0 is 3, which has no effect; allowed is m0 beside mixture = 'structured'"),
        ({"distributions": "rotate", "mixture": "structured"}, "per_client is None; allowed is how many"),
        (
            {"distributions": "rotate", "mixture": "structured", "per_client": 3},
            "per_client is 3; allowed is 1 to 2",
        ),
        (
            {"distributions": "rotate", "mixture": "structured", "per_client": 1, "m0": 3, "clients": 5},
            "clients is 5; allowed is 6: m0 · clusters / per_client",
        ),
        (
            {"distributions": "rotate", "clusters": 3, "mixture": "10:90"},
            "which mixes 2 distributions, not 3",
        ),
        (
            {"alpha": (0.1, 10.0), "clusters": 2, "mixture": "linear"},
            "mixture is 'linear'; allowed is 'pure' beside",
        ),
        (
            {"alpha": (0.1, 10.0, 1.0), "clusters": 2},
            r"alpha is \(0.1, 10.0, 1.0\); allowed is one number or two",
        ),
        ({"train_points": [1, 2, 3]}, r"train_points is \(1, 2, 3\); allowed is one number or two"),
        ({"power_law": float("inf")}, "power_law is inf; allowed is a finite number"),
        ({"alpha": 0.0}, "alpha is 0.0; allowed is a number above 0"),
        ({"alpha": 0.1, "classes": 2}, "alpha is 0.1 and classes is 2; allowed is only one of them"),
        ({"alpha": (0.1, 10.0)}, "clusters is None; allowed is a number of clusters from 1 to 100"),
        (
            {"alpha": (0.1, 10.0), "clusters": 2, "distributions": "rotate"},
            "alpha of two values without distributions",
        ),
        (
            {"alpha": 0.5, "distributions": "groups"},
            "alpha is 0.5; allowed is alpha with distributions that show",
        ),
        (
            {"alpha": 0.01, "clients": 60},
            "alpha is 0.01, which left one of 60 clients without images in each of",
        ),
        (
            {"alpha": (1e-8, 1e-8), "clusters": 2, "clients": 9, "train_points": 20, "draw": "shared"},
            r"alpha is \(1e-08, 1e-08\), which left one of 9 clients without images in each of",
        ),
        (
            {"alpha": 0.1, "class_holders": "random"},
            "class_holders is 'random', which has no effect; allowed is class_holders beside classes",
        ),
        ({"classes": 11}, "classes is 11; allowed is at most 10"),
        ({"classes": (2, 3), "clusters": 2}, r"classes is \(2, 3\); allowed is at most 10"),
        ({"by_owner": True}, "by_owner is True; allowed is that for a source with owners, not toy"),
        ({"imbalance": 0.5}, "imbalance is 0.5; allowed is a ratio"),
        ({"imbalance": 3.0, "power_law": 1.0}, "imbalance is 3.0 and power_law is 1.0; allowed is only one"),
        ({"imbalance": 3.0, "train_points": (1, 2)}, "imbalance is 3.0 and train_points is"),
        ({"train_points": (5, 2)}, r"train_points is \(5, 2\)"),
        ({"train_points": "many"}, "train_points is 'many'; allowed is a whole number or"),
        ({"test_points": -1}, "test_points is -1; allowed is from 0"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(how, sentence):
    with pytest.raises(CoterieError, match=sentence) as problem:
        partition(toy(), **how)
    assert "\n" not in str(problem.value)


def test_owners_that_are_not_there():
    with pytest.raises(CoterieError, match="clients is 7; allowed is 1 to 6, the owners with images"):
        partition(owned(), by_owner=True, clients=7)
    with pytest.raises(CoterieError, match=r"alpha is 1\.0 and by_owner is True; allowed is only one"):
        partition(owned(), by_owner=True, alpha=1.0)


@pytest.mark.parametrize("distributions", ["case", "groups"])
def test_texts_have_no_labels_to_divide_by(distributions):
    text = torch.randint(0, 10, (8, 5))
    source = Source("text", text[:6], text[:6], text[6:], text[6:], 10, tuple("abcdeABCDE"))
    said = (
        f"distributions is '{distributions}'; allowed is that for points of one label each, and text has next"
    )
    with pytest.raises(CoterieError, match=said):
        partition(source, clients=2, distributions=distributions)


def test_every_field_is_explained():
    from coterie.experiment.field_docs import explained

    assert all(one.meaning for one in explained(Partition))
