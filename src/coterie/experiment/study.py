"""A study: an experiment with many runs, every method with every seed; and settings chosen on held-out points.

With several seeds each has a folder of its own below the study's, `seed-3`, which is a run's folder like any other.
A sweep is played first, in `tuning`, as an experiment whose methods are the values to choose from, and which evaluates
on points that clients hold out of their training points. Test points play no part in the choice.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from coterie import toml
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment, load, load_kept, parse
from coterie.experiment.methods import Method
from coterie.files import make_folder, read_kept, refuse_link, with_checksum, write_json, write_whole
from coterie.model_selection.choice import forget
from coterie.protocol.stages import Progress
from coterie.runs.folder import RunFolder
from coterie.runs.lock import locked
from coterie.runs.verdict import ended_badly

HELD_OUT = 0.25  # of a client's training points, where a sweep's experiment does not say
TUNING, SWEEP, BASE, CHOICE = "tuning", "sweep.json", "base.toml", "tuning.json"
TRIED = "tried"  # in sweep.json
TABLE = "table.csv"
_OF_METHODS = (
    "algorithm",
    "training",
    "topology",
    "participation",
    "privacy",
    "rounds",
    "init",
    "until",
    "n_init",
    "clusters",
    "stage",
)


@dataclass(frozen=True)
class Task:
    """What a worker plays at a time: a method of a run, or all its methods if numbers of clusters are to be chosen."""

    folder: Path  # of the run, which holds its experiment.toml
    label: str | None
    store: Path  # where the method itself is kept
    rounds: int
    name: str
    more_rounds: int = 0  # of other tasks, with steps that are compiled once for all
    models: bool = True  # are its models to be kept, or numbers alone?


def sharing(tasks: Sequence[Task]) -> list[Task]:
    """The same, where the steps of each are those of the others too."""
    total = sum(task.rounds for task in tasks)
    return [replace(task, more_rounds=total - task.rounds) for task in tasks]


def is_study(folder: Path) -> bool:
    """Does it hold several runs that were begun together?"""
    if (folder / TUNING / SWEEP).is_file():
        return True
    try:
        path = folder / "experiment.toml"
        return "seeds" in toml.read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError):
        return False


def parse_seeds(text: str, option: str = "--seeds") -> tuple[int, ...]:
    """Such as 0-4 or 0,2,5-7."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first or last - first >= 10_000:
            raise CoterieError(f"{option} is {text!r}; allowed are whole numbers such as 0-4 or 0,2,5")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise CoterieError(f"{option} is {text!r}; allowed is each seed once")
    return tuple(seeds)


# runs and tasks


def runs_of(asked: Experiment, folder: Path) -> dict[Path, Experiment]:
    """The folder of each run, with its experiment."""
    if not asked.seeds:
        return {folder: asked}
    return {folder / f"seed-{seed}": asked.with_seed(seed) for seed in asked.seeds}


def refuse_links(asked: Experiment, folder: Path) -> None:
    """In place of the folders of its seeds and methods; the one that the user names may be a link."""
    for place, one in runs_of(asked, folder).items():
        for inner in (place, *(one.folder_of(method, place) for method in one.methods)):
            if inner != folder:
                refuse_link(inner)


def refuse_links_of_sweep(tuning: Experiment, folder: Path) -> None:
    refuse_link(folder / TUNING)
    refuse_links(tuning, folder / TUNING)


def begin(asked: Experiment, folder: Path) -> None:
    """Write what is to be run, once for the study and once for each run, so that either can go on by itself."""
    for place, experiment in {**runs_of(asked, folder), folder: asked}.items():
        make_folder(place if experiment.several or experiment.seeds else place / "clients")
        write_whole(place / "experiment.toml", toml.sealed(experiment.resolved()).encode())


def tasks_of(asked: Experiment, folder: Path, all_of_them: bool = False) -> list[Task]:
    """What is not finished, or all."""
    found = []
    for place, experiment in runs_of(asked, folder).items():
        above = "" if place == folder else f"{place.name}/"
        if experiment.auto:
            experiment = load_kept(place)  # numbers may have been chosen since
        if experiment.auto:
            rounds = sum(Progress(method.stages).planned for method in experiment.methods)
            found.append(Task(place, None, place, rounds, place.name))
            continue
        for method in experiment.methods:
            store = experiment.folder_of(method, place)
            name = f"{above}{method.label}"
            found.append(Task(place, method.label, store, Progress(method.stages).planned, name))
    return sharing([task for task in found if all_of_them or not _finished(task)])


