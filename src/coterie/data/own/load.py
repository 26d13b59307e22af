"""The user's own data: arrays in memory, a folder of files, or one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.data.federation import Federation, Points, Task
from coterie.data.own.arrays import Client, Pairs, pairs
from coterie.data.own.tables import (
    TABLES,
    Columns,
    Table,
    client_of,
    clients_of,
    files_of,
    read_npz,
    read_table,
)
from coterie.data.own.targets import Named, targets
from coterie.errors import CoterieError, SettingError, require
from coterie.prng import numpy_generator

Side = tuple[Tensor, Tensor]  # x, y


def from_arrays(
    clients: Sequence[Sequence[Any]] | Mapping[Any, Sequence[Any]],
    test_fraction: float = 0.2,
    ids: Sequence[str] | None = None,
    task: Task | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from (x, y), or (x, y, x_test, y_test), of each client.

    Where a client gives no test points, `test_fraction` of its points are held out. Whole numbers and words as
    targets mean classification, other numbers regression, unless `task` says otherwise.
    """
    if not isinstance(clients, Mapping | list | tuple):
        kind = type(clients).__name__
        raise CoterieError(f"clients is a {kind}; allowed is a list of (x, y), or a dict from id to (x, y)")
    if isinstance(clients, Mapping):
        require(ids is None, "ids", ids, "nothing, when clients is a dict and names them itself")
        ids, clients = [str(id) for id in clients], list(clients.values())
    names = [str(k) for k in range(len(clients))] if ids is None else [str(id) for id in ids]
    if len(names) != len(clients):
        raise CoterieError(f"there are {len(clients)} clients and {len(names)} ids; each client needs one id")
    given = [_client(id, arrays, task) for id, arrays in zip(names, clients, strict=True)]
    return _federation(given, test_fraction, task, seed)


