"""Many runs: seeds, sweeps, and what is left to play of them."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment, load, parse
from coterie.experiment.study import (
    BASE,
    CHOICE,
    SWEEP,
    TUNING,
    Sweep,
    begin,
    begin_sweep,
    choose,
    clear,
    is_study,
    parse_seeds,
    runs_of,
    tasks_of,
    tuning_of,
)
from coterie.runs.folder import NEEDED, RunFolder

TABLE: dict[str, Any] = {
    "rounds": 2,
    "seeds": [3, 5],
    "data": {"source": "regressions", "clients": 6, "clusters": 2},
    "model": "linear",
    "method": [{"algorithm": {"name": "FedAvg"}}, {"algorithm": {"name": "FedProx", "pull": 0.1}}],
}


def table(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(TABLE), **changes}


def swept(folder: Path, asked: dict[str, Any], sweep: Sweep) -> Experiment:
    tuning = tuning_of((asked, "swept", folder), sweep)
    begin_sweep(tuning, folder)
    return tuning.experiment


def test_seeds_are_ranges_and_lists() -> None:
    assert parse_seeds("0-3") == (0, 1, 2, 3)
    assert parse_seeds("4, 0-1,9") == (4, 0, 1, 9)


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "0,0", "1.5", "0-99999999"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(CoterieError, match="--seeds"):
        parse_seeds(text)


def test_seeds_and_a_seed_are_refused_together() -> None:
    with pytest.raises(CoterieError, match="seeds"):
        parse(table(seed=1))


def test_a_study_is_written_as_runs_that_load_by_themselves(tmp_path: Path) -> None:
    asked = parse(table())
    begin(asked, tmp_path)
    assert is_study(tmp_path)
    assert not is_study(tmp_path / "seed-3")
    assert load(tmp_path / "experiment.toml") == asked
    assert load(tmp_path / "seed-5" / "experiment.toml") == asked.with_seed(5)
    names = [task.name for task in tasks_of(asked, tmp_path)]
    assert names == ["seed-3/FedAvg", "seed-3/FedProx", "seed-5/FedAvg", "seed-5/FedProx"]


def test_tasks_are_what_is_not_finished(tmp_path: Path) -> None:
    asked = parse(table())
    begin(asked, tmp_path)
    done = tmp_path / "seed-3" / "FedAvg"
    done.mkdir()
    for name in ("summary.json", "result.safetensors"):
        (done / name).write_text("{}")
    assert next(task.name for task in tasks_of(asked, tmp_path)) == "seed-3/FedProx"


def test_held_out_points_take_the_place_of_test_points() -> None:
    whole = parse(table()).with_seed(3)
    tuned = parse(table(held_out=0.25)).with_seed(3)
    data, split = whole.federation(), tuned.federation()
    assert split.test is not None
    assert len(split.train.at) + len(split.test.at) == len(data.train.at)
    assert parse(table()).resolved() != parse(table(held_out=0.25)).resolved()


def test_a_sweep_is_an_experiment_of_all_values(tmp_path: Path) -> None:
    sweep = Sweep.of(["method.1.algorithm.pull=0.01,1", "training.learning_rate=0.1,0.2"])
    tuning = swept(tmp_path, table(), sweep)
    labels = [method.label for method in tuning.methods]
    assert labels[:2] == ["FedAvg learning_rate 0.1", "FedAvg learning_rate 0.2"]
    assert len(labels) == 2 + 4
    assert tuning.held_out == 0.25
    assert tuning.seeds == (3, 5)
    assert [m.stages[0].algorithm.pull for m in tuning.methods[2:]] == [0.01, 0.01, 1.0, 1.0]
    assert load(tmp_path / TUNING / "experiment.toml") == tuning
    assert is_study(tmp_path)


def test_a_sweep_may_choose_on_seeds_of_its_own(tmp_path: Path) -> None:
    tuning = swept(tmp_path, table(), Sweep.of(["training.learning_rate=0.1,0.2"], (7,)))
    assert tuning.seeds == (7,)
    assert load(tmp_path / TUNING / BASE).seeds == (3, 5)


def test_the_best_held_out_score_chooses_for_each_method(tmp_path: Path) -> None:
    sweep = Sweep.of(["training.learning_rate=0.1,0.2"])
    tuning = swept(tmp_path, table(), sweep)
    losses = {"FedAvg learning_rate 0.1": 1.0, "FedAvg learning_rate 0.2": None}
    losses |= {"FedProx learning_rate 0.1": 3.0, "FedProx learning_rate 0.2": 2.0}
    for place, experiment in runs_of(tuning, tmp_path / TUNING).items():
        for method in experiment.methods:
            folder = experiment.folder_of(method, place)
            folder.mkdir()
            summary: dict[str, Any] = dict.fromkeys(NEEDED)
            RunFolder(folder).write_summary({**summary, "personal": {"loss": losses[method.label]}})
    chosen, lines = choose(tmp_path)
    assert [method.label for method in chosen.methods] == ["FedAvg", "FedProx"]
    assert [method.stages[0].training.learning_rate for method in chosen.methods] == [0.1, 0.2]
    assert chosen.held_out == 0
    assert chosen.seeds == (3, 5)
    assert [line["chosen"] for line in lines] == [True, False, False, True]


def test_a_value_with_which_a_run_diverged_is_not_chosen(tmp_path: Path) -> None:
    """Its summary has a score all the same, that of the last good centers."""
    tuning = swept(tmp_path, table(), Sweep.of(["training.learning_rate=0.1,0.2"]))
    for place, experiment in runs_of(tuning, tmp_path / TUNING).items():
        for method in experiment.methods:
            folder = experiment.folder_of(method, place)
            folder.mkdir()
            large = method.label.endswith("0.2")
            about: dict[str, Any] = {"personal": {"loss": 1.0 if large else 2.0}}
            about |= {"stopped": {"rounds": 3, "says": "The run diverged."}} if large else {}
            RunFolder(folder).write_summary({**dict.fromkeys(NEEDED), **about})
    chosen, lines = choose(tmp_path)
    assert [method.stages[0].training.learning_rate for method in chosen.methods] == [0.1, 0.1]
    assert [line["mean"] for line in lines] == [2.0, math.inf] * 2


@pytest.mark.parametrize(
    "sign",
    [{"stopped": {"rounds": 3, "says": "The run diverged."}}, {"verdict": {"findings": ["diverged"]}}],
    ids=["stopped", "verdict"],
)
def test_nor_if_it_diverged_with_one_seed_of_three(tmp_path: Path, sign: dict[str, Any]) -> None:
    """An accuracy of 0 there leaves a mean of 0.6, which is above 0.5."""
    tuning = swept(tmp_path, table(seeds=[0, 1, 2]), Sweep.of(["training.learning_rate=0.1,0.2"]))
    for place, experiment in runs_of(tuning, tmp_path / TUNING).items():
        for method in experiment.methods:
            folder = experiment.folder_of(method, place)
            folder.mkdir()
            large = method.label.endswith("0.2")
            about: dict[str, Any] = {"personal": {"accuracy": 0.9 if large else 0.5}}
            about |= sign if large and place.name == "seed-2" else {}
            RunFolder(folder).write_summary({**dict.fromkeys(NEEDED), **about})
    chosen, lines = choose(tmp_path)
    assert [method.stages[0].training.learning_rate for method in chosen.methods] == [0.1, 0.1]
    assert [line["mean"] for line in lines] == pytest.approx([0.5, 0.6] * 2)
    assert [line["diverged"] for line in lines] == [0, 1] * 2


@pytest.mark.parametrize(
    "text",
    [
        "algorithm.pull",
        "algorithm.pull=1",
        "algorithm.pull=1,",
        "data.clients=1,2",
        "seed=0,1",
        "=1,2",
        "rounds=1,1",
    ],
)
def test_other_sweeps_are_refused(text: str) -> None:
    with pytest.raises(CoterieError, match="--sweep"):
        Sweep.of([text])


def test_a_sweep_of_a_method_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"method\.N"):
        swept(tmp_path, table(), Sweep.of(["method.7.algorithm.pull=1,2"]))
    assert not list(tmp_path.iterdir())


def test_a_sweep_that_a_method_hides_is_refused(tmp_path: Path) -> None:
    asked = table()
    asked["method"][1]["training"] = {"learning_rate": 0.3}
    with pytest.raises(CoterieError, match=r"method\.1\."):
        swept(tmp_path, asked, Sweep.of(["training.learning_rate=0.1,0.2"]))
    assert not list(tmp_path.iterdir())


def test_clearing_forgets_the_study_and_nothing_else(tmp_path: Path) -> None:
    swept(tmp_path, table(), Sweep.of(["training.learning_rate=0.1,0.2"]))
    begin(parse(table()), tmp_path)
    (tmp_path / CHOICE).write_text("[]")
    (tmp_path / "seed-3" / "mine.txt").write_text("kept")
    (tmp_path / "FedAvg").mkdir()  # a run of several methods that was here before
    (tmp_path / "FedAvg" / "experiment.toml").write_text("")
    clear(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["seed-3", "mine.txt"]
    assert not (tmp_path / TUNING / SWEEP).exists()


def test_clearing_does_not_follow_a_link_to_a_sweep(tmp_path: Path) -> None:
    swept(tmp_path / "other", table(), Sweep.of(["training.learning_rate=0.1,0.2"]))
    before = sorted((tmp_path / "other").rglob("*"))
    begin(parse(table()), tmp_path / "mine")
    (tmp_path / "mine" / TUNING).symlink_to(tmp_path / "other" / TUNING)
    clear(tmp_path / "mine")
    assert sorted((tmp_path / "other").rglob("*")) == before