def _finished(task: Task) -> bool:
    return task.label is not None and RunFolder(task.store).finished


def mend(asked: Experiment, folder: Path) -> None:
    """What of the finished runs can be put back."""
    for task in tasks_of(asked, folder, all_of_them=True):
        if _finished(task):
            with locked(task.store):
                RunFolder(task.store).mend()


def clear(folder: Path) -> None:
    """Forget an earlier study in this folder, and nothing else that lies there."""
    runs = [folder, *folder.glob("seed-*")]
    if not (folder / TUNING).is_symlink():
        runs += [folder / TUNING, *folder.glob(f"{TUNING}/seed-*")]
    runs = [run for run in runs if run.is_dir() and (run == folder or not run.is_symlink())]
    places = [place for run in reversed(runs) for place in (*(run / label for label in _labels(run)), run)]
    with ExitStack() as held:
        for place in places:  # all of them, before any is cleared
            held.enter_context(locked(place))
        for place in places:
            forget(place)
            RunFolder(place).clear(keep_folder=place == folder)
    of_sweep = [folder / TUNING / name for name in (SWEEP, BASE) if folder / TUNING in runs]
    for path in (*of_sweep, folder / CHOICE, folder / TABLE):
        path.unlink(missing_ok=True)
    for place in (*folder.glob("seed-*"), folder / TUNING):
        with suppress(OSError):  # not empty, or not there
            place.rmdir()


def _labels(run: Path) -> list[str]:
    """The folders of a run's methods."""
    methods = [
        path for path in run.iterdir() if not path.is_symlink() and (path / "experiment.toml").is_file()
    ]
    return [path.name for path in methods if path.name != TUNING and not path.name.startswith("seed-")]


# a sweep


@dataclass(frozen=True)
class Sweep:
    """Names of settings and the values to try: each combination, for every method that they concern."""

    values: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...] = ()  # to choose on; those of the runs if there are none

    @staticmethod
    def of(texts: Sequence[str], seeds: tuple[int, ...] = ()) -> Sweep:
        """From texts such as algorithm.pull=0.01,0.1,1."""
        values: dict[str, list[Any]] = {}
        for text in texts:
            key, sign, given = (part.strip() for part in text.partition("="))
            each = [toml.value_of(one.strip()) for one in given.split(",")]
            if not sign or not key or len(each) < 2 or "" in each:
                allowed = "a setting and its values, such as algorithm.pull=0.01,0.1,1"
                raise CoterieError(f"--sweep is {text!r}; allowed is {allowed}")
            if any(one in each[:number] for number, one in enumerate(each)):
                raise CoterieError(f"--sweep is {text!r}; allowed is each value once")
            if key in values:
                raise CoterieError(
                    f"--sweep names {key} twice; allowed is each setting once, with all values"
                )
            if re.sub(r"^method\.\d+\.", "", key).split(".")[0] not in _OF_METHODS:
                raise CoterieError(
                    f"--sweep names {key}, which is no setting of a method; allowed are {', '.join(_OF_METHODS)}, "
                    "or method.0.algorithm.pull for one method of several"
                )
            values[key] = each
        return Sweep(values, seeds)

    def concerning(self, number: int, several: bool) -> list[str]:
        """The settings that concern a method."""
        mine = f"method.{number}."
        return [
            key for key in self.values if not key.startswith("method.") or (several and key.startswith(mine))
        ]


@dataclass(frozen=True)
class Tuning:
    """What a sweep is to try: an experiment of its own, whose methods are the values."""

    base: Experiment
    experiment: Experiment
    tried: Mapping[str, Mapping[str, Mapping[str, Any]]]  # by method, by label, the values of settings


def tuning_of(read: tuple[toml.Table, str, Path], sweep: Sweep) -> Tuning:
    table, name, beside = read
    base = parse(copy.deepcopy(table), name, beside)
    variants: list[Method] = []
    tried: dict[str, dict[str, dict[str, Any]]] = {}
    for number, method in enumerate(base.methods):
        keys = sweep.concerning(number, base.several)
        mine = tried[method.label] = {}
        made: list[Method] = []
        for values in itertools.product(*(sweep.values[key] for key in keys)) if keys else ():
            changed = copy.deepcopy(table)
            for key, value in zip(keys, values, strict=True):
                toml.put(changed, key.split("."), value)
            variant = parse(changed, name, beside).methods[number]
            label = _label(method.label, keys, values, len(variants) + len(made))
            made.append(replace(variant, label=label))
            mine[label] = dict(zip(keys, values, strict=True))
        _check_different(made, method.label, keys, number)
        variants += made
    if not variants:
        raise CoterieError(
            f"--sweep names {', '.join(sweep.values)}, which no method of the experiment has; allowed is method.N., "
            f"with N from 0 to {len(base.methods) - 1}"
        )
    held_out = base.held_out or HELD_OUT
    seeds = sweep.seeds or base.seeds
    tuning = replace(base, methods=tuple(variants), several=True, held_out=held_out, seeds=seeds)
    parse(toml.read(tuning.resolved(), "the sweep"))  # labels are different, and all can be read again
    return Tuning(base, tuning, tried)


