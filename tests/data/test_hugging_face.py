"""Data sets of Hugging Face and partitions of flwr-datasets, from a local parquet file and without a hub."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data import from_datasets
from coterie.errors import CoterieError
from tests.builders import pictures


def parquet(tmp_path: Path) -> object:
    """A local file, read by `datasets` without a hub."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    x = pictures(20, 8, 8, 3)
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    columns = {"image": [image.fromarray(one) for one in x], "label": [i % 2 for i in range(20)]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "train.parquet"))
    return datasets.Dataset.from_parquet(str(tmp_path / "train.parquet"), cache_dir=str(tmp_path / "cache"))


def test_hugging_face_whole(tmp_path: Path):
    data, x = parquet(tmp_path), pictures(20, 8, 8, 3)
    source = from_datasets(data, data)
    assert np.array_equal(source.x_train.numpy(), x.transpose(0, 3, 1, 2))
    assert source.x_train.dtype == torch.uint8
    assert (source.classes, source.n_classes, source.owners) == (("cat", "dog"), 2, ())
    parted = from_datasets(data, test_fraction=0.25, seed=1)
    assert (len(parted.x_train), len(parted.x_test)) == (15, 5)
    both = torch.cat([parted.x_train, parted.x_test]).flatten(1).tolist()
    assert sorted(both) == sorted(source.x_train.flatten(1).tolist())
    assert torch.equal(from_datasets(data, test_fraction=0.25, seed=1).x_test, parted.x_test)


def test_hugging_face_dict_of_splits(tmp_path: Path):
    data = parquet(tmp_path)
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict(train=data.select(range(15)), test=data.select(range(15, 20)))
    source = from_datasets(both)
    assert (len(source.x_train), len(source.x_test), source.owners) == (15, 5, ())


def test_flower_partitions(tmp_path: Path):
    data = parquet(tmp_path)
    flower = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    partitioner = flower.IidPartitioner(num_partitions=4)
    partitioner.dataset = data
    source = from_datasets(partitioner, test_fraction=0.2)
    assert source.owners == ("0", "1", "2", "3")
    assert source.owner_train.bincount().tolist() == [4] * 4
    assert source.owner_test.bincount().tolist() == [1] * 4
    alone = from_datasets({"2": partitioner.load_partition(2)}, test_fraction=0.2)
    assert torch.equal(alone.x_test, source.x_test[source.owner_test == 2])


def test_hugging_face_numbers_and_mistakes(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    data = datasets.Dataset.from_dict({"a": [[1.0, 2.0], [3.0, 4.0]], "b": [0, 3], "c": ["x", "y"]})
    source = from_datasets(data, data, inputs="a", target="b")
    assert (source.x_train.dtype, source.x_train.tolist()) == (torch.float32, [[1, 2], [3, 4]])
    assert source.n_classes == 4
    for given, sentence in (
        ({}, "inputs is None; allowed is one of the columns a, b, c"),
        ({"inputs": "a", "target": "z"}, "target is 'z'; allowed is one of the columns"),
        ({"inputs": "a", "target": "c"}, "column 'c' holds values of type <U1; needed are whole numbers"),
        ({"inputs": "c", "target": "b"}, "column 'c' holds values of type <U1; needed are images or numbers"),
    ):
        with pytest.raises(CoterieError, match=sentence):
            from_datasets(data, **given)
    with pytest.raises(CoterieError, match=r"given is a int; allowed is a datasets.Dataset"):
        from_datasets(3)
    with pytest.raises(CoterieError, match="train and test are not alike"):
        from_datasets(data, [data], inputs="a", target="b")


def test_hugging_face_parts_that_do_not_fit():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    data = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    longer = datasets.Dataset.from_dict({"x": [[1.0, 2.0, 3.0]], "y": [0]})
    other = datasets.Dataset.from_dict({"x": [[1.0, 2.0]], "z": [0]})
    for given, sentence in (
        ((datasets.DatasetDict(valid=data),), "has the splits valid; one called train is needed"),
        (([data, other],), "partition '1', column 'y' is not among x, z; all parts must have it"),
        ((data, other), "^column 'y' is not among x, z; all parts must have it"),
        (([data, longer],), r"inputs have the shapes \[\(2,\), \(3,\)\]; all must have the same"),
        ((data, longer), r"inputs have the shapes \[\(2,\), \(3,\)\]; all must have the same"),
    ):
        with pytest.raises(CoterieError, match=sentence):
            from_datasets(*given)
