"""Every layout from tiny files made here, what is wrong with a file said by name, and the real data where it is."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data import Source, data_folder, load, named
from coterie.data.sources.catalogue import KNOWN
from coterie.data.sources.idx import read_idx
from coterie.data.sources.text import CHARACTERS
from coterie.errors import CoterieError
from tests.builders import idx, pictures, write, write_idx

# idx


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")])
def test_idx(tmp_path: Path, name: str, folder: str, end: str):
    write_idx(tmp_path / folder, end=end)
    source = load(name, tmp_path)
    assert source.name == name
    assert source.x_train.dtype == torch.uint8
    assert np.array_equal(source.x_train.numpy()[:, 0], pictures(6, 28, 28, seed=6))
    assert np.array_equal(source.x_test.numpy()[:, 0], pictures(4, 28, 28, seed=4))
    assert source.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert source.y_test.dtype == torch.int64
    assert (source.n_classes, len(source.classes)) == (10, 10)


def test_emnist_is_turned_upright_and_letters_count_from_0(tmp_path: Path):
    for split in ("letters", "byclass", "balanced"):
        first = 1 if split == "letters" else 0
        write_idx(tmp_path / "EMNIST/raw", f"emnist-{split}-train", f"emnist-{split}-test", first=first)
        source = load(f"emnist-{split}", tmp_path)
        assert np.array_equal(source.x_train.numpy()[:, 0], pictures(6, 28, 28, seed=6).transpose(0, 2, 1))
        assert source.y_train.tolist() == [0, 1, 2, 0, 1, 2]
        assert (
            source.n_classes == len(source.classes) == {"letters": 26, "byclass": 62, "balanced": 47}[split]
        )


def test_idx_that_is_cut_short_or_something_else(tmp_path: Path):
    whole = idx(pictures(6, 28, 28))
    path = write(tmp_path / "a", whole[:-5])
    with pytest.raises(
        CoterieError, match=f"a holds {len(whole) - 5} bytes; {len(whole)} are expected by its own header"
    ):
        read_idx(path, 3)
    with pytest.raises(
        CoterieError, match="a begins with 00000803; an idx file of 1 axes begins with 00000801"
    ):
        read_idx(path, 1)
    with pytest.raises(CoterieError, match="b begins with nothing; an idx file"):
        read_idx(write(tmp_path / "b", b""), 3)
    path = write(tmp_path / "c.gz", whole)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CoterieError, match=rf"c.gz \({path.stat().st_size} bytes\) is not a whole gzip file"):
        read_idx(path, 3)
    path.write_bytes(b"not gzip")
    with pytest.raises(CoterieError, match=r"c.gz \(8 bytes\) is not a whole gzip file"):
        read_idx(path, 3)


def test_labels_and_images_must_be_as_many_and_known(tmp_path: Path):
    write_idx(tmp_path / "MNIST/raw")
    labels = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    write(labels, idx(np.zeros(5, np.uint8)))
    with pytest.raises(CoterieError, match=r"train-labels-idx1-ubyte has 5 labels and .* has 6 images"):
        load("mnist", tmp_path)
    write(labels, idx(np.full(6, 10, np.uint8)))
    with pytest.raises(
        CoterieError, match="mnist has labels from 10 to 10 there; expected are labels 0 to 9"
    ):
        load("mnist", tmp_path)


def test_what_is_missing_is_named(tmp_path: Path):
    with pytest.raises(
        CoterieError, match=r"mnist cannot be read: it is not in .*; `coterie data get mnist` gets it; or put"
    ):
        load("mnist", tmp_path)
    write_idx(tmp_path / "MNIST/raw")
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(CoterieError, match="t10k-labels-idx1-ubyte is missing"):
        load("mnist", tmp_path)
    with pytest.raises(
        CoterieError, match=r"it is not in .*; put the four files emnist-letters-\{train,test\}"
    ):
        load("emnist-letters", tmp_path)
    with pytest.raises(CoterieError, match="name is 'mnits', the nearest is 'mnist'; allowed is mnist"):
        load("mnits", tmp_path)


# cifar


def cifar_batch(n: int, labels: str, kinds: int, seed: int = 0) -> dict[str, object]:
    return {"data": pictures(n, 3072, seed=seed), labels: [i % kinds for i in range(n)]}


def write_cifar10(folder: Path) -> None:
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        write(folder / name, pickle.dumps(cifar_batch(3, "labels", 10, seed=i), protocol=2))


def test_cifar_10(tmp_path: Path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    source = load("cifar10", tmp_path)
    assert source.x_train.shape == (15, 3, 32, 32)
    assert np.array_equal(source.x_train[3:6].flatten(1).numpy(), pictures(3, 3072, seed=1))
    assert np.array_equal(source.x_test.flatten(1).numpy(), pictures(3, 3072, seed=5))
    assert source.y_train.tolist() == [0, 1, 2] * 5
    assert source.classes[3] == "cat"


def test_cifar_that_is_not_the_original_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    load("cifar10", tmp_path)
    assert "test_batch is not the original: it has" in caplog.text
    assert "expected is 40351d587109b95175f43aff81a1287e" in caplog.text


def test_cifar_as_python_2_wrote_it(tmp_path: Path):
    """Protocol 2 with byte strings and numpy's old module names."""
    write_cifar10(tmp_path / "cifar-10-batches-py")
    path = tmp_path / "cifar-10-batches-py/data_batch_1"
    pixels = pictures(2, 3072)
    old = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c"
        b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tbU\x06labels](K\x07K\x08eu."
    )  # fmt: skip
    path.write_bytes(old)
    source = load("cifar10", tmp_path)
    assert np.array_equal(source.x_train[:2].flatten(1).numpy(), pixels)
    assert source.y_train[:2].tolist() == [7, 8]


