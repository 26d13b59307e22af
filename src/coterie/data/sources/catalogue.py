"""The data sets that are known by name: where they may lie, what they are, how to get them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.data.images import Normalise
from coterie.data.sources import digits, leaf, packages
from coterie.data.sources.cifar import Batches
from coterie.data.sources.fetch import Package
from coterie.data.sources.idx import Idx
from coterie.data.sources.layout import Layout, found
from coterie.data.sources.npz import Npz
from coterie.data.sources.shakespeare import Roles
from coterie.data.sources.source import Source
from coterie.data.sources.text import CHARACTERS
from coterie.errors import CoterieError, SettingError
from coterie.validation import nearest

log = logging.getLogger("coterie")

ENVIRONMENT = "COTERIE_DATA"
_DIGITS = tuple("0123456789")
_UPPER, _LOWER = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), tuple("abcdefghijklmnopqrstuvwxyz")
_BALANCED = (*_DIGITS, *_UPPER, *"abdefghnqrt")
_CLOTHES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_EMNIST = ((0.1736,), (0.3317,))
_NIST = "NIST SD 19"
_KRIZHEVSKY = "none given; cite Krizhevsky 2009"


@dataclass(frozen=True)
class Known:
    """A data set that can be named."""

    name: str
    what: str
    licence: str
    layouts: tuple[Layout, ...]  # the first that is there is read
    put: str  # which files to put where in the data folder
    n_classes: int
    classes: tuple[str, ...] = ()
    normalise: Normalise | None = None
    package: Package | None = None
    built_in: Callable[[], Source] | None = None  # it comes with coterie's own requirements

    def at(self, folder: Path) -> tuple[Layout, list[Path]] | None:
        """The layout that is there, and its files."""
        for layout in self.layouts:
            there, missing = found(layout, folder)
            if there and not missing:
                return layout, there
        return None

    def absent(self, folder: Path) -> str:
        """Why it cannot be read, and what to do."""
        partly = [
            missing[0] for there, missing in (found(one, folder) for one in self.layouts) if there and missing
        ]
        why = f"{partly[0]} is missing" if partly else f"it is not in {folder}"
        get = f"`coterie data get {self.name}` gets it; or " if self.package else ""
        return f"{self.name} cannot be read: {why}; {get}{self.put}"


def _emnist(split: str, what: str, classes: tuple[str, ...], first: int = 0) -> Known:
    side = f"emnist-{split}-"
    return Known(
        f"emnist-{split}",
        what,
        _NIST,
        (
            Idx("EMNIST/raw", f"{side}train", f"{side}test", transposed=True, first=first),
            Npz((f"emnist_{split}.npz",)),
        ),
        f"put the four files {side}{{train,test}}-{{images-idx3,labels-idx1}}-ubyte[.gz] into EMNIST/raw",
        len(classes),
        classes,
        _EMNIST,
    )


def _idx(folder: str) -> str:
    return f"put the four files {{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte[.gz] into {folder}"


KNOWN = {
    known.name: known
    for known in (
        Known(
            "mnist",
            "digits, 28x28, 60000 + 10000",
            "CC BY-SA 3.0, as commonly stated",
            (Idx("MNIST/raw"), Npz(("mnist.npz",))),
            _idx("MNIST/raw"),
            10,
            _DIGITS,
            ((0.1307,), (0.3081,)),
            packages.MNIST,
        ),
        Known(
            "fashion-mnist",
            "clothes, 28x28, 60000 + 10000",
            "MIT",
            (Idx("FashionMNIST/raw"), Npz(("fashion_mnist.npz", "fashion-mnist.npz"))),
            _idx("FashionMNIST/raw"),
            10,
            _CLOTHES,
            ((0.2860,), (0.3530,)),
            packages.FASHION_MNIST,
        ),
        _emnist("letters", "letters without case, 28x28, 124800 + 20800", _UPPER, first=1),
        _emnist("byclass", "digits and letters with case, 28x28, 697932 + 116323", _DIGITS + _UPPER + _LOWER),
        _emnist("balanced", "digits and letters, 47 classes, 28x28, 112800 + 18800", _BALANCED),
        Known(
            "emnist-balanced-14k",
            "a part of EMNIST balanced's test images, 28x28, about 11400 + 2850",
            _NIST,
            (Npz(("emnist_balanced_test14k.npz",)),),
            "put emnist_balanced_test14k.npz there, with x (image, 28, 28) upright and y from 0 to 46",
            47,
            _BALANCED,
            _EMNIST,
        ),
        Known(
            "cifar10",
            "things, 3x32x32, 50000 + 10000",
            _KRIZHEVSKY,
            (
                Batches(
                    "cifar-10-batches-py", tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)
                ),
                Npz(("cifar10.npz", "cifar-10.npz")),
            ),
            "put data_batch_1 to data_batch_5 and test_batch into cifar-10-batches-py",
            10,
            _THINGS,
            ((0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784)),
            packages.CIFAR10,
        ),
        Known(
            "cifar100",
            "things of 100 kinds, 3x32x32, 50000 + 10000",
            _KRIZHEVSKY,
            (
                Batches("cifar-100-python", ("train",), ("test",), "fine_labels"),
                Npz(("cifar100.npz", "cifar-100.npz")),
            ),
            "put train and test of the original archive into cifar-100-python",
            100,
            normalise=_CIFAR100,
        ),
        Known(
            "cifar100-20k",
            "a part of CIFAR-100, 3x32x32, 20000 + 4000",
            _KRIZHEVSKY,
            (Npz(("cifar100_20k.npz",)),),
            "put cifar100_20k.npz there, with x_train, y_train, x_test and y_test",
            100,
            normalise=_CIFAR100,
        ),
        Known(
            "femnist",
            "digits and letters by writer, 28x28, from LEAF",
            _NIST,
            (leaf.Leaf("femnist", leaf.letters),),
            "put the .json files that LEAF's preprocess.sh writes into femnist/train and femnist/test",
            62,
            _DIGITS + _UPPER + _LOWER,
        ),
        Known(
            "shakespeare",
            "the plays by speaking role, sequences of 80 characters",
            "public domain",
            (leaf.Leaf("shakespeare", leaf.characters), Roles()),
            "put shakespeare_roles.jsonl[.gz] there (a line is an object with play, role and text), or the .json files "
            "that LEAF's preprocess.sh writes into shakespeare/train and shakespeare/test",
            len(CHARACTERS),
            tuple(CHARACTERS),
            package=packages.SHAKESPEARE,
        ),
        Known(
            "digits",
            "digits, 8x8, 1347 + 450",
            "CC BY 4.0, comes with scikit-learn",
            (),
            "",
            10,
            _DIGITS,
            built_in=digits.read,
        ),
    )
}


def data_folder(given: Path | str | None = None) -> Path:
    """Where data sets are looked for: as given, as COTERIE_DATA says, or ~/.cache/coterie."""
    return Path(given or os.environ.get(ENVIRONMENT) or Path.home() / ".cache" / "coterie").expanduser()


def use(given: Path | None) -> None:
    """Look for data sets there, from now on and in processes that this one starts."""
    if given is not None:
        os.environ[ENVIRONMENT] = str(given.absolute())


def known(name: str) -> Known:
    if name.lower() in KNOWN:
        return KNOWN[name.lower()]
    raise SettingError("name", f"is {name!r}{nearest(name, KNOWN)}; allowed is {', '.join(KNOWN)}")


def load(name: str, folder: Path) -> Source:
    """A data set by its name."""
    one = known(name)
    if one.built_in is not None:
        return one.built_in()
    here = one.at(folder)
    if here is None:
        raise CoterieError(one.absent(folder))
    layout, files = here
    log.info("%s is read from %s", one.name, files[0] if len(files) == 1 else files[0].parent)
    source = layout.read(files)
    source = replace(
        source,
        name=one.name,
        n_classes=one.n_classes,
        classes=source.classes or one.classes,
        normalise=one.normalise,
    )
    _check(source, files[0] if len(files) == 1 else files[0].parent)
    return source


def _check(source: Source, where: Path) -> None:
    """What the files hold is what the name says, and fits together."""
    n = source.n_classes
    for y in (source.y_train, source.y_test):
        if not len(y) or int(y.min()) < 0 or int(y.max()) >= n:
            held = f"labels from {int(y.min())} to {int(y.max())}" if len(y) else "no points of one side"
            raise CoterieError(f"{where}: {source.name} has {held} there; expected are labels 0 to {n - 1}")
    shapes = [tuple(x.shape[1:]) for x in (source.x_train, source.x_test)]
    if shapes[0] != shapes[1]:
        raise CoterieError(
            f"{where}: {source.name} has training inputs of the shape {shapes[0]} and test inputs of {shapes[1]} "
            "there; they must be alike"
        )
    if len(source.classes) not in (0, n):
        raise CoterieError(
            f"{where}: {source.name} has {len(source.classes)} words for its {n} classes there"
        )
