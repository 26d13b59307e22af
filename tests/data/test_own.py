"""The user's own data: arrays, a folder, a table."""

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.data import from_arrays, from_folder, from_table
from coterie.data.federation import Federation
from coterie.errors import CoterieError


def client_points(data: Federation, id: str, side: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    points, k = getattr(data, side), data.ids.index(id)
    mine = slice(int(points.offset[k]), int(points.offset[k + 1]))
    return points.x[points.at[mine]], points.y[mine]


def some_clients(labels: str = "int") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    clients = {}
    for id, size in (("ann", 10), ("bob", 7), ("cat", 1)):
        y = {
            "int": rng.integers(3, size=size),
            "float": rng.normal(size=size).astype(np.float32),
            "word": rng.choice(["no", "perhaps", "yes"], size=size),
        }[labels]
        clients[id] = (rng.normal(size=(size, 4)).astype(np.float32), y)
    clients["ann"][1][:3] = ["no", "perhaps", "yes"] if labels == "word" else [0, 1, 2]
    return clients


def frame(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=["a", "b", "c", "d"]).assign(y=y)


def assert_same(one: Federation, other: Federation) -> None:
    assert one.ids == other.ids
    assert (one.task, one.n_outputs) == (other.task, other.n_outputs)
    for side in ("train", "test"):
        for id in one.ids:
            for t, u in zip(client_points(one, id, side), client_points(other, id, side), strict=True):
                assert t.dtype == u.dtype
                assert torch.equal(t, u)


# Arrays


def test_arrays_are_kept_and_some_points_held_out():
    given = some_clients()
    data = from_arrays(given)
    assert data.ids == ("ann", "bob", "cat")
    assert data.test.sizes.tolist() == [2, 1, 0]  # 20 % of 10, 7 and 1
    assert data.train.sizes.tolist() == [8, 6, 1]
    for id, (x, y) in given.items():
        parts = [client_points(data, id, side) for side in ("train", "test")]
        rows = sorted(
            [*x_row.tolist(), int(y_row)] for xs, ys in parts for x_row, y_row in zip(xs, ys, strict=True)
        )
        assert rows == sorted([*x_row.tolist(), int(y_row)] for x_row, y_row in zip(x, y, strict=True))


def test_the_split_is_of_the_seed_and_the_id_alone():
    given = some_clients()
    assert_same(from_arrays(given, seed=1), from_arrays(given, seed=1))
    fewer = from_arrays({"bob": given["bob"], "ann": given["ann"]}, seed=1)
    assert torch.equal(client_points(fewer, "ann")[0], client_points(from_arrays(given, seed=1), "ann")[0])
    moved = [client_points(from_arrays(given, seed=s), "ann", "test")[0].tolist() for s in range(5)]
    assert any(m != moved[0] for m in moved)


def test_clients_of_one_size_do_not_hold_out_the_same_places():
    places = np.arange(50.0)
    data = from_arrays([(places, np.zeros(50, int))] * 4)
    assert len({tuple(client_points(data, id, "test")[0].flatten().tolist()) for id in data.ids}) == 4


def test_test_points_that_were_given_are_used():
    x, y = np.arange(6.0).reshape(3, 2), [0, 1, 1]
    data = from_arrays([(x, y, x + 10, [1, 1, 3]), (x, y, [], [])])
    assert data.train.sizes.tolist() == [3, 3]
    assert data.test.sizes.tolist() == [3, 0]
    assert torch.equal(client_points(data, "0", "test")[0], torch.from_numpy(x + 10))
    assert data.n_outputs == 4


def test_nothing_is_held_out_when_asked():
    assert from_arrays(some_clients(), test_fraction=0).test is None


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.zeros((3, 2)), torch.float64),
        (np.zeros((3, 2), np.float32), torch.float32),
        (np.zeros((3, 2), np.float16), torch.float32),
        (np.zeros((3, 2), np.uint8), torch.int16),
        (np.zeros((3, 2), np.int64), torch.int64),
        (np.zeros((3, 2), bool), torch.float32),
        (torch.zeros(3, 2, dtype=torch.float64), torch.float64),
        (torch.zeros(3, 2, dtype=torch.bfloat16), torch.float32),
        (torch.zeros(3, 2, requires_grad=True), torch.float32),
        ([[0.5, 1], [2, 3], [4, 5]], torch.float32),
        ([0.5, 1, 2], torch.float32),
    ],
)
def test_kinds_of_inputs(x, dtype):
    data = from_arrays([(x, [0, 1, 1])], test_fraction=0)
    assert data.train.x.dtype == dtype
    assert data.train.x.ndim == 2