def test_cifar_100(tmp_path: Path):
    for name, n in (("train", 5), ("test", 2)):
        batch = {**cifar_batch(n, "fine_labels", 100), "coarse_labels": [0] * n}
        write(tmp_path / "cifar-100-python" / name, pickle.dumps(batch, protocol=2))
    source = load("cifar100", tmp_path)
    assert (source.x_train.shape, source.n_classes) == ((5, 3, 32, 32), 100)
    assert source.y_train.tolist() == [0, 1, 2, 3, 4]


class Runs:
    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def test_a_pickle_with_code_is_refused_and_nothing_runs(tmp_path: Path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    path, mark = tmp_path / "cifar-10-batches-py/data_batch_2", tmp_path / "ran"
    path.write_bytes(pickle.dumps({**cifar_batch(3, "labels", 10), "more": Runs(f"touch {mark}")}))
    with pytest.raises(
        CoterieError, match=r"data_batch_2 could not be read \(it asks for posix.system, which no batch"
    ):
        load("cifar10", tmp_path)
    assert not mark.exists()


def test_a_batch_that_is_cut_short_is_named_with_its_checksum(tmp_path: Path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    path = tmp_path / "cifar-10-batches-py/data_batch_2"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(
        CoterieError,
        match=r"data_batch_2 .* it has 500 bytes and the MD5 sum [0-9a-f]{32}; expected is d4bba439e000",
    ):
        load("cifar10", tmp_path)
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(CoterieError, match=r"data_batch_2 holds no `data` of bytes \(image, 3072\)"):
        load("cifar10", tmp_path)
    path.write_bytes(pickle.dumps({**cifar_batch(3, "labels", 10), "labels": [1, 2]}))
    with pytest.raises(
        CoterieError, match="data_batch_2 has 3 images; a list `labels` of as many whole numbers"
    ):
        load("cifar10", tmp_path)


# npz


def test_npz_of_grey_and_coloured_images(tmp_path: Path):
    sides = {"y_train": np.arange(6, dtype=np.uint8), "y_test": np.arange(2, dtype=np.uint8)}
    grey = {"x_train": pictures(6, 28, 28), "x_test": pictures(2, 28, 28)}
    np.savez(tmp_path / "mnist.npz", **sides, **grey)
    assert np.array_equal(load("mnist", tmp_path).x_train[:, 0].numpy(), grey["x_train"])
    coloured = {"x_train": pictures(6, 32, 32, 3), "x_test": pictures(2, 32, 32, 3)}
    words = [f"kind {i}" for i in range(100)]
    np.savez(tmp_path / "cifar100_20k.npz", **sides, **coloured, fine_names=np.array(words))
    source = load("cifar100-20k", tmp_path)
    assert np.array_equal(source.x_train[4, 2].numpy(), coloured["x_train"][4, :, :, 2])
    assert source.classes == tuple(words)


def test_npz_of_one_side_is_parted_by_class(tmp_path: Path):
    y = np.array([5] * 10 + [2] * 5 + [1] * 4, np.uint8)
    x = pictures(19, 28, 28)
    np.savez(tmp_path / "emnist_balanced_test14k.npz", x=x, y=y)
    source = load("emnist-balanced-14k", tmp_path)
    assert source.y_test.tolist() == [5, 5, 2]
    assert np.array_equal(source.x_test[:, 0].numpy(), x[[4, 9, 14]])
    assert len(source.x_train) == 16
    assert torch.equal(load("emnist-balanced-14k", tmp_path).x_test, source.x_test)


def test_the_first_layout_that_is_there_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    np.savez(tmp_path / "mnist.npz", **{f"x_{s}": pictures(2, 8, 8) for s in ("train", "test")},
             **{f"y_{s}": np.zeros(2, int) for s in ("train", "test")})  # fmt: skip
    with caplog.at_level("INFO", "coterie"):
        assert load("mnist", tmp_path).x_train.shape == (2, 1, 8, 8)
        assert "mnist is read from" in caplog.text
        assert "mnist.npz" in caplog.text
        write_idx(tmp_path / "MNIST/raw")
        assert load("mnist", tmp_path).x_train.shape == (6, 1, 28, 28)
        assert caplog.text.rstrip().endswith(str(Path("MNIST/raw")))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": pictures(2, 8, 8)}, "has the arrays x; needed are x_train, y_train, x_test, y_test, or x and y"),
        ({"x": np.zeros((2, 8, 8)), "y": np.zeros(2, int)}, r"x has the shape \(2, 8, 8\) of float64; allowed"),
        ({"x": pictures(2, 8, 8), "y": np.zeros(3, int)}, r"y has the shape \(3,\) of int64; needed are whole"),
        ({"x": np.array([{}]), "y": np.zeros(1, int)}, "mnist.npz could not be read because it holds Python objects"),
    ],
)  # fmt: skip
def test_bad_npz(tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str):
    np.savez(tmp_path / "mnist.npz", **arrays)
    with pytest.raises(CoterieError, match=sentence):
        load("mnist", tmp_path)


