"""Handwritten digits of 8x8 pixels, which come with scikit-learn, under several labelings or rotations."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.data.distributions import relabel, rotate
from coterie.data.draws import generator
from coterie.data.patterns import components, counts, mixtures
from coterie.errors import SettingError, require
from coterie.federation import Federation, Points

_CLASSES = 10
_TRAIN_SHARE = 0.75


class Variants(NamedTuple):
    """The images under every distribution, none kept twice."""

    store: Tensor  # (row, height, width)
    at: Tensor  # (distribution, image) the row of the store that shows the image
    label: Tensor  # (distribution, image)


def digits(
    clients: int = 100,
    distributions: Literal["relabel", "rotate"] = "relabel",
    clusters: int = 2,
    shift: int = 4,
    pattern: str = "linear",
    train_points: int = 80,
    test_points: int = 20,
    image: bool = False,
    seed: int = 0,
) -> Federation:
    """The digits, where distribution s renames classes by s * shift or turns images by s * 90 degrees.

    A client never holds an image twice, and nobody trains on an image that anybody is tested on; an image may
    be held by many clients. Inputs are 64 numbers in [0, 1], or (1, 8, 8) with `image`.
    """
    variants = _variants(distributions, clusters, shift)
    x = variants.store[:, None] if image else variants.store.flatten(1)
    train_side, test_side = _sides(variants.label.shape[1], seed)
    most = f"{len(train_side)} images to train on and {len(test_side)} to test on"
    require(1 <= train_points <= len(train_side), "train_points", train_points, f"at least 1 of {most}")
    require(0 <= test_points <= len(test_side), "test_points", test_points, f"at least 0 of {most}")
    mixture = mixtures(pattern, clients, clusters, seed)

    def points(purpose: str, side: Tensor, size: int) -> Points:
        rng = generator(seed, purpose)
        component, offset = components(counts(mixture, torch.full((clients,), size)), rng)
        drawn = [rng.choice(side.numpy(), size, replace=False) for _ in range(clients)]
        which = torch.from_numpy(np.concatenate(drawn))
        return Points(x, variants.at[component, which], variants.label[component, which], offset, component)

    return Federation(
        ids=tuple(str(k) for k in range(clients)),
        train=points("training images", train_side, train_points),
        test=points("test images", test_side, test_points) if test_points else None,
        n_outputs=_CLASSES,
        distributions=tuple(
            (x[at[test_side]], label[test_side])
            for at, label in zip(variants.at, variants.label, strict=True)
        ),
    )


def _variants(distributions: str, clusters: int, shift: int) -> Variants:
    require(clusters >= 1, "clusters", clusters, "a whole number from 1")
    images, labels = _load()
    every = torch.arange(len(images))
    if distributions == "relabel":
        different = len({s * shift % _CLASSES for s in range(clusters)}) == clusters
        require(different, "shift", shift, f"a shift that gives {clusters} different labelings of 10 classes")
        names = torch.stack([relabel(labels, s, shift, _CLASSES) for s in range(clusters)])
        return Variants(images, every.expand(clusters, -1), names)
    if distributions == "rotate":
        require(clusters <= 4, "clusters", clusters, "1 to 4 when distributions are turned by 90 degrees")
        store = torch.cat([rotate(images, s) for s in range(clusters)])
        at = every + len(images) * torch.arange(clusters)[:, None]
        return Variants(store, at, labels.expand(clusters, -1))
    raise SettingError("distributions", f"is {distributions!r}; allowed is 'relabel' or 'rotate'")


def _load() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import (
        load_digits,
    )  # here, since importing it takes a second that others need not wait

    found = load_digits()
    return torch.from_numpy(found.images / 16).float(), torch.from_numpy(found.target).long()


def _sides(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """The images to train on and those to test on."""
    order = torch.from_numpy(generator(seed, "sides").permutation(images))
    cut = int(_TRAIN_SHARE * images)
    return order[:cut], order[cut:]
