"""Finished runs side by side: what was measured, as mean and standard deviation over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from coterie import toml
from coterie.errors import CoterieError
from coterie.files import is_folder_name
from coterie.runs.folder import RunFolder

Numbers = dict[str, float]

MOST = 3  # distributions that have columns of their own


def measured(summary: Mapping[str, Any], wide: bool = True) -> Numbers:
    """The numbers of a run's summary that tables show, by the heading they have there.

    Unless they are to be `wide`, many distributions have no columns of their own, but the mean and the worst of all.
    """
    found: Numbers = {}
    centers, personal = summary.get("centers", {}), summary.get("personal", {})
    loss = "loss" if summary.get("own_loss") else "MSE"
    if centers:
        found.update(_of_centers(centers, wide, loss))
        if "importance_error" in centers:
            found["importance error"] = centers["importance_error"]
    if summary.get("pure_clients"):  # of mixed clients the largest share says little
        found["ARI"] = summary["ari"]
    if personal:
        name, value = _measure(personal, loss)
        found[f"personal {name}"] = value
        if "accuracy" in personal:
            found.update({"personal F1": personal["f1"], "personal loss": personal["loss"]})
    found["MB sent"] = summary["megabytes"]
    return {heading: _plain(number) for heading, number in found.items()}


def _of_centers(centers: Mapping[str, Any], wide: bool, loss: str) -> Numbers:
    """Of each distribution's own center there, and of the best of the others."""
    name, values = _measure(centers, loss)
    best, worst = (max, min) if name == "accuracy" else (min, max)
    own, others = [], []
    for distribution, center in enumerate(centers["center_of_distribution"]):
        own.append(_plain(values[center][distribution]))
        rest = [_plain(row[distribution]) for number, row in enumerate(values) if number != center]
        others += [best(rest)] if rest else []
    columns = {name: own, "others": others} if others else {name: own}
    if wide or len(own) <= MOST:
        return {f"{h} on {d + 1}": each[d] for d in range(len(own)) for h, each in columns.items()}
    found = {
        f"{name} (mean)": fmean(own),
        f"{name} (worst)": math.nan if any(map(math.isnan, own)) else worst(own),
    }
    return {**found, "others (mean)": fmean(others), "others (best)": best(others)} if others else found


def _plain(number: float | None) -> float:
    """What diverged is null in a summary."""
    return math.nan if number is None else number


def _measure(scores: Mapping[str, Any], loss: str) -> tuple[str, Any]:
    """Accuracy where there are classes, and otherwise the loss, by its name."""
    return ("accuracy", scores["accuracy"]) if "accuracy" in scores else (loss, scores["loss"])


@dataclass(frozen=True)
class Found:
    """A finished run in its folder."""

    folder: Path
    settings: dict[str, Any]  # those of its experiment.toml, by full name
    numbers: Numbers

    @property
    def label(self) -> str:
        return str(self.settings.get("label", self.folder.name))

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    def others(self) -> dict[str, Any]:
        """All settings but the seed."""
        return {key: value for key, value in self.settings.items() if key != "seed"}


@dataclass(frozen=True)
class Line:
    """Runs that differ in their seed alone."""

    name: str
    runs: tuple[Found, ...]

    def over_seeds(self) -> dict[str, tuple[float, float | None]]:
        """Mean and sample standard deviation of each number that all the runs have; one run has no deviation."""
        shared = [key for key in self.runs[0].numbers if all(key in run.numbers for run in self.runs)]
        columns = {key: [run.numbers[key] for run in self.runs] for key in shared}
        return {key: (fmean(each), _deviation(each)) for key, each in columns.items()}


def _deviation(values: Sequence[float]) -> float | None:
    """None of one value; of what is not finite there is no number."""
    if len(values) < 2:
        return None
    return stdev(values) if all(map(math.isfinite, values)) else math.nan


def find(folders: Iterable[Path], wide: bool = True) -> tuple[list[Found], list[Path]]:
    """The finished runs in and below these folders, and the folders of the unfinished ones; `wide` as in `measured`.

    The runs by which a sweep chose are scored on other points, so they are left out unless their folder is given.
    """
    finished: dict[Path, Found] = {}
    unfinished: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise CoterieError(f"{folder} is not a folder; allowed are folders that hold runs")
        below = (file.parent for file in folder.rglob("experiment.toml"))
        for one in sorted((one for one in below if not _tunes(one.relative_to(folder), folder)), key=_place):
            store = RunFolder(one)
            if store.finished:
                finished[store.folder.resolve()] = _read(store, wide)
            elif (store.folder / "clients").is_dir():
                unfinished.append(store.folder)
    return list(finished.values()), unfinished


def _tunes(path: Path, folder: Path) -> bool:
    """Is there a sweep's folder of tuning runs on this path below the folder?"""
    return any((folder / part / "sweep.json").is_file() for part in (path, *path.parents) if part != Path())


def read_runs(folders: Iterable[Path], wide: bool) -> list[Found]:
    """The finished runs in these folders themselves; `wide` as in `measured`."""
    return [_read(RunFolder(folder), wide) for folder in folders]


def _place(folder: Path) -> list[tuple[int, str]]:
    """By name, but the methods of one run as its experiment lists them."""
    labels = labels_of(folder.parent)
    position = labels.index(folder.name) if folder.name in labels else 0
    return [*((0, name) for name in folder.parent.parts), (position, folder.name)]


def labels_of(folder: Path) -> list[str]:
    """The methods of the run that lies in this folder, if it has several: their folders in it are named so."""
    try:
        table = toml.load(folder / "experiment.toml")
        labels = [str(method["label"]) for method in table["method"]]
        return [label for label in labels if is_folder_name(label)]  # never a path out of this folder
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read(store: RunFolder, wide: bool) -> Found:
    try:
        table = store.settings()
        return Found(store.folder, {"seed": 0, **_flat(table)}, measured(store.summary(), wide))
    except CoterieError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        raise CoterieError(f"{store.folder} holds no whole run: {problem}") from problem


def _flat(table: Any, name: str = "") -> dict[str, Any]:
    """Settings by full name."""
    is_list_of_tables = isinstance(table, list) and any(isinstance(one, dict) for one in table)
    if not isinstance(table, dict) and not is_list_of_tables:
        return {name: table}
    inner = table.items() if isinstance(table, dict) else enumerate(table)
    return {k: v for key, one in inner for k, v in _flat(one, f"{name}.{key}" if name else str(key)).items()}


def lines(runs: Sequence[Found]) -> list[Line]:
    """Runs grouped by everything but the seed; groups of one label are named by what differs."""
    groups: dict[str, dict[int, Found]] = {}
    for run in runs:  # the same seed twice is the same run twice
        groups.setdefault(json.dumps(run.others(), sort_keys=True), {}).setdefault(run.seed, run)
    members = [tuple(run for _, run in sorted(group.items())) for group in groups.values()]
    firsts = [group[0] for group in members]
    return [Line(_name(group[0], firsts), group) for group in members]


def _name(run: Found, others: Sequence[Found]) -> str:
    """The label; the experiment's name where another has that label too; and settings where that has them."""
    same_label = [other for other in others if other.label == run.label]
    own = run.others()
    alike = [o.others() for o in same_label if o.settings.get("name") == run.settings.get("name")]
    name = f" ({own.get('name')})" if len(alike) < len(same_label) else ""
    keys = sorted({key for one in alike for key in one})
    differing = [key for key in keys if len({json.dumps(one.get(key)) for one in alike}) > 1]
    return " ".join([run.label + name, *(f"{key}={own[key]}" for key in differing if key in own)])