def test_npz_that_does_not_fit_together(tmp_path: Path):
    sides = {"y_train": np.arange(6, dtype=np.uint8), "y_test": np.arange(2, dtype=np.uint8)}
    path = tmp_path / "mnist.npz"
    np.savez(path, **sides, x_train=pictures(6, 8, 8), x_test=pictures(2, 9, 9))
    said = (
        r"mnist.npz: mnist has training inputs of the shape \(1, 8, 8\) and test inputs of \(1, 9, 9\) there"
    )
    with pytest.raises(CoterieError, match=said):
        load("mnist", tmp_path)
    np.savez(path, **sides, x_train=pictures(6, 8, 8), x_test=pictures(2, 8, 8), classes=np.array(["a", "b"]))
    with pytest.raises(CoterieError, match=r"mnist.npz: mnist has 2 words for its 10 classes there"):
        load("mnist", tmp_path)


def test_npz_that_is_cut_short(tmp_path: Path):
    np.savez(tmp_path / "mnist.npz", x=pictures(9, 8, 8), y=np.zeros(9, int))
    path = tmp_path / "mnist.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(
        CoterieError, match=r"mnist.npz could not be read because it is not a whole .npz archive"
    ):
        load("mnist", tmp_path)


# leaf


def write_leaf(folder: Path, **users: dict[str, list[object]]) -> None:
    held = {"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users}
    write(folder / f"all_data_{len(list(folder.glob('*')))}.json", json.dumps(held).encode())


@pytest.mark.parametrize("below", ["", "data"])
def test_femnist_by_writer(tmp_path: Path, below: str):
    x = np.random.default_rng(0).random((5, 784)).round(4)
    here = tmp_path / "femnist" / below
    write_leaf(here / "train", f1={"x": x[:2].tolist(), "y": [61, 3]}, f0={"x": x[2:3].tolist(), "y": [7]})
    write_leaf(here / "train", f2={"x": x[3:4].tolist(), "y": [1]})
    write_leaf(here / "test", f0={"x": x[4:].tolist(), "y": [9]}, f1={"x": [], "y": []})
    source = load("femnist", tmp_path)
    assert source.owners == ("f0", "f1", "f2")
    assert source.owner_train.tolist() == [1, 1, 0, 2]
    assert source.owner_test.tolist() == [0]
    assert source.y_train.tolist() == [61, 3, 7, 1]
    assert np.array_equal(source.x_train[2].flatten().numpy(), (x[2] * 255).round())
    assert source.x_train.shape == (4, 1, 28, 28)


def test_shakespeare_of_leaf(tmp_path: Path):
    line = "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suf"
    assert len(line) == 81
    for side in ("train", "test"):
        write_leaf(tmp_path / "shakespeare" / side, HAMLET={"x": [line[:-1]], "y": [line[-1]]})
    source = load("shakespeare", tmp_path)
    assert source.x_train.shape == source.y_train.shape == (1, 80)
    assert "".join(CHARACTERS[i] for i in source.y_train[0]) == line[1:]
    assert (source.n_classes, source.owners) == (80, ("HAMLET",))


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"x": [[0.5] * 783], "y": [1]}, "train: the data of user 'f' cannot be read"),
        ({"x": [[1.5] * 784], "y": [1]}, r"user 'f' cannot be read \(a pixel is outside of 0 to 1\)"),
        ({"x": [[0.5] * 784], "y": [1, 2]}, "user 'f' has 1 inputs and 2 targets"),
        ({"x": [[0.5] * 784]}, "user 'f' cannot be read"),
        ({"x": [[0.5] * 1568], "y": [1, 2]}, "user 'f' cannot be read"),
        ({"x": [], "y": []}, "train: no user has any points"),
    ],
)
def test_bad_leaf(tmp_path: Path, user: dict[str, list[object]], sentence: str):
    for side in ("train", "test"):
        held = {"user_data": {"f": user}}
        write(tmp_path / "femnist" / side / "a.json", json.dumps(held).encode())
    with pytest.raises(CoterieError, match=sentence):
        load("femnist", tmp_path)