def from_folder(
    path: str | Path,
    target: str = "y",
    split: str | None = "split",
    test_fraction: float = 0.2,
    task: Task | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from a folder with one .npz, .csv or .parquet per client, whose name is the client's id.

    A .npz has x, y and perhaps x_test, y_test; a table has a `target` column, perhaps a `split` column that
    says train or test, and features. The rest is as in `from_arrays`.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise SettingError(
            "path",
            f"is '{folder}', not a folder; a folder with one .npz, .csv or .parquet per client is needed",
        )
    with _read_from("path"):
        files = files_of(folder)
    if not files:
        raise SettingError(
            "path", f"is '{folder}', with no .npz, .csv or .parquet file; one per client is needed"
        )
    columns = Columns(target, split, tokens=task == "next-character")
    with _read_from("path"):
        clients, features = _read(files, columns)
    return replace(_federation(clients, test_fraction, task, seed), features=tuple(features))


def from_table(
    table: str | Path | Table,
    client: str = "client",
    target: str = "y",
    split: str | None = "split",
    test_fraction: float = 0.2,
    task: Task | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from one table (a .csv, a .parquet or a DataFrame) whose `client` column says whose a row is.

    The other columns are as in `from_folder`.
    """
    where = "the table"
    if isinstance(table, str | Path):
        where, path = str(table), Path(table)
        require(path.suffix.lower() in TABLES, "table", where, "a file that ends in .csv or .parquet")
        if not path.is_file():
            raise SettingError("table", f"is '{path}', not a file; a .csv or .parquet table is needed")
        with _read_from("table"):
            table = read_table(path, client)
    columns = Columns(target, split, client, tokens=task == "next-character")
    with _read_from("table"):
        clients = list(clients_of(table, columns, where))
        features = columns.features(table, where)
    return replace(_federation(clients, test_fraction, task, seed), features=tuple(map(str, features)))


@contextmanager
def _read_from(setting: str) -> Iterator[None]:
    """What is wrong in a file is said with the setting that led to it."""
    try:
        yield
    except CoterieError as problem:
        raise SettingError(setting, f"cannot be used: {problem}") from problem


def _client(id: str, arrays: Sequence[Any], task: Task | None) -> Client:
    where, tokens = f"client {id!r}", task == "next-character"
    if not isinstance(arrays, list | tuple) or len(arrays) not in (2, 4):
        raise CoterieError(f"{where} is not a pair of arrays; allowed is (x, y) or (x, y, x_test, y_test)")
    test = pairs(arrays[2], arrays[3], f"{where}: test", tokens) if len(arrays) == 4 else None
    return Client(id, pairs(arrays[0], arrays[1], where, tokens), test)


def _read(files: Sequence[Path], columns: Columns) -> tuple[list[Client], list[str]]:
    """The clients, and the features of the tables among them."""
    clients: list[Client] = []
    first: tuple[Path, list[str]] | None = None  # all tables are read in the order of the first one's columns
    for file in files:
        if file.suffix.lower() == ".npz":
            clients.append(read_npz(file, columns.tokens))
            continue
        table = read_table(file)
        features = columns.features(table, str(file))
        first = first or (file, features)
        if set(features) != set(first[1]):
            raise CoterieError(
                f"{file} has the features {', '.join(features)} and {first[0]} has {', '.join(first[1])}; "
                "all clients need the same"
            )
        clients.append(client_of(table, first[1], columns, file.stem, str(file)))
    return clients, first[1] if first else []


def _federation(clients: Sequence[Client], test_fraction: float, task: Task | None, seed: int) -> Federation:
    require(0 <= test_fraction < 1, "test_fraction", test_fraction, "a number from 0 and below 1")
    _check_shapes(clients)
    clients = _of_one_kind([_with_shaped_test(client) for client in clients])
    given = [Named(f"client {c.id!r}", c.train.y) for c in clients]
    given += [Named(f"client {c.id!r}: test", c.test.y) for c in clients if c.test is not None]
    meant = targets(given, task)
    y = iter(meant.y)
    train = [(c.train.x, next(y)) for c in clients]
    test = [None if c.test is None else (c.test.x, next(y)) for c in clients]
    sides = [
        (a, b) if b is not None else _held_out(c.id, *a, test_fraction, seed)
        for c, a, b in zip(clients, train, test, strict=True)
    ]
    test_points = Points.of([b for _, b in sides])
    return Federation(
        ids=tuple(c.id for c in clients),
        train=Points.of([a for a, _ in sides]),
        test=test_points if len(test_points.at) else None,
        task=meant.task,
        n_outputs=max(meant.n_outputs, _vocabulary(clients)) if task == "next-character" else meant.n_outputs,
        classes=meant.classes,
    )


def _check_shapes(clients: Sequence[Client]) -> None:
    """Refuse clients without points, and clients whose inputs could not stand in one tensor."""
    if not clients:
        raise CoterieError(
            "there are no clients; at least one client with at least one training point is needed"
        )
    for client in clients:
        if not len(client.train.x):
            raise CoterieError(f"client {client.id!r} has no training points; at least one is needed")
    first = clients[0]
    for client in clients:
        for part in (client.train, client.test):
            if part is not None and len(part.x) and part.x.shape[1:] != first.train.x.shape[1:]:
                raise CoterieError(
                    f"client {client.id!r} has {_shape(part.x)} and client {first.id!r} has "
                    f"{_shape(first.train.x)}; all clients need the same"
                )


def _shape(x: Tensor) -> str:
    return f"{x.shape[1]} features" if x.ndim == 2 else f"inputs of shape {tuple(x.shape[1:])}"


def _with_shaped_test(client: Client) -> Client:
    """An empty list has no shape of its own, so empty test points take that of the training points."""
    if client.test is None or len(client.test.x):
        return client
    return client._replace(test=Pairs(client.train.x[:0], client.train.y[:0]))


def _of_one_kind(clients: Sequence[Client]) -> Sequence[Client]:
    """Inputs stay integers if all are; where some client has floats, all have."""

    def floating(part: Pairs) -> Pairs:
        return part if part.x.is_floating_point() else part._replace(x=part.x.float())

    parts = [part for c in clients for part in (c.train, c.test) if part is not None]
    if not any(part.x.is_floating_point() for part in parts):
        return clients
    return [
        c._replace(train=floating(c.train), test=None if c.test is None else floating(c.test))
        for c in clients
    ]


def _vocabulary(clients: Sequence[Client]) -> int:
    inputs = [part.x for c in clients for part in (c.train, c.test) if part is not None and part.x.numel()]
    return max((int(x.max()) for x in inputs), default=-1) + 1


def _held_out(id: str, x: Tensor, y: Tensor, fraction: float, seed: int) -> tuple[Side, Side]:
    """A client's training and test points; the split depends on its id, not on who else takes part."""
    size = min(int(fraction * len(x) + 0.5), len(x) - 1)
    order = torch.from_numpy(numpy_generator(seed, "held out", id).permutation(len(x)))
    test, train = order[:size].sort().values, order[size:].sort().values
    return (x[train], y[train]), (x[test], y[test])
