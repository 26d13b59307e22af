"""Data drawn from known distributions: mixtures of linear regressions and of Gaussians."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.data.federation import Federation, Points, Task
from coterie.data.partitions.mixtures import components, counts, mixtures
from coterie.errors import require
from coterie.memory import require_memory
from coterie.prng import numpy_generator
from coterie.validation import LARGEST

Numbers = npt.NDArray[np.float64]
Sample = Callable[[npt.NDArray[np.int64], np.random.Generator], tuple[Tensor, Tensor]]  # components to x, y


def regressions(
    clients: int = 100,
    clusters: int = 2,
    mixture: str = "10:90",
    sizes: tuple[int, int] = (100, 200),
    dimension: int = 10,
    variance: float = 10.0,  # σ0² of FedSoft, section 5
    noise: float = 1.0,
    separation: float | None = None,
    test_points: int = 20,
    distribution_points: int = 1000,
    seed: int = 0,
) -> Federation:
    """FedSoft's synthetic data: y = <x, θ_s> + noise, with one θ_s ~ N(0, variance · I) per cluster.

    `separation` scales the θ around their mean so that ‖θ_0 − θ_1‖² is exactly this; with more than two
    clusters, so that the mean of ‖θ_s − θ_t‖² over the pairs is.
    """
    require(noise >= 0, "noise", noise, "a standard deviation from 0")
    _check_memory(clients, clusters, max(sizes) + test_points, distribution_points, dimension)
    theta = coefficients(clusters, dimension, variance, separation, seed)

    def sample(component: npt.NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = rng.standard_normal((len(component), dimension))
        y = (x * theta[component]).sum(1) + noise * rng.standard_normal(len(x))
        return torch.from_numpy(x).float(), torch.from_numpy(y[:, None]).float()

    return _federation(
        sample, clients, clusters, mixture, sizes, test_points, distribution_points, seed, "regression", 1
    )


def gaussians(
    clients: int = 100,
    clusters: int = 2,
    mixture: str = "10:90",
    sizes: tuple[int, int] = (100, 200),
    dimension: int = 10,
    classes: int = 5,
    separation: float = 5.0,
    test_points: int = 20,
    distribution_points: int = 1000,
    seed: int = 0,
) -> Federation:
    """Classes that are Gaussians of variance 1, every cluster having class means of its own.

    Any two of all these means are `separation` standard deviations apart, in root mean square.
    """
    require(classes >= 2, "classes", classes, "a whole number from 2")
    _check_memory(clients, clusters, max(sizes) + test_points, distribution_points, dimension, classes)
    means = class_means(clusters, classes, dimension, separation, seed)

    def sample(component: npt.NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        y = rng.integers(classes, size=len(component))
        x = means[component, y] + rng.standard_normal((len(component), dimension))
        return torch.from_numpy(x).float(), torch.from_numpy(y)

    return _federation(
        sample,
        clients,
        clusters,
        mixture,
        sizes,
        test_points,
        distribution_points,
        seed,
        "classification",
        classes,
    )


def _check_memory(
    clients: int, clusters: int, points: int, distribution_points: int, dimension: int, classes: int = 1
) -> None:
    """`points` are those of a client, at the most."""
    numbers = (clients * points + clusters * (distribution_points + classes)) * max(1, dimension)
    require_memory(8 * (numbers + clients * clusters), "the points of all clients")


def coefficients(
    clusters: int, dimension: int, variance: float, separation: float | None = None, seed: int = 0
) -> Numbers:
    """(cluster, dimension): the θ that `regressions` draws for this seed."""
    require(clusters >= 1, "clusters", clusters, "a whole number from 1")
    require(dimension >= 1, "dimension", dimension, "a whole number from 1")
    require(variance > 0, "variance", variance, "a number above 0")
    theta = numpy_generator(seed, "coefficients").normal(scale=variance**0.5, size=(clusters, dimension))
    if separation is None:
        return theta
    require(clusters >= 2, "clusters", clusters, "a whole number from 2 when a separation is given")
    require(0 <= separation <= LARGEST, "separation", separation, f"a squared distance from 0 to {LARGEST:g}")
    return _spread(theta, separation)


def class_means(clusters: int, classes: int, dimension: int, separation: float, seed: int = 0) -> Numbers:
    """(cluster, class, dimension): the means that `gaussians` draws for this seed."""
    require(clusters >= 1, "clusters", clusters, "a whole number from 1")
    require(dimension >= 1, "dimension", dimension, "a whole number from 1")
    allowed = f"a number of standard deviations from 0 to {LARGEST:g}"
    require(0 <= separation <= LARGEST, "separation", separation, allowed)
    means = numpy_generator(seed, "class means").standard_normal((clusters * classes, dimension))
    return _spread(means, separation**2).reshape(clusters, classes, dimension)


def _spread(points: Numbers, squared_distance: float) -> Numbers:
    """Points scaled around their mean until the mean squared distance of two of them is as given."""
    mean = points.mean(0)
    around = points - mean
    now = 2 * (around**2).sum() / (len(points) - 1)  # the mean over pairs, by the sum around the mean
    scaled: Numbers = mean + around * np.sqrt(squared_distance / now)
    return scaled


def _federation(
    sample: Sample,
    clients: int,
    clusters: int,
    mixture: str,
    sizes: tuple[int, int],
    test_points: int,
    distribution_points: int,
    seed: int,
    task: Task,
    n_outputs: int,
) -> Federation:
    low, high = sizes
    require(1 <= low <= high, "sizes", sizes, "the fewest and the most points of a client, at least 1")
    require(test_points >= 0, "test_points", test_points, "a whole number from 0")
    require(distribution_points >= 1, "distribution_points", distribution_points, "a whole number from 1")
    share = mixtures(mixture, clients, clusters, seed)

    def points(purpose: str, sizes: Tensor) -> Points:
        rng = numpy_generator(seed, purpose)
        component, offset = components(counts(share, sizes), rng)
        x, y = sample(component.numpy(), rng)
        return Points(x, torch.arange(len(x)), y, offset, component)

    drawn = numpy_generator(seed, "sizes").integers(low, high, endpoint=True, size=clients)
    rng = numpy_generator(seed, "distribution points")
    return Federation(
        ids=tuple(str(k) for k in range(clients)),
        train=points("training points", torch.from_numpy(drawn)),
        test=points("test points", torch.full((clients,), test_points)) if test_points else None,
        task=task,
        n_outputs=n_outputs,
        distributions=Points.of([sample(np.full(distribution_points, s), rng) for s in range(clusters)]),
    )