def test_leaf_that_is_cut_short_or_empty(tmp_path: Path):
    for side in ("train", "test"):
        (tmp_path / "femnist" / side).mkdir(parents=True)
    with pytest.raises(CoterieError, match=r"train has no .json file with users"):
        load("femnist", tmp_path)
    write(tmp_path / "femnist/train/a.json", b'{"user_data": {"f": {"x": [')
    with pytest.raises(CoterieError, match=r"a.json \(27 bytes\) is not a whole json file of LEAF"):
        load("femnist", tmp_path)


# what comes with other packages


def test_digits():
    source = load("digits", Path("nowhere"))
    assert (source.x_train.shape, source.x_test.shape) == ((1347, 1, 8, 8), (450, 1, 8, 8))
    assert (source.x_train.dtype, float(source.x_train.max())) == (torch.float32, 1.0)
    assert source.y_train.bincount().min() > 100
    assert torch.equal(source.x_train, named("digits", image=True).train.x)  # the same that an experiment has


# the folder


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert data_folder() == Path.home() / ".cache" / "coterie"
    monkeypatch.setenv("COTERIE_DATA", "/somewhere")
    assert data_folder() == Path("/somewhere")
    assert data_folder("/else") == Path("/else")


# the real ones

REAL = {  # points to train on and to test on
    "mnist": (60000, 10000),
    "fashion-mnist": (60000, 10000),
    "cifar10": (50000, 10000),
    "cifar100": (50000, 10000),
    "cifar100-20k": (20000, 4000),
    "emnist-letters": (124800, 20800),
    "emnist-byclass": (697932, 116323),
    "emnist-balanced": (112800, 18800),
    "emnist-balanced-14k": (11419, 2827),
}


def real(name: str) -> Source:
    if KNOWN[name].at(data_folder()) is None:
        pytest.skip(f"{name} is not in the data folder, {data_folder()}")
    return load(name, data_folder())


@pytest.mark.parametrize("name", REAL)
def test_real_images(name: str):
    source = real(name)
    assert (len(source.x_train), len(source.x_test)) == REAL[name]
    assert source.y_train.unique().tolist() == list(range(source.n_classes))
    some = source.x_train[:: max(1, len(source.x_train) // 20000)].float() / 255
    mean, deviation = (torch.tensor(part) for part in source.normalise)
    torch.testing.assert_close(some.mean((0, 2, 3)), mean, rtol=0, atol=0.01)
    torch.testing.assert_close(some.std((0, 2, 3)), deviation, rtol=0, atol=0.01)


def test_real_shakespeare():
    source = real("shakespeare")
    assert len(source.owners) > 600
    assert source.x_train.shape[1] == 80
    assert torch.equal(source.x_train[0, 1:], source.y_train[0, :-1])
    assert source.owner_test.unique().numel() == len(source.owners)
