"""Every method on every kind of federation, at a server and over a graph, each with a rate chosen on other seeds.

    COTERIE_DATA=... python experiments/all_methods.py --seeds 5200-5202 --jobs 2 --runs FOLDER --out FILE

For every setting: each method is tried with three or four learning rates on points held out of training, of seed 100;
with the best of them it is run with each seed, and scored on test points. All else is as coterie chooses it. FOLDER
keeps the runs, so that a stopped script goes on; FILE gets the numbers, and `says` the tables. The data folder needs
emnist_balanced_test14k.npz, and what `coterie data get` gets of mnist, fashion-mnist, shakespeare and cifar10.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from coterie.bench.provenance import provenance
from coterie.bench.results import write
from coterie.cli.study import go_on, run_study
from coterie.errors import CoterieError
from coterie.experiment.experiment import load
from coterie.experiment.study import CHOICE, Sweep, is_study, parse_seeds, runs_of
from coterie.files import read_kept
from coterie.reproduction.measures import measure
from coterie.runs.folder import RunFolder

TUNING_SEEDS = (100,)
GRAPH = {"kind": "erdos-renyi", "degree": 8}
IMAGES = {"batch_size": 10, "epochs": 5}
POINTS = {"clients": 40, "train_points": 60, "test_points": 40}
MLP = {"name": "mlp", "hidden": [32]}
BY_CLASS = {
    "alpha": [0.1, 10],
    "clusters": 4,
    "draw": "shared",
}  # some seeds ask for more of a class than there is
ROTATED = {"distributions": "rotate", "clusters": 4, "mixture": "pure"}
Setting = dict[str, Any]
SETTINGS: dict[str, Setting] = {
    "two regressions, 10:90": {
        "clusters": 2,
        "data": {"source": "regressions", "clusters": 2, "mixture": "10:90", "clients": 40},
        "model": "linear",
        "training": {"batch_size": 20, "epochs": 2},
        "rates": (0.01, 0.03, 0.1),
    },
    "digits, two labelings, mixed": {
        "clusters": 2,
        "data": {"source": "digits", "distributions": "relabel", "mixture": "linear", **POINTS},
        "model": MLP,
        "training": IMAGES,
        "rates": (0.03, 0.1, 0.3),
    },
    "MNIST, four rotations, pure": {
        "clusters": 4,
        "data": {"source": "mnist", **ROTATED, **POINTS},
        "model": MLP,
        "training": IMAGES,
        "rates": (0.03, 0.1, 0.3),
    },
    "letters, by case, 10:90": {
        "clusters": 2,
        "data": {"source": "emnist-balanced-14k", "distributions": "case", "mixture": "10:90", "clients": 40},
        "model": MLP,
        "training": IMAGES,
        "rates": (0.03, 0.1, 0.3),
    },
    "Fashion-MNIST, four groups of classes": {
        "clusters": 4,
        "data": {"source": "fashion-mnist", **BY_CLASS, **POINTS},
        "model": MLP,
        "training": IMAGES,
        "rates": (0.03, 0.1, 0.3),
    },
    "Shakespeare, by role": {
        "clusters": 2,
        "data": {"source": "shakespeare", "clients": 30, "train_points": 50, "test_points": 30},
        "model": "char_cnn",
        "training": {"batch_size": 10, "epochs": 2},
        "rates": (0.3, 1.0, 3.0, 10.0),
    },
    "CIFAR-10, four rotations, pure": {
        "clusters": 4,
        "data": {"source": "cifar10", **ROTATED, **POINTS, "train_points": 200},
        "model": "lenet",
        "training": IMAGES,
        "rates": (0.01, 0.03, 0.1),
    },
    "CIFAR-10, four groups of classes": {
        "clusters": 4,
        "data": {"source": "cifar10", **BY_CLASS, **POINTS, "train_points": 200},
        "model": "lenet",
        "training": IMAGES,
        "rates": (0.01, 0.03, 0.1),
    },
}
ONE_MODEL = ("Local", "FedAvg", "FedProx", "CFL", "pFedMe")
CLUSTERED = (
    "FedAvg+",
    "FedProx+",
    "IFCA",
    "HypCluster",
    "FeSEM",
    "WeCFL",
    "OneShot",
    "FedEM",
    "FedSoft",
    "FedSPD",
)
WITH_AUTO = ("WeCFL", "FedEM", "FedSPD")  # besides as they are
OVER_A_GRAPH = ("FedAvg", "FedProx", "pFedMe", "IFCA", "HypCluster", "FedEM", "FedSoft", "FedSPD")
COLUMNS = {
    "centers": ("mean_own_center_accuracy", "mean_own_center_mse"),
    "importance error": ("importance_error",),
    "personal": ("personal_accuracy", "personal_mse"),
    "worst tenth": ("personal_accuracy_worst_tenth",),
    "MB sent": ("megabytes",),
}


def methods(setting: Setting) -> list[dict[str, Any]]:
    """All, at a server and then over a graph."""
    steps = setting["training"]["epochs"] * math.ceil(
        setting["data"].get("train_points", 80) / setting["training"]["batch_size"]
    )

    def one(name: str, **more: Any) -> dict[str, Any]:
        algorithm: dict[str, Any] = {"name": name}
        if name in CLUSTERED:
            algorithm["n_clusters"] = setting["clusters"]
        if name == "pFedMe":  # as many batches as the others; its own pull is too much for rates above 0.1
            algorithm.update(local_rounds=steps, pull=1.0, local_rate=0.3)
        return {"label": name, "algorithm": algorithm, **more}

    graph = {"topology": GRAPH}
    return [
        *(one(name) for name in (*ONE_MODEL, *CLUSTERED)),
        *({**one(name, personal="auto"), "label": f"{name} auto"} for name in WITH_AUTO),
        *({**one(name, **graph), "label": f"{name} over a graph"} for name in OVER_A_GRAPH),
        {**one("FedSPD", personal="auto", **graph), "label": "FedSPD auto over a graph"},
    ]


def play(name: str, seeds: tuple[int, ...], jobs: int, device: str, folder: Path) -> None:
    """Choose the rates and run; or go on where a folder of this setting is."""
    if is_study(folder):
        if (folder / "experiment.toml").is_file() and load(folder / "experiment.toml").seeds != seeds:
            raise CoterieError(f"{folder} has runs of other seeds; allowed are the same, or another --runs")
        go_on(folder, jobs, wide=False)
        return
    setting = SETTINGS[name]
    table = {
        "name": "all-methods",
        "seeds": list(seeds),
        "rounds": 20,
        "evaluate_every": 0,
        "threads": 1,
        "device": device,
        **{key: setting[key] for key in ("data", "model", "training")},
        "method": methods(setting),
    }
    rates = {"training.learning_rate": setting["rates"]}
    run_study((table, name, folder), Sweep(rates, TUNING_SEEDS), folder, jobs, again=False, wide=False)


def collect(name: str, folder: Path) -> list[dict[str, Any]]:
    """The numbers of the finished runs of a setting."""
    chosen = {
        line["method"]: next(iter(line["values"].values()))
        for line in read_kept(folder / CHOICE)["tried"]
        if line["chosen"]
    }
    found = []
    for place, experiment in runs_of(load(folder / "experiment.toml"), folder).items():
        for method in experiment.methods:
            store = RunFolder(experiment.folder_of(method, place))
            summary = store.summary()
            records = store.records(summary["rounds"])
            values = {
                column: next(
                    (number for one in names if (number := measure(one)(summary, records)) == number), None
                )
                for column, names in COLUMNS.items()
            }
            found.append(
                {
                    "setting": name,
                    "method": method.label,
                    "seed": experiment.seed,
                    "rate": chosen[method.label],
                    "seconds": round(sum(record.get("seconds", math.nan) for record in records), 2),
                    **{
                        column: None if value is None else float(f"{value:.4g}")
                        for column, value in values.items()
                    },
                }
            )
    return found


def tables(runs: list[dict[str, Any]]) -> list[str]:
    """Markdown: one table for each setting, mean ± deviation over seeds; seconds as a multiple of FedAvg's."""
    lines = []
    for name in dict.fromkeys(run["setting"] for run in runs):
        mine = [run for run in runs if run["setting"] == name]
        usual = fmean(run["seconds"] for run in mine if run["method"] == "FedAvg")
        lines += [
            "",
            f"### {name}",
            "",
            f"| | rate | {' | '.join(COLUMNS)} | time |",
            "|---" * (len(COLUMNS) + 3) + "|",
        ]
        for method in dict.fromkeys(run["method"] for run in mine):
            each = [run for run in mine if run["method"] == method]
            cells = [_cell([run[column] for run in each]) for column in COLUMNS]
            time = fmean(run["seconds"] for run in each) / usual
            lines.append(f"| {method} | {each[0]['rate']:g} | {' | '.join(cells)} | {time:.1f} |")
    return lines[1:]


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "–"
    spread = f" ± {stdev(known):.2g}" if len(known) > 1 and stdev(known) > 0 else ""
    return f"{fmean(known):.3g}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=parse_seeds, default=parse_seeds("5200-5202"), help="such as 5200-5202"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="only this one")
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    old = (
        json.loads(options.out.read_text())
        if options.out and options.out.exists()
        else {"runs": [], "made": {}}
    )
    for name in options.setting or SETTINGS:
        if name in old["made"]:
            continue
        folder = options.runs / name.replace(",", "").replace(":", "-").replace(" ", "-")
        play(name, options.seeds, options.jobs, options.device, folder)
        old["runs"] += collect(name, folder)
        old["made"][name] = provenance()
        if options.out:
            write(options.out, {**old, "says": tables(old["runs"])})
    print("\n".join(tables(old["runs"])))


if __name__ == "__main__":
    main()
