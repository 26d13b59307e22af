"""Clients read from files: arrays in .npz, tables in .csv and .parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import npz
from coterie.data.own.arrays import Client, Pairs, pairs
from coterie.errors import CoterieError
from coterie.validation import nearest

Table = Any  # a pandas.DataFrame; pandas is imported only where a table is read
TABLES = (".csv", ".parquet")
_SPLIT = "split"
_NAMED = 12  # columns that an error names


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean; all others are features."""

    target: str = "y"
    split: str | None = _SPLIT
    client: str | None = None
    tokens: bool = False  # features are whole numbers that stand for characters

    def features(self, table: Table, where: str) -> list[str]:
        """The feature columns, after a check of the columns that are needed."""
        columns = list(table.columns)
        more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
        named = ", ".join(map(str, columns[:_NAMED])) + more
        if len(set(columns)) < len(columns):
            raise CoterieError(f"{where}: two columns have the same name among {named}; names must differ")
        needed = {"target": self.target, "client": self.client}
        needed["split"] = None if self.split == _SPLIT else self.split  # only the usual name may be missing
        for role, column in needed.items():
            if column is not None and column not in columns:
                close = nearest(column, list(map(str, columns)))
                raise CoterieError(
                    f"{where}: there is no {role} column {column!r}{close}; the columns are {named}"
                )
        roles = [column for column in (self.target, self.split, self.client) if column is not None]
        twice = next((column for column in roles if roles.count(column) > 1), None)
        if twice is not None:
            raise CoterieError(
                f"{where}: the column {twice!r} is to be two things at once; target, split and client must differ"
            )
        features = [c for c in columns if c not in (self.target, self.split, self.client)]
        if not features:
            raise CoterieError(f"{where}: there are no feature columns among {named}; at least one is needed")
        _check_numeric(table, features, where)
        return features


def files_of(folder: Path) -> list[Path]:
    """The files of a folder that hold points, by name; what is named like one must be one."""
    named = [f for f in sorted(folder.iterdir()) if f.suffix.lower() in (".npz", *TABLES)]
    found = [f for f in named if not f.name.startswith(".")]
    for file in found:
        if not file.is_file():
            kind = "a link to nowhere" if file.is_symlink() and not file.exists() else "not a plain file"
            raise CoterieError(f"{file} is {kind}; remove it, or put the file there")
    return found


def read_npz(path: Path, tokens: bool = False) -> Client:
    """x, y and perhaps x_test, y_test; nothing is unpickled."""
    arrays = npz.read_npz(path, "a .npz file needs arrays x and y of numbers")
    if not {"x", "y"} <= arrays.keys() or ("x_test" in arrays) != ("y_test" in arrays):
        raise CoterieError(
            f"{path} has the arrays {', '.join(arrays) or 'none'}; x and y are needed, and x_test goes with y_test"
        )
    train = pairs(arrays["x"], arrays["y"], str(path), tokens)
    if "x_test" not in arrays:
        return Client(path.stem, train, None)
    return Client(path.stem, train, pairs(arrays["x_test"], arrays["y_test"], f"{path}: test", tokens))


def read_table(path: Path, client: str | None = None) -> Table:
    import pandas as pd

    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        table = pd.read_csv(path, dtype=None if client is None else {client: str})  # '007' is not client 7
    except Exception as error:  # pandas and pyarrow raise of a broken table whatever comes
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CoterieError(
            f"{path} could not be read ({why}); a whole {path.suffix} table is needed"
        ) from error
    wide = table.select_dtypes("float64").columns
    for column in wide:
        _check_range(table[column].to_numpy(), f"{path}, column {str(column)!r}")
    return table.astype(dict.fromkeys(wide, np.float32))  # text has no precision that the user chose


def _check_range(numbers: Any, where: str) -> None:
    """Before they are narrowed, since they would be infinite then."""
    most = np.finfo(np.float32).max
    huge = (abs(numbers) > most) & np.isfinite(numbers)
    if huge.any():
        row = int(huge.argmax())
        raise CoterieError(f"{where}, row {row}: {numbers[row]:g} is too large; allowed is up to {most:.2g}")


def client_of(table: Table, features: Sequence[str], columns: Columns, id: str, where: str) -> Client:
    """One client's points; its test points too, where there is a column that says which they are."""

    def part(rows: Table, name: str) -> Pairs:
        return pairs(
            _numbers(rows[list(features)]), _target(rows[columns.target], name), name, columns.tokens
        )

    if columns.split is None or columns.split not in table.columns:
        return Client(id, part(table, where), None)
    split = table[columns.split]
    unknown = split[~split.isin(["train", "test"])]
    if len(unknown):
        raise CoterieError(
            f"{where}, column {columns.split!r}: {unknown.iloc[0]!r} is not a side; allowed are 'train' and 'test'"
        )
    return Client(id, part(table[split == "train"], where), part(table[split == "test"], f"{where}: test"))


def clients_of(table: Table, columns: Columns, where: str) -> Iterator[Client]:
    """A table with a client column as clients, in the order in which they appear."""
    features = columns.features(table, where)
    missing = table[columns.client].isna().to_numpy()
    if missing.any():
        raise CoterieError(
            f"{where}, row {int(missing.argmax())}: the client column {columns.client!r} is empty; "
            "every row needs a client"
        )
    for id, rows in table.groupby(columns.client, sort=False, observed=True):
        yield client_of(rows, features, columns, str(id), f"{where}, client {str(id)!r}")


def _check_numeric(table: Table, features: Sequence[str], where: str) -> None:
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    for column in features:
        kind = table[column].dtype
        if len(table) and (not is_numeric_dtype(kind) or is_complex_dtype(kind)):
            raise CoterieError(
                f"{where}, column {column!r}: holds values of type {kind}; features must be numbers"
            )


def _numbers(features: Table) -> Any:
    """Columns of any kinds of numbers as one array; an absent value becomes NaN and is refused later."""
    kinds = [getattr(kind, "numpy_dtype", kind) for kind in features.dtypes]
    if all(kind.kind in "iu" for kind in kinds) and not features.isna().to_numpy().any():
        return features.to_numpy(dtype=np.int64)
    wide = any(kind == np.float64 for kind in kinds)
    return features.to_numpy(dtype=np.float64 if wide else np.float32, na_value=np.nan)


def _target(column: Table, where: str) -> Any:
    missing = column.isna().to_numpy()
    plain_numbers = isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"  # a NaN is refused later
    if missing.any() and not plain_numbers:
        raise CoterieError(
            f"{where}, column {column.name!r}, point {int(missing.argmax())}: there is no target; "
            "every point needs one"
        )
    return column.to_numpy()