def test_images_keep_their_shape():
    assert from_arrays([(np.zeros((5, 3, 8, 8), np.uint8), np.zeros(5, int))]).train.x.shape[1:] == (3, 8, 8)


@pytest.mark.parametrize(
    ("y", "task", "n_outputs", "labels"),
    [
        ([2, 0, 5], "classification", 6, [2, 0, 5]),
        (np.array([2, 0, 1], np.uint8), "classification", 3, [2, 0, 1]),
        ([True, False, True], "classification", 2, [1, 0, 1]),
        (["b", "a", "c"], "classification", 3, [1, 0, 2]),
        (np.array(["b", "a", "c"], object), "classification", 3, [1, 0, 2]),
        (np.array([[2], [0], [1]]), "classification", 3, [2, 0, 1]),
        ([0.5, 1.0, 2.0], "regression", 1, [[0.5], [1.0], [2.0]]),
        (np.array([[1.0, 2], [3, 4], [5, 6]]), "regression", 2, [[1, 2], [3, 4], [5, 6]]),
    ],
)
def test_the_task_is_guessed(y, task, n_outputs, labels):
    data = from_arrays([(np.zeros((3, 1)), y)], test_fraction=0)
    assert (data.task, data.n_outputs) == (task, n_outputs)
    assert data.train.y.tolist() == labels


def test_the_task_can_be_given():
    x = np.zeros((3, 1))
    numbers = from_arrays([(x, [-1, 0, 7])], task="regression", test_fraction=0)
    assert (numbers.task, numbers.train.y.tolist()) == ("regression", [[-1.0], [0.0], [7.0]])
    labels = from_arrays([(x, [1.0, 0.0, 2.0])], task="classification", test_fraction=0)
    assert (labels.n_outputs, labels.train.y.tolist()) == (3, [1, 0, 2])
    text = np.array([[0, 1, 2], [1, 2, 9]])
    characters = from_arrays(
        [(text, np.array([[1, 2, 3], [2, 3, 4]]))], task="next-character", test_fraction=0
    )
    assert characters.train.x.dtype == characters.train.y.dtype == torch.int64
    assert characters.n_outputs == 10  # the 9 that is only ever an input needs its place too


def test_words_mean_the_same_at_every_client():
    x = np.zeros((2, 1))
    data = from_arrays({"a": (x, ["yes", "no"]), "b": (x, ["no", "perhaps"])}, test_fraction=0)
    assert data.train.y.tolist() == [2, 0, 0, 1]


X = np.zeros((3, 2))


