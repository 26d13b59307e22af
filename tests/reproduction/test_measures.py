"""What the tables show, read from two small runs: regressions at a server, digits over a graph."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

import coterie
from coterie import CoterieError, FedSoft, FedSPD, Graph, Training
from coterie.data import digits, regressions
from coterie.models import build
from coterie.reproduction.measures import CURVES, MEASURES, NUMBERED, curve, measure
from coterie.runs.result import Run

ROUNDS = 6


@pytest.fixture(scope="module")
def soft() -> Run:
    """Two regressions, found well within these rounds; evaluated in every other round."""
    data = regressions(clients=12, sizes=(40, 60), separation=100.0)
    training = Training(learning_rate=0.05, epochs=3)
    algorithm = FedSoft(2, pull=0.1)
    model = build("linear", (10,), 1, bias=False)
    return coterie.run(model, data, algorithm, rounds=ROUNDS, training=training, evaluate_every=2)


@pytest.fixture(scope="module")
def spd() -> Run:
    """Digits under two labelings; the final phase comes after the last evaluation."""
    data = digits(clients=8, train_points=40, test_points=10)
    training = Training(learning_rate=0.1, epochs=2)
    model = build("mlp", (64,), 10, hidden=(8,))
    return coterie.run(
        model,
        data,
        FedSPD(2),
        topology=Graph("complete"),
        init="random",
        rounds=ROUNDS,
        training=training,
        evaluate_every=2,
    )


def of(run: Run, name: str) -> float:
    return measure(name)(run.summary, run.records)


def test_every_measure_is_a_number_of_one_of_the_two_runs(soft: Run, spd: Run) -> None:
    names = [*MEASURES, *(f"{stem}_1" for stem in NUMBERED)]
    missing = [name for name in names if math.isnan(of(soft, name)) and math.isnan(of(spd, name))]
    assert missing == ["clusterability"]  # of hard clusters alone


def test_every_measure_says_what_it_is() -> None:
    assert all(function.__doc__ for function in (*MEASURES.values(), *NUMBERED.values()))


def test_centers_are_those_of_the_summary(soft: Run) -> None:
    """(center, distribution), by the matching of the summary."""
    losses, own = soft.summary["centers"]["loss"], soft.summary["centers"]["center_of_distribution"]
    for d in (0, 1):
        assert of(soft, f"own_center_mse_{d + 1}") == losses[own[d]][d]
        assert of(soft, f"other_center_mse_{d + 1}") == losses[1 - own[d]][d]
        assert of(soft, f"best_center_mse_{d + 1}") == min(losses[0][d], losses[1][d])
    assert of(soft, "mean_own_center_mse") == fmean(losses[own[d]][d] for d in (0, 1))
    assert of(soft, "mean_center_mse") == fmean(number for row in losses for number in row)
    assert math.isnan(of(soft, "own_center_mse_3"))


def test_errors_are_of_regressions_and_accuracies_of_classes(soft: Run, spd: Run) -> None:
    for name in ("own_center_{}_1", "best_center_{}_2", "mean_own_center_{}", "personal_{}"):
        assert not math.isnan(of(soft, name.format("mse")))
        assert math.isnan(of(soft, name.format("accuracy")))
        assert math.isnan(of(spd, name.format("mse")))
        assert 0 <= of(spd, name.format("accuracy")) <= 1


def test_different_best_centers() -> None:
    def share(accuracy: list[list[float]]) -> float:
        own = [0] * len(accuracy[0])
        summary = {"task": "classification", "centers": {"accuracy": accuracy, "center_of_distribution": own}}
        return measure("different_best_centers")(summary, [])

    assert share([[0.9, 0.5], [0.4, 0.8]]) == 1
    assert share([[0.9, 0.9], [0.4, 0.8]]) == 0.5


@pytest.mark.parametrize("order", [1, -1])
def test_a_center_that_diverged_is_the_best_of_nothing(order: int) -> None:
    losses = [[None, None], [3.0, 5.0], [4.0, 2.0]][::order]
    centers = {"loss": losses, "center_of_distribution": [1, 2 if order == 1 else 0]}
    summary = {"task": "regression", "centers": centers}
    found = [
        measure(name)(summary, [])
        for name in ("best_center_mse_1", "best_center_mse_2", "other_center_mse_1")
    ]
    assert found == [3, 2, 4]
    assert measure("different_best_centers")(summary, []) == 1


def test_different_best_centers_of_errors(soft: Run) -> None:
    assert of(soft, "different_best_centers") == 1
    assert of(soft, "own_center_mse_1") < of(soft, "other_center_mse_1")


def test_the_accuracy_before_the_final_phase_is_that_of_the_last_round(spd: Run) -> None:
    before, after = of(spd, "accuracy_before_final_phase"), of(spd, "personal_accuracy")
    assert before == spd.records[-1]["test_accuracy"]
    assert before != after == spd.summary["personal"]["accuracy"]
    assert of(spd, "gain_of_final_phase") == after - before


def test_curves_have_a_number_for_each_round(soft: Run) -> None:
    assert len(curve("training_loss_by_round")(soft.summary, soft.records)) == ROUNDS
    errors = curve("importance_error_by_round")(soft.summary, soft.records)
    assert [math.isnan(number) for number in errors] == [True, False] * 3
    assert errors[-1] == pytest.approx(of(soft, "importance_error"))
    assert all(name.endswith("_by_round") for name in CURVES)


def test_the_first_round_that_reaches_an_accuracy() -> None:
    records = [{"round": 0}, {"round": 1, "test_accuracy": 0.4}, {"round": 2, "test_accuracy": 0.7}]
    assert measure("rounds_to_accuracy_40")({}, records) == 2
    assert measure("rounds_to_accuracy_50")({}, records) == 3
    assert math.isnan(measure("rounds_to_accuracy_80")({}, records))


def test_clusterability_at_the_first_evaluation_and_at_the_last() -> None:
    records = [{"round": 0}, {"round": 1, "clusterability": 0.4}, {"round": 2, "clusterability": 0.3}]
    summary = {"metrics": {"clusterability": 0.3}}
    found = [measure(name)(summary, records) for name in ("first_clusterability", "clusterability")]
    assert found == [0.4, 0.3]


def test_a_smooth_loss_has_no_roughness() -> None:
    def rough(losses: list[float]) -> float:
        return measure("training_loss_roughness")({}, [{"loss": loss} for loss in losses])

    assert rough([9.0, 1.0, 5.0, 4.0, 3.0, 2.0]) == 0
    assert rough([9.0, 1.0, 5.0, 2.0, 4.0, 1.0]) > 1


def test_bytes(spd: Run) -> None:
    """In a complete graph a row goes once to all, or to each of those that drew its cluster."""
    assert 0 < of(spd, "megabytes_multicast") < of(spd, "megabytes") == spd.summary["megabytes"]


def test_names_that_are_not_known() -> None:
    with pytest.raises(
        CoterieError, match=r"no measure 'personal_acuracy', the nearest is 'personal_accuracy'"
    ):
        measure("personal_acuracy")
    with pytest.raises(CoterieError, match="no measure 'personal_accuracy_2'"):
        measure("personal_accuracy_2")
    with pytest.raises(CoterieError, match="no curve 'loss_by_round'"):
        curve("loss_by_round")