def _check_different(variants: Sequence[Method], label: str, keys: Sequence[str], number: int) -> None:
    """A method's own setting hides one of the whole file, and then there is nothing to choose from."""
    stages = [variant.stages for variant in variants]
    if any(one in stages[:at] for at, one in enumerate(stages)):
        raise CoterieError(
            f"--sweep names {', '.join(keys)}, which changes nothing in {label}, since that sets its own; allowed is "
            f"method.{number}. before the setting's name"
        )


def begin_sweep(tuning: Tuning, folder: Path) -> None:
    """Write what is to be tried."""
    begin(tuning.experiment, folder / TUNING)
    write_whole(folder / TUNING / BASE, toml.sealed(tuning.base.resolved()).encode())
    write_json(
        folder / TUNING / SWEEP, with_checksum({TRIED: tuning.tried})
    )  # last: with it the sweep is begun


def _label(label: str, keys: Sequence[str], values: Sequence[Any], number: int) -> str:
    """That can be a folder's name; the number keeps labels apart that would be alike."""
    parts = [f"{key.rpartition('.')[2]} {value}" for key, value in zip(keys, values, strict=True)]
    plain = re.sub(r"[^A-Za-z0-9 ._+-]+", "-", ", ".join([label, *parts]).replace(",", ""))
    return f"{plain[:70].rstrip(' .-')} {number:02d}" if len(plain) > 70 or plain[-1] in " ." else plain


def choose(folder: Path) -> tuple[Experiment, list[dict[str, Any]]]:
    """After the sweep: the experiment with the best values, and every value with its score.

    Best is the highest mean accuracy of personal models on the held-out points over the seeds, or the least loss where
    there are no classes. A run that diverged has the worst score there is, and values with fewer of them are better,
    whatever their mean.
    """
    tuning = load_kept(folder / TUNING)
    toml.load_kept(folder / TUNING / BASE)
    base = load(folder / TUNING / BASE)
    kept = read_kept(folder / TUNING / SWEEP)
    tried = kept.get(TRIED, kept)  # older versions wrote the methods alone
    if not all(isinstance(tried.get(method.label), dict) for method in base.methods):
        raise CoterieError(f"{folder / TUNING / SWEEP} is damaged: it does not have every method")
    by_label = {method.label: method for method in tuning.methods}
    methods, lines = [], []
    for method in base.methods:
        mine = [
            _score(tuning, folder / TUNING, label, values) for label, values in tried[method.label].items()
        ]
        best = max(mine, key=lambda line: line["order"], default=None)
        lines += [{"method": method.label, **line, "chosen": line is best} for line in mine]
        methods.append(method if best is None else replace(by_label[best["label"]], label=method.label))
    return replace(base, methods=tuple(methods)), lines


def _score(tuning: Experiment, folder: Path, label: str, values: Mapping[str, Any]) -> dict[str, Any]:
    found, name, n_diverged = [], "loss", 0
    for place, experiment in runs_of(tuning, folder).items():
        method = next(one for one in experiment.methods if one.label == label)
        summary = RunFolder(experiment.folder_of(method, place)).summary()
        personal = summary["personal"]
        name = "accuracy" if "accuracy" in personal else "loss"
        worst = 0.0 if name == "accuracy" else math.inf
        diverged = personal[name] is None or ended_badly(summary)  # the score may be of an earlier round
        n_diverged += diverged
        found.append(worst if diverged else float(personal[name]))
    mean = fmean(found)
    return {
        "label": label,
        "values": dict(values),
        "score": name,
        "mean": mean,
        "std": stdev(found) if len(found) > 1 and math.isfinite(mean) else None,
        "seeds": len(found),
        "diverged": n_diverged,
        "order": (-n_diverged, mean if name == "accuracy" else -mean),
    }