@pytest.mark.parametrize(
    ("clients", "settings", "sentence"),
    [
        ([], {}, "there are no clients; at least one client"),
        (3, {}, "clients is a int; allowed is a list"),
        ({"ann": (X,)}, {}, r"client 'ann' is not a pair of arrays; allowed is \(x, y\) or"),
        ({"ann": (X, [0, 1])}, {}, "client 'ann': x has 3 points and y has 2; both must have one row"),
        ({"ann": (X, [0, 1, 1], X, [1])}, {}, "client 'ann': test: x has 3 points and y has 1"),
        (
            {"ann": (X, [0, 1, 1]), "bob": (np.zeros((3, 5)), [0, 1, 1])},
            {},
            "client 'bob' has 5 features and client 'ann' has 2 features; all clients need the same",
        ),
        (
            {"ann": (np.zeros((3, 1, 2, 2)), [0, 1, 1]), "bob": (X, [0, 1, 1])},
            {},
            r"client 'bob' has 2 features and client 'ann' has inputs of shape \(1, 2, 2\)",
        ),
        (
            {"ann": (X, [0, -1, 1])},
            {},
            "client 'ann', point 1: label -1; labels are whole numbers from 0 .task=",
        ),
        (
            {"ann": (X, [0, 1.5, 1])},
            {"task": "classification"},
            "client 'ann', point 1: label 1.5; labels are",
        ),
        (
            {"ann": (X, np.eye(3, dtype=int))},
            {},
            r"client 'ann': the shape of y is \(3, 3\); allowed is a label",
        ),
        ({"ann": (X, [0, 1, 1]), "bob": ([], [])}, {}, "client 'bob' has no training points; at least one"),
        ({"ann": (X, [0, np.nan, 1])}, {}, "client 'ann', point 1: the target is not a finite number; NaN"),
        ({"ann": (X + np.inf, [0, 1, 1])}, {}, "client 'ann', point 0: an input is not a finite number; NaN"),
        (
            {"ann": ([[1, 2], [3]], [0, 1])},
            {},
            "client 'ann': x is not an array; its rows must all have the same",
        ),
        ({"ann": (X.astype(object), [0, 1, 1])}, {}, "client 'ann': x holds Python objects; only numbers"),
        (
            {"ann": (X, np.array([None, 1, 1]))},
            {},
            "client 'ann': y holds Python objects; only numbers or words",
        ),
        ({"ann": (X.astype(str), [0, 1, 1])}, {}, "client 'ann': x holds values of type <U"),
        ({"ann": (3.0, [0, 1, 1])}, {}, "client 'ann': x is a float; an array with one row for each point"),
        (
            {"ann": (X, ["a", "b", "a"]), "bob": (X, [0, 1, 1])},
            {},
            "client 'bob' has numbers as targets and client 'ann' has words; all clients need the same kind",
        ),
        (
            {"ann": (X, ["a", "b", "a"])},
            {"task": "regression"},
            "client 'ann': targets are words; regression needs",
        ),
        (
            {"ann": (X, [0.5, 1, 1]), "bob": (X, np.zeros((3, 2)))},
            {},
            "client 'bob' has 2 targets per point and client 'ann' has 1; all clients need the same number",
        ),
        ({"ann": (X, X)}, {"task": "next-character"}, "client 'ann': x has other inputs than characters"),
        (
            {"ann": (X.astype(int), [0, 1, 1])},
            {"task": "next-character"},
            r"client 'ann': x has the shape \(3, 2\)",
        ),
        ([(X, [0, 1, 1])] * 2, {"ids": ["a", "a"]}, "two clients have the id 'a'; ids must differ"),
        ([(X, [0, 1, 1])] * 2, {"ids": ["a"]}, "there are 2 clients and 1 ids; each client needs one id"),
        (
            {"ann": (X, [0, 1, 1])},
            {"ids": ["a"]},
            r"ids is \['a'\]; allowed is nothing, when clients is a dict",
        ),
        (
            {"ann": (X, [0, 1, 1])},
            {"test_fraction": 1.0},
            "test_fraction is 1.0; allowed is a number from 0 and below",
        ),
        (
            {"ann": (X, [0, 1, 1])},
            {"task": "cluster"},
            "task is 'cluster'; allowed is 'classification', 'regression'",
        ),
        ({"ann": (X, [0, 1, 1])}, {"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_arrays(clients, settings, sentence):
    with pytest.raises(CoterieError, match=sentence) as raised:
        from_arrays(clients, **settings)
    assert "\n" not in str(raised.value)


# A folder


@pytest.mark.parametrize("labels", ["int", "float", "word"])
@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "mixed"])
def test_a_folder_gives_what_the_arrays_gave(tmp_path, suffix, labels):
    given = some_clients(labels)
    for (id, (x, y)), other in zip(given.items(), ("csv", "npz", "parquet"), strict=True):
        form = other if suffix == "mixed" else suffix
        path = tmp_path / f"{id}.{form}"
        if form == "npz":
            np.savez(path, x=x, y=y)
        elif form == "csv":
            frame(x, y).to_csv(path, index=False)
        else:
            frame(x, y).to_parquet(path)
    (tmp_path / "README.md").write_text("not a client")
    assert_same(from_folder(tmp_path), from_arrays(given))


def test_parquet_and_npz_keep_float64(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(5, 4)), np.arange(5)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    frame(x, y).to_parquet(tmp_path / "b.parquet")
    data = from_folder(tmp_path, test_fraction=0)
    for id in ("a", "b"):
        assert torch.equal(client_points(data, id)[0], torch.from_numpy(x))


def test_test_points_in_files(tmp_path):
    x, y = np.arange(16.0).reshape(4, 4), np.array([0, 1, 2, 1])
    np.savez(tmp_path / "a.npz", x=x[:3], y=y[:3], x_test=x[3:], y_test=y[3:])
    frame(x, y).assign(split=["train", "test", "train", "train"]).to_csv(tmp_path / "b.csv", index=False)
    data = from_folder(tmp_path)
    assert data.train.sizes.tolist() == [3, 3]
    assert data.test.sizes.tolist() == [1, 1]
    assert client_points(data, "a", "test")[0].tolist() == x[3:].tolist()
    assert client_points(data, "b", "test")[0].tolist() == x[1:2].tolist()


def test_columns_are_known_by_name_not_by_place(tmp_path):
    table = pd.DataFrame({"b": [2.0], "y": [0], "a": [1.0]})
    pd.DataFrame({"a": [1.0], "b": [2.0], "y": [1]}).to_csv(tmp_path / "1.csv", index=False)
    table.to_csv(tmp_path / "2.csv", index=False)
    assert from_folder(tmp_path).train.x.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_whole_numbers_truths_and_nullable_columns_are_features(tmp_path):
    table = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5], "y": [0, 1]})
    table["d"] = pd.array([3, 4], dtype="Int64")
    table.to_parquet(tmp_path / "a.parquet")
    assert from_folder(tmp_path, test_fraction=0).train.x.tolist() == [[1, 1, 0.5, 3], [2, 0, 1.5, 4]]


