"""The clients and their data."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from coterie.data import everyone
from coterie.data.images import MARGIN, Normalise
from coterie.errors import CoterieError, require

Task = Literal["classification", "regression", "next-character"]
T = TypeVar("T")


@dataclass(frozen=True)
class Points:
    """The points of all clients, one client after another.

    A point refers to the store `x`, so an image that many clients hold, perhaps under several labels, is
    kept once.
    """

    x: Tensor  # (store, ...)
    at: Tensor  # (point,) the row of x that a point is
    y: Tensor  # (point, ...) what is to be predicted
    offset: Tensor  # (client + 1,) client i has the points offset[i] to offset[i + 1]
    component: Tensor | None = None  # (point,) the true distribution of a point, where it is known
    _known: dict[str, tuple[Hashable, Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def of(clients: Sequence[tuple[Tensor, Tensor]], component: Sequence[Tensor] | None = None) -> Points:
        """Points from one (x, y) per client."""
        x = torch.cat([x for x, _ in clients])
        y = torch.cat([y for _, y in clients])
        sizes = torch.tensor([len(x) for x, _ in clients])
        offset = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        return Points(
            x, torch.arange(len(x)), y, offset, None if component is None else torch.cat(list(component))
        )

    @property
    def sizes(self) -> Tensor:
        return self.offset.diff()

    def remembered(self, what: str, which: Hashable, found: Callable[[], T]) -> T:
        """What was found out about these points, which never change: the last one of its kind, else it is found out."""
        if what not in self._known or self._known[what][0] != which:
            self._known[what] = which, found()
        known: T = self._known[what][1]
        return known

    def inputs(self, points: Tensor | slice) -> Tensor:
        """Those of some points, by their numbers."""
        at = self.at[points]
        found = self.x.index_select(0, at.flatten())  # of wide inputs many times faster than x[at]
        return found.view(*at.shape, *self.x.shape[1:])

    @cached_property
    def owner(self) -> Tensor:
        """(point,) the position of the client that has it."""
        return torch.repeat_interleave(
            torch.arange(len(self.offset) - 1, device=self.offset.device), self.sizes
        )

    def to(self, device: torch.device, dtype: torch.dtype, integers: bool = True) -> Points:
        """On a device, with floating numbers in `dtype`; inputs that are integers too, or else in int64."""

        def move(t: Tensor) -> Tensor:
            return t.to(device, dtype) if t.is_floating_point() else t.to(device)

        kind = torch.int64 if integers else dtype
        x = self.x.to(device, kind) if are_integers(self.x) else move(self.x)
        component = None if self.component is None else self.component.to(device)
        return Points(x, self.at.to(device), move(self.y), self.offset.to(device), component)

    def take(self, clients: Tensor) -> Points:
        """The points of some clients, in their order; the store is shared."""
        n = len(self.offset) - 1
        if everyone.are_positions(clients, n) or torch.equal(clients, everyone.positions(n, clients.device)):
            return self
        sizes = self.sizes[clients]
        offset = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        shift = torch.repeat_interleave(self.offset[clients] - offset[:-1], sizes)
        points = torch.arange(int(offset[-1]), device=self.at.device) + shift
        component = None if self.component is None else self.component[points]
        return Points(self.x, self.at[points], self.y[points], offset, component)

    def only(self, wanted: Tensor) -> Points:
        """Some of the points (point,) bool, of the same clients; the store is shared."""
        sizes = torch.zeros_like(self.sizes).index_add_(0, self.owner, wanted.long())
        offset = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        component = None if self.component is None else self.component[wanted]
        return Points(self.x, self.at[wanted], self.y[wanted], offset, component)


def are_integers(x: Tensor) -> bool:
    """Inputs that a model may take as they are, or as floats; uint8 is for images."""
    return not x.is_floating_point() and x.dtype not in (torch.uint8, torch.bool)


@dataclass(frozen=True)
class Description:
    """What can be known of clients' data without having any of it; and the truth, where the data was made."""

    task: Task
    n_outputs: int
    inputs: tuple[int, ...]  # the shape of one
    pixels: bool = False  # are inputs images kept as uint8?
    integers: bool = False  # are they other whole numbers?
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    normalise: Normalise | None = None
    augment: bool = False
    mixture: Tensor | None = None  # (client, distribution) the true share of each distribution
    distributions: Points | None = None  # points of each distribution alone


