"""The files of `coterie cluster`: devices read from a folder, labels written to a table."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.clustering.kfed import KFed
from coterie.clustering.local import Floats
from coterie.data.npz import read_npz
from coterie.data.own.tables import TABLES, files_of, read_table
from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole

_FILES = "a folder with one .npz, .csv or .parquet per device"
LEGEND = (
    "m0: 1 if each cluster lies on one device, large if a device has few points of a cluster; "
    "active pairs: clusters that some device both has; "
    "separation: distance of two clusters over what the theorem asks for; "
    "nearest two: their distance in standard deviations, below 4 they overlap; "
    "cost: sum of squared distances to the centers; see docs/how-to/k-fed.md"
)
LARGEST = 1e140  # the squares of a million such numbers add up to a number
_EMPTY = "has no points; at least one is needed, or leave the file out"


def read_devices(folder: Path) -> dict[str, Floats]:
    """The points of each device, by the name of its file: x of a .npz, all columns of numbers of a table."""
    if not folder.is_dir():
        raise CoterieError(f"'{folder}' is not a folder; allowed is {_FILES}")
    files = files_of(folder)
    if not files:
        raise CoterieError(f"'{folder}' has no .npz, .csv or .parquet file; allowed is {_FILES}")
    found: dict[str, Floats] = {}
    first: tuple[Path, list[str]] | None = None  # all tables are read in the order of the first one's columns
    for file in files:
        if file.stem in found:
            raise CoterieError(f"{folder} has two files named {file.stem}; every device needs one file")
        if file.suffix.lower() == ".npz":
            points = _array(file)
        else:
            table, names = _table(file)
            first = first or (file, names)
            if set(names) != set(first[1]):
                raise CoterieError(
                    f"{file} has the columns {', '.join(names)} and {first[0]} has {', '.join(first[1])}; "
                    "all devices need the same"
                )
            points = table[first[1]].to_numpy(dtype=np.float64, na_value=np.nan)
        found[file.stem] = _checked(points, file, next(iter(found.items()), None))
    return found


def _array(file: Path) -> Floats:
    """Nothing is unpickled; images and the like become rows."""
    arrays = read_npz(file, "a whole .npz with an array x of numbers is needed")
    x, names = arrays.get("x"), ", ".join(arrays) or "none"
    if x is None or x.ndim == 0 or x.dtype.kind not in "fiub":
        raise CoterieError(f"{file} has the arrays {names}; an array x of numbers (point, feature) is needed")
    with np.errstate(over="ignore"):  # of wider floats: what does not fit is infinite, and refused as that
        return np.asarray(x.reshape(len(x), int(np.prod(x.shape[1:]))), np.float64)


def _table(file: Path) -> tuple[Any, list[str]]:
    """A table, and its columns of numbers."""
    table = read_table(file)
    if len(set(table.columns)) < len(table.columns):
        raise CoterieError(f"{file}: two columns have the same name; names must differ")
    if not len(table):
        raise CoterieError(f"{file} {_EMPTY}")
    table = table.select_dtypes("number", exclude=["timedelta", "complex"])
    if not len(table.columns):
        raise CoterieError(f"{file} has no column of numbers; at least one is needed")
    return table, [str(name) for name in table.columns]


def _checked(points: Floats, file: Path, other: tuple[str, Floats] | None) -> Floats:
    if not points.size:
        raise CoterieError(f"{file} {_EMPTY}")
    bad = ~np.isfinite(points).all(axis=1)
    if bad.any():
        raise CoterieError(f"{file}, point {int(bad.argmax())}: a number is missing or not finite")
    huge = (abs(points) > LARGEST).any(axis=1)
    if huge.any():
        point = int(huge.argmax())
        raise CoterieError(
            f"{file}, point {point}: a number of size {abs(points[point]).max():g} is too large, as squared distances "
            f"of such numbers are not finite; allowed is up to {LARGEST:g}"
        )
    if other is not None and other[1].shape[1] != points.shape[1]:
        raise CoterieError(
            f"{file} has {points.shape[1]} features and {other[0]} has {other[1].shape[1]}; all devices need the same"
        )
    return points


def check_out(folder: Path, out: Path) -> None:
    """Before the work: can the labels be written there?"""
    if out.suffix.lower() not in TABLES or out.is_dir():
        raise CoterieError(f"--out is '{out}'; allowed is a file that ends in .parquet or .csv")
    if out.resolve().parent == folder.resolve():
        raise CoterieError(f"--out is '{out}', in the folder of the devices; allowed is another folder")
    make_folder(out.parent)


def fit(model: KFed, points: Mapping[str, Floats]) -> list[str]:
    """Fit, and what there is to warn of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(list(points.values()))
    return [str(one.message) for one in said]


def write_labels(out: Path, ids: list[str], model: KFed) -> None:
    """Device, row, label; all of it or nothing."""
    import pandas as pd

    sizes = [len(labels) for labels in model.device_labels_]
    table = pd.DataFrame(
        {
            "device": np.repeat(np.array(ids), sizes),
            "row": np.concatenate([np.arange(n) for n in sizes]),
            "label": model.labels_,
        }
    )
    content = io.BytesIO()
    if out.suffix.lower() == ".parquet":
        table.to_parquet(content, index=False)
    else:
        table.to_csv(content, index=False)
    write_whole(out, content.getvalue())


# tables


def shown(model: KFed) -> Table:
    """What was clustered, and what it took."""
    means = sum(map(len, model.device_centers_))
    cells = {
        "devices": len(model.device_centers_),
        "points": len(model.labels_),
        "features": model.n_features_in_,
        "clusters": len(model.cluster_centers_),
        "local means": means,
        "kB sent": f"{means * model.n_features_in_ * 8 / 1000:.1f}",
    }
    return _one_line(cells)


def measured(model: KFed) -> Table:
    """What k-FED's theorem asks for, and what these clusters have."""
    pairs = np.triu(np.ones_like(model.active_pairs_), 1)
    active, inactive = pairs & model.active_pairs_, pairs & ~model.active_pairs_
    cells = {
        "m0": f"{model.m0_:.3g}",
        "active pairs": f"{int(active.sum())} of {int(pairs.sum())}",
        "their least separation": _least(model.separations_[active]),
        "of the others": _least(model.inactive_separations_[inactive]),
        "nearest two": f"{model.gap_:.3g} σ" if np.isfinite(model.gap_) else "–",
        "cost": f"{model.cost_:.4g}",
    }
    return _one_line(cells, LEGEND)


def _least(separations: Floats) -> str:
    known = separations[~np.isnan(separations)]
    return f"{known.min():.3g}" if len(known) else "–"


def _one_line(cells: Mapping[str, object], legend: str | None = None) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, caption=legend, caption_justify="left")
    for heading in cells:
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    table.add_row(*map(str, cells.values()))
    return table