def write(path, **columns):
    pd.DataFrame(columns).to_csv(path, index=False)


def broken_folder(folder, fault):
    good = {"a": [1.0, 2.0], "y": [0, 1]}
    write(folder / "ann.csv", **good)
    bob = folder / "bob.csv"
    if fault == "no target":
        write(bob, a=[1.0], label=[0])
    elif fault == "word feature":
        write(bob, a=["red", "blue"], y=[0, 1])
    elif fault == "other features":
        write(bob, a=[1.0], b=[2.0], y=[0])
    elif fault == "no features":
        write(bob, y=[0, 1])
    elif fault == "bad split":
        write(bob, **good, split=["train", "valid"])
    elif fault == "empty file":
        bob.write_text("")
    elif fault == "header only":
        bob.write_text("a,y\n")
    elif fault == "only test points":
        write(bob, **good, split=["test", "test"])
    elif fault == "gap in the features":
        write(bob, a=[1.0, None], y=[0, 1])
    elif fault == "gap in the words":
        write(bob, a=[1.0, 2.0], y=["no", None])
    elif fault == "torn parquet":
        (folder / "bob.parquet").write_bytes(b"PAR1 and no more")
    elif fault == "torn npz":
        (folder / "bob.npz").write_bytes(b"PK and no more")
    elif fault == "empty npz":
        (folder / "bob.npz").write_bytes(b"")
    elif fault == "npy under another name":
        with (folder / "bob.npz").open("wb") as file:
            np.save(file, np.zeros(3))
    elif fault == "objects":
        np.savez(folder / "bob.npz", x=np.array([{}, {}]), y=np.zeros(2))
    elif fault == "no y":
        np.savez(folder / "bob.npz", inputs=np.zeros(2), y=np.zeros(2))
    elif fault == "half a test set":
        np.savez(folder / "bob.npz", x=np.zeros(2), y=np.zeros(2), x_test=np.zeros(2))
    elif fault == "wide npz":
        np.savez(folder / "bob.npz", x=np.zeros((2, 3)), y=np.zeros(2, int))
    elif fault == "same id":
        np.savez(folder / "ann.npz", x=np.zeros((2, 1)), y=np.zeros(2, int))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("no target", "bob.csv: there is no target column 'y'; the columns are a, label"),
        ("word feature", "bob.csv, column 'a': holds values of type .*; features must be numbers"),
        ("other features", "bob.csv has the features a, b and .*ann.csv has a; all clients need the same"),
        ("no features", "bob.csv: there are no feature columns among y; at least one is needed"),
        ("bad split", "bob.csv, column 'split': 'valid' is not a side; allowed are 'train' and 'test'"),
        ("empty file", "bob.csv could not be read .*; a whole .csv table is needed"),
        ("header only", "client 'bob' has no training points; at least one is needed"),
        ("only test points", "client 'bob' has no training points; at least one is needed"),
        ("gap in the features", "bob.csv, point 1: an input is not a finite number; NaN and infinity"),
        ("gap in the words", "bob.csv, column 'y', point 1: there is no target; every point needs one"),
        ("torn parquet", "bob.parquet could not be read .*; a whole .parquet table is needed"),
        ("torn npz", "bob.npz could not be read because it is not a whole .npz archive; a .npz file needs"),
        ("empty npz", "bob.npz could not be read because it is not a whole .npz archive"),
        ("npy under another name", "bob.npz could not be read because it is not a whole .npz archive"),
        (
            "objects",
            "bob.npz could not be read because it holds Python objects; a .npz file needs arrays x and y",
        ),
        ("no y", "bob.npz has the arrays inputs, y; x and y are needed, and x_test goes with y_test"),
        ("half a test set", "bob.npz has the arrays x, y, x_test; x and y are needed"),
        ("wide npz", "client 'bob' has 3 features and client 'ann' has 1 features"),
        ("same id", "two clients have the id 'ann'; ids must differ"),
    ],
)
def test_wrong_folders(tmp_path, fault, sentence):
    broken_folder(tmp_path, fault)
    with pytest.raises(CoterieError, match=sentence) as raised:
        from_folder(tmp_path)
    assert "\n" not in str(raised.value)