@dataclass(frozen=True, repr=False)
class Federation:
    """Every client's own data, and what is known of where it came from.

    `distributions` has, in place of clients, the true distributions that are known, each with points drawn from
    it alone: they score the centers and are never trained on.
    """

    ids: tuple[str, ...]
    train: Points
    test: Points | None = None
    task: Task = "classification"
    n_outputs: int = 1  # classes, or numbers to predict
    classes: tuple[str, ...] = ()  # the words behind the labels, where they were words
    distributions: Points | None = None
    names: tuple[str, ...] = ()  # what labels that are numbers are called, for people
    features: tuple[str, ...] = ()  # the columns that were read, where it was a table
    normalise: Normalise | None = None  # mean and deviation of each channel of images kept as uint8
    augment: bool = False  # are such images moved and mirrored in training?

    def __post_init__(self) -> None:
        check(self)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def mixture(self) -> Tensor | None:
        """(client, distribution): the true share of each distribution in a client's training data."""
        if self.train.component is None:
            return None
        known = 0 if self.distributions is None else len(self.distributions.sizes)
        n = max(known, int(self.train.component.max()) + 1)
        counts = torch.zeros(len(self), n, dtype=torch.float64)
        counts.index_put_(
            (self.train.owner, self.train.component), torch.ones((), dtype=torch.float64), accumulate=True
        )
        return counts / counts.sum(1, keepdim=True)

    @property
    def description(self) -> Description:
        return Description(
            task=self.task,
            n_outputs=self.n_outputs,
            inputs=tuple(self.train.x.shape[1:]),
            pixels=self.train.x.dtype == torch.uint8,
            integers=are_integers(self.train.x),
            classes=self.classes,
            features=self.features,
            normalise=self.normalise,
            augment=self.augment,
            mixture=self.mixture,
            distributions=self.distributions,
        )

    def __repr__(self) -> str:
        held = 0 if self.test is None else len(self.test.at)
        return f"<{len(self)} clients for {self.task}: {len(self.train.at)} training points, {held} held out>"

    def fingerprint(self) -> str:
        """Differs for other data than this, held-out points too, whatever the order of its clients."""
        digests = [hashlib.blake2b(name.encode(), digest_size=8) for name in self.ids]
        for points in (self.train,) if self.test is None else (self.train, self.test):
            x, at, y = (t.contiguous().cpu().numpy() for t in (points.x, points.at, points.y))
            offset = points.offset.tolist()
            for digest, begin, end in zip(digests, offset[:-1], offset[1:], strict=True):
                for part in (x[at[begin:end]], y[begin:end]):
                    digest.update(part.tobytes())
        if self.normalise or self.augment:
            for digest in digests:
                digest.update(repr((self.normalise, self.augment)).encode())
        each = [digest.hexdigest() for digest in digests]
        return hashlib.blake2b("".join(sorted(each)).encode(), digest_size=8).hexdigest()

    def permuted(self, order: Sequence[int]) -> Federation:
        """The same clients in another order."""
        at = torch.as_tensor(order)
        test = None if self.test is None else self.test.take(at)
        return replace(self, ids=tuple(self.ids[i] for i in order), train=self.train.take(at), test=test)


def check(data: Federation) -> None:
    """Refuse data that no run could use, naming the client."""
    if not data.ids:
        raise CoterieError(
            "there are no clients; at least one client with at least one training point is needed"
        )
    if len(set(data.ids)) < len(data.ids):
        twice = next(name for name, count in Counter(data.ids).items() if count > 1)
        raise CoterieError(f"two clients have the id {twice!r}; ids must differ")
    for name, points in (("training", data.train), ("test", data.test)):
        if points is not None:
            _check_points(data, name, points)
    _check_pixels(data)


def _check_pixels(data: Federation) -> None:
    x, given = data.train.x, data.normalise
    images = x.dtype == torch.uint8 and x.dim() == 4
    kept = f"inputs of shape {tuple(x.shape[1:])} kept as {str(x.dtype).removeprefix('torch.')}"
    if not images and (given or data.augment):
        which = "normalise" if given else "augment"
        raise CoterieError(
            f"{which} is for (channel, height, width) images kept as uint8, and there are {kept}"
        )
    if given:
        right = all(len(part) in (1, x.shape[1]) for part in given) and all(d > 0 for d in given[1])
        require(
            right, "normalise", given, f"a mean and a deviation above 0 for each of {x.shape[1]} channels"
        )
    small = data.augment and min(x.shape[2:]) <= MARGIN
    require(not small, "augment", data.augment, f"for images of more than {MARGIN} pixels a side only")


def check_range(data: Federation, dtype: torch.dtype) -> None:
    """Refuse numbers that would be infinite in `dtype`, in which a run computes."""
    most = torch.finfo(dtype).max
    known = (("training", data.train), ("test", data.test))
    for name, points in ((name, points) for name, points in known if points is not None):
        for what, values in (("an input", points.x), ("the target", points.y)):
            if values.dtype != torch.float64 or dtype == torch.float64:
                continue
            of_point = values.abs().reshape(len(values), -1).amax(1)
            of_point = of_point[points.at] if what == "an input" else of_point
            if bool((of_point > most).any()):
                point = int((of_point > most).nonzero()[0])
                client = int(points.owner[point])
                raise CoterieError(
                    f"client {data.ids[client]!r}, {name} point {point - int(points.offset[client])}: {what} of "
                    f"size {float(of_point[point]):g} is too large; allowed is up to {most:.2g}, or more in float64"
                )


def _check_points(data: Federation, name: str, points: Points) -> None:
    empty = (points.sizes == 0).nonzero()
    if len(empty) and name == "training":
        raise CoterieError(f"client {data.ids[int(empty[0])]!r} has no {name} points; at least one is needed")

    def refuse(bad: Tensor, what: str, allowed: str) -> None:
        if bad.any():
            point = int(bad.nonzero()[0])
            client = int(points.owner[point])
            where = f"client {data.ids[client]!r}, {name} point {point - int(points.offset[client])}"
            raise CoterieError(f"{where}: {what}; {allowed}")

    bad_x = ~torch.isfinite(points.x).flatten(1).all(1) if points.x.is_floating_point() else None
    if bad_x is not None:
        refuse(bad_x[points.at], "an input is not a finite number", "NaN and infinity are not allowed")
    flat_y = points.y.reshape(len(points.y), -1)
    if data.task == "regression":
        refuse(
            ~torch.isfinite(flat_y).all(1),
            "the target is not a finite number",
            "NaN and infinity are not allowed",
        )
    else:
        bad_y = (flat_y < 0).any(1) | (flat_y >= data.n_outputs).any(1)
        outside = flat_y[(flat_y < 0) | (flat_y >= data.n_outputs)]
        refuse(
            bad_y,
            f"label {outside[0].item() if len(outside) else None}",
            f"labels are whole numbers from 0 to {data.n_outputs - 1}",
        )