def test_folders_that_are_not_there_or_empty(tmp_path):
    with pytest.raises(CoterieError, match=r"path is '.*nowhere', not a folder; a folder with one .npz"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(CoterieError, match=r"with no .npz, .csv or .parquet file; one per client is needed"):
        from_folder(tmp_path)


def test_a_split_column_that_was_named_must_be_there(tmp_path):
    write(tmp_path / "ann.csv", a=[1.0], y=[0])
    with pytest.raises(CoterieError, match="there is no split column 'fold'; the columns are a, y"):
        from_folder(tmp_path, split="fold")


def test_columns_may_have_other_names(tmp_path):
    write(tmp_path / "ann.csv", split=[1.0, 2.0], price=[0.5, 1.5], side=["train", "test"])
    data = from_folder(tmp_path, target="price", split="side")
    assert data.train.x.tolist() == [[1.0]]
    assert data.test.y.tolist() == [[1.5]]


# A table


@pytest.mark.parametrize("labels", ["int", "float", "word"])
@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
def test_a_table_gives_what_the_arrays_gave(tmp_path, form, labels):
    given = some_clients(labels)
    table = pd.concat([frame(x, y).assign(client=id) for id, (x, y) in given.items()], ignore_index=True)
    where = tmp_path / f"all.{form}"
    if form == "csv":
        table.to_csv(where, index=False)
    elif form == "parquet":
        table.to_parquet(where)
    assert_same(from_table(table if form == "frame" else where), from_arrays(given))


def test_rows_of_a_client_need_not_be_together():
    table = pd.DataFrame({"who": [7, 3, 7], "a": [1.0, 2.0, 3.0], "y": [0, 1, 1]})
    data = from_table(table, client="who", test_fraction=0)
    assert data.ids == ("7", "3")
    assert client_points(data, "7")[0].tolist() == [[1.0], [3.0]]


def test_ids_are_not_numbers(tmp_path):
    (tmp_path / "all.csv").write_text("client,a,y\n007,1.0,0\n7,2.0,1\n")
    assert from_table(tmp_path / "all.csv").ids == ("007", "7")


def test_a_split_column_in_a_table():
    table = pd.DataFrame({"client": list("aabb"), "a": [1.0, 2, 3, 4], "y": [0, 1, 1, 0]})
    data = from_table(table.assign(split=["train", "test", "train", "train"]))
    assert data.train.sizes.tolist() == [1, 2]
    assert data.test.sizes.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ({}, {"client": "who"}, "the table: there is no client column 'who'; the columns are client, a, y"),
        (
            {},
            {"target": "label"},
            "the table: there is no target column 'label'; the columns are client, a, y",
        ),
        (
            {"outcome": [0, 1]},
            {"target": "outcomes"},
            "there is no target column 'outcomes', the nearest is 'outcome'; the columns are client, a, y, outcome$",
        ),
        (
            {f"b{i}": [0, 1] for i in range(20)},
            {"target": "label"},
            r"no target column 'label'; the columns are client, a, y, b0, .*, b8 and 11 more$",
        ),
        ({"colour": ["red", "blue"]}, {}, "the table, column 'colour': holds values of type"),
        (
            {"day": pd.to_datetime(["2024-01-01"] * 2)},
            {},
            "the table, column 'day': holds values of type datetime64",
        ),
        (
            {"client": ["ann", None]},
            {},
            "the table, row 1: the client column 'client' is empty; every row needs",
        ),
        ({"a": [1.0, np.nan]}, {}, "the table, client 'bob', point 0: an input is not a finite number"),
        ({"y": [0, -1]}, {}, "client 'bob', point 0: label -1; labels are whole numbers from 0"),
        ({"split": ["train", "dev"]}, {}, "the table, client 'bob', column 'split': 'dev' is not a side"),
        (
            {"y": pd.array([1, None], dtype="Int64")},
            {},
            "client 'bob', column 'y', point 0: there is no target",
        ),
    ],
)
def test_wrong_tables(change, settings, sentence):
    table = pd.DataFrame({"client": ["ann", "bob"], "a": [1.0, 2.0], "y": [0, 1]}).assign(**change)
    with pytest.raises(CoterieError, match=sentence) as raised:
        from_table(table, **settings)
    assert "\n" not in str(raised.value)


def test_tables_that_are_not_there(tmp_path):
    with pytest.raises(
        CoterieError, match=r"table is '.*nowhere.csv', not a file; a .csv or .parquet table is needed"
    ):
        from_table(tmp_path / "nowhere.csv")
    with pytest.raises(CoterieError, match=r"all.xlsx'; allowed is a file that ends in .csv or .parquet"):
        from_table(tmp_path / "all.xlsx")


def test_two_columns_of_one_name():
    table = pd.DataFrame([["ann", 1.0, 2.0, 0]], columns=["client", "a", "a", "y"])
    with pytest.raises(CoterieError, match="the table: two columns have the same name among client, a, a, y"):
        from_table(table)
