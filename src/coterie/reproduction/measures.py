"""What the tables and figures of the papers show, by name, read from a finished run.

Every function takes the run's summary (summary.json) and its records (rounds.jsonl) and gives one number, or, of a name
that ends in `_by_round`, one for each round. What a run does not have is nan. Distributions count from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from coterie.errors import CoterieError
from coterie.validation import nearest

Summary = Mapping[str, Any]
Records = Sequence[Mapping[str, Any]]
Measure = Callable[[Summary, Records], float]
Numbered = Callable[[Summary, Records, int], float]
Curve = Callable[[Summary, Records], list[float]]

FOUND = 0.95  # the adjusted Rand index from which clusters count as found


def measure(name: str) -> Measure:
    """The measure of this name, such as `personal_accuracy` or `own_center_mse_2`."""
    if name in MEASURES:
        return MEASURES[name]
    stem, _, number = name.rpartition("_")
    if stem in NUMBERED and number.isdecimal():
        return partial(_with_number, NUMBERED[stem], int(number))
    known = [*MEASURES, *(f"{stem}_N" for stem in NUMBERED)]
    raise CoterieError(f"there is no measure {name!r}{nearest(name, known)}; allowed are {', '.join(known)}")


def curve(name: str) -> Curve:
    """The curve of this name, such as `test_accuracy_by_round`."""
    if name in CURVES:
        return CURVES[name]
    raise CoterieError(f"there is no curve {name!r}{nearest(name, CURVES)}; allowed are {', '.join(CURVES)}")


def _with_number(function: Numbered, number: int, summary: Summary, records: Records) -> float:
    return function(summary, records, number)


# centers, each on each known distribution


def own_center_accuracy(summary: Summary, records: Records, distribution: int) -> float:
    """The accuracy, on a distribution's points, of the center that is matched to it."""
    return _own(_accuracies(summary), summary, distribution)


def own_center_mse(summary: Summary, records: Records, distribution: int) -> float:
    """The same as a mean squared error, of regressions."""
    return _own(_errors(summary), summary, distribution)


def other_center_accuracy(summary: Summary, records: Records, distribution: int) -> float:
    """The accuracy there of the best of the other centers."""
    return max(_known(_others(_accuracies(summary), summary, distribution)), default=math.nan)


def other_center_mse(summary: Summary, records: Records, distribution: int) -> float:
    """The error there of the best of the other centers."""
    return min(_known(_others(_errors(summary), summary, distribution)), default=math.nan)


def best_center_accuracy(summary: Summary, records: Records, distribution: int) -> float:
    """The accuracy there of the best center, whichever it is."""
    return max(_known(_column(_accuracies(summary), distribution)), default=math.nan)


def best_center_mse(summary: Summary, records: Records, distribution: int) -> float:
    """The error there of the best center, whichever it is."""
    return min(_known(_column(_errors(summary), distribution)), default=math.nan)


def mean_own_center_accuracy(summary: Summary, records: Records) -> float:
    """Over the distributions, each with its own center."""
    return _mean(_over(own_center_accuracy, summary, records))


def worst_own_center_accuracy(summary: Summary, records: Records) -> float:
    """That of the distribution served worst by its own center."""
    return min(_over(own_center_accuracy, summary, records), default=math.nan)


def mean_own_center_mse(summary: Summary, records: Records) -> float:
    """Over the distributions, each with its own center."""
    return _mean(_over(own_center_mse, summary, records))


def mean_other_center_accuracy(summary: Summary, records: Records) -> float:
    """Over the distributions, each with the best of the centers that are not its own."""
    return _mean(_over(other_center_accuracy, summary, records))


def mean_other_center_mse(summary: Summary, records: Records) -> float:
    """Over the distributions, each with the best of the centers that are not its own."""
    return _mean(_over(other_center_mse, summary, records))


def mean_best_center_accuracy(summary: Summary, records: Records) -> float:
    """Over the distributions, each with the center that is best there."""
    return _mean(_over(best_center_accuracy, summary, records))


def mean_best_center_mse(summary: Summary, records: Records) -> float:
    """Over the distributions, each with the center that is best there."""
    return _mean(_over(best_center_mse, summary, records))


def mean_center_mse(summary: Summary, records: Records) -> float:
    """Over all pairs of a center and a distribution."""
    return _mean([_plain(number) for row in _errors(summary) for number in row])


def different_best_centers(summary: Summary, records: Records) -> float:
    """Over the number of distributions, how many centers are the best for one of them: 1 where each has its own."""
    values = [[-number for number in row] for row in _errors(summary)] or _accuracies(summary)
    worst = [[-math.inf if math.isnan(number) else number for number in row] for row in values]
    columns = list(zip(*worst, strict=True))
    best = {max(range(len(column)), key=column.__getitem__) for column in columns}
    return len(best) / len(columns) if columns else math.nan


# personal models, on the clients' held-out points


def personal_accuracy(summary: Summary, records: Records) -> float:
    """The mean over clients, at the end."""
    return _of(summary, "personal", "accuracy")


def personal_f1(summary: Summary, records: Records) -> float:
    """The mean over clients of the macro-F1, at the end."""
    return _of(summary, "personal", "f1")


def personal_accuracy_by_points(summary: Summary, records: Records) -> float:
    """The mean over clients, each counted by its training points."""
    return _of(summary, "personal", "accuracy_by_points")


def personal_f1_by_points(summary: Summary, records: Records) -> float:
    """The mean over clients of the macro-F1, each counted by its training points."""
    return _of(summary, "personal", "f1_by_points")


def personal_mse(summary: Summary, records: Records) -> float:
    """The mean over clients of the mean squared error, of regressions."""
    return _of(summary, "personal", "loss") if summary["task"] == "regression" else math.nan


def personal_accuracy_std(summary: Summary, records: Records) -> float:
    """How far clients differ: the standard deviation of their accuracies."""
    return _of(summary, "personal", "accuracy_std_over_clients")


def personal_accuracy_worst_tenth(summary: Summary, records: Records) -> float:
    """The mean accuracy of the tenth of the clients that are served worst."""
    return _of(summary, "personal", "accuracy_worst_tenth")


def accuracy_before_final_phase(summary: Summary, records: Records) -> float:
    """That of the models before FedSPD's final phase; of other algorithms that of the end."""
    return _last(records, "test_accuracy")


def gain_of_final_phase(summary: Summary, records: Records) -> float:
    """By how much FedSPD's final phase raises the accuracy."""
    return personal_accuracy(summary, records) - accuracy_before_final_phase(summary, records)


# clusters


def importance_error(summary: Summary, records: Records) -> float:
    """The mean |u − û| over clients and clusters, matched to distributions."""
    return _of(summary, "centers", "importance_error")


def ari(summary: Summary, records: Records) -> float:
    """The adjusted Rand index of the clients' clusters of largest importance and of their largest distributions."""
    return _plain(summary.get("ari"))


def rounds_to_clusters(summary: Summary, records: Records) -> float:
    """The first evaluated round, from 1, with an adjusted Rand index of 0.95; nan where there is none."""
    return _first(records, "ari", FOUND)


def cosine_between(summary: Summary, records: Records) -> float:
    """The mean cosine of two centers in the last round."""
    return _of(summary, "metrics", "cosine_between")


def cosine_within(summary: Summary, records: Records) -> float:
    """The mean cosine of two clients' rows of one cluster in the last round."""
    return _of(summary, "metrics", "cosine_within")


def clusterability(summary: Summary, records: Records) -> float:
    """WeCFL's B of the worst cluster, at the last evaluation."""
    return _of(summary, "metrics", "clusterability")


def first_clusterability(summary: Summary, records: Records) -> float:
    """The same at the first evaluation."""
    return next(iter(_all(records, "clusterability")), math.nan)


# cost, and how fast


def megabytes(summary: Summary, records: Records) -> float:
    """Sent in all; over a graph point to point, a row once to each neighbour that needs it."""
    return float(summary["megabytes"])


def megabytes_multicast(summary: Summary, records: Records) -> float:
    """Sent over a graph where one transmission reaches all neighbours."""
    return float(summary["traffic"]["multicast"]) / 1e6


def training_loss(summary: Summary, records: Records) -> float:
    """The mean loss that clients had while training in the last round."""
    return _last(records, "loss")


def mean_accuracy_over_rounds(summary: Summary, records: Records) -> float:
    """Over all evaluations: the area under the curve, larger where a method learns faster."""
    return _mean(_all(records, "test_accuracy"))


def mean_training_loss_over_rounds(summary: Summary, records: Records) -> float:
    """Over all rounds: smaller where a method learns faster."""
    return _mean(_all(records, "loss"))


def training_loss_roughness(summary: Summary, records: Records) -> float:
    """The standard deviation of the loss's steps from round to round in the second half of the run."""
    values = _all(records, "loss")
    late = values[len(values) // 2 :]
    steps = [after - before for before, after in pairwise(late)]
    return stdev(steps) if len(steps) > 1 else math.nan


def rounds_to_accuracy(summary: Summary, records: Records, percent: int) -> float:
    """The first evaluated round, from 1, whose test accuracy is this; nan where there is none."""
    return _first(records, "test_accuracy", percent / 100)


# reading


def _accuracies(summary: Summary) -> list[list[float]]:
    """(center, distribution), empty where there are no classes or no known distributions."""
    return [[_plain(number) for number in row] for row in summary.get("centers", {}).get("accuracy", [])]


def _errors(summary: Summary) -> list[list[float]]:
    """(center, distribution) of regressions."""
    known = summary.get("centers", {}).get("loss", []) if summary["task"] == "regression" else []
    return [[_plain(number) for number in row] for row in known]


def _column(values: list[list[float]], distribution: int) -> list[float]:
    return [row[distribution - 1] for row in values if distribution <= len(row)]


def _known(values: list[float]) -> list[float]:
    """Without those of centers that diverged, whichever place they have."""
    return [value for value in values if not math.isnan(value)]


def _own(values: list[list[float]], summary: Summary, distribution: int) -> float:
    column = _column(values, distribution)
    return column[summary["centers"]["center_of_distribution"][distribution - 1]] if column else math.nan


def _others(values: list[list[float]], summary: Summary, distribution: int) -> list[float]:
    column = _column(values, distribution)
    own = summary["centers"]["center_of_distribution"][distribution - 1] if column else None
    return [number for center, number in enumerate(column) if center != own]


def _over(function: Numbered, summary: Summary, records: Records) -> list[float]:
    """One number for each distribution."""
    known = summary.get("centers", {}).get("center_of_distribution", [])
    return [function(summary, records, number + 1) for number in range(len(known))]


def _of(summary: Summary, part: str, key: str) -> float:
    return _plain(summary.get(part, {}).get(key))


def _all(records: Records, key: str) -> list[float]:
    """Of the rounds that have it."""
    return [float(record[key]) for record in records if record.get(key) is not None]


def _last(records: Records, key: str) -> float:
    return _plain(records[-1].get(key)) if records else math.nan


def _first(records: Records, key: str, least: float) -> float:
    """The first round, from 1, that has at least this."""
    found = [r["round"] + 1 for r in records if r.get(key) is not None and r[key] >= least]
    return float(found[0]) if found else math.nan


def _mean(numbers: Sequence[float]) -> float:
    return fmean(numbers) if numbers else math.nan


def _plain(number: float | None) -> float:
    """What is not there, or diverged, is null."""
    return math.nan if number is None else float(number)


def _by_round(key: str, summary: Summary, records: Records) -> list[float]:
    """Of every round, nan where it was not measured."""
    return [_plain(record.get(key)) for record in records]


MEASURES: dict[str, Measure] = {
    function.__name__: function
    for function in (
        mean_own_center_accuracy,
        worst_own_center_accuracy,
        mean_own_center_mse,
        mean_other_center_accuracy,
        mean_other_center_mse,
        mean_best_center_accuracy,
        mean_best_center_mse,
        mean_center_mse,
        different_best_centers,
        personal_accuracy,
        personal_f1,
        personal_mse,
        personal_accuracy_std,
        personal_accuracy_worst_tenth,
        personal_accuracy_by_points,
        personal_f1_by_points,
        accuracy_before_final_phase,
        gain_of_final_phase,
        importance_error,
        ari,
        rounds_to_clusters,
        cosine_between,
        cosine_within,
        clusterability,
        first_clusterability,
        megabytes,
        megabytes_multicast,
        training_loss,
        mean_accuracy_over_rounds,
        mean_training_loss_over_rounds,
        training_loss_roughness,
    )
}
NUMBERED: dict[str, Numbered] = {
    function.__name__: function
    for function in (
        own_center_accuracy,
        own_center_mse,
        other_center_accuracy,
        other_center_mse,
        best_center_accuracy,
        best_center_mse,
        rounds_to_accuracy,
    )
}
CURVES: dict[str, Curve] = {
    f"{name}_by_round": partial(_by_round, key)
    for name, key in {
        "test_accuracy": "test_accuracy",
        "test_f1": "test_f1",
        "test_loss": "test_loss",
        "training_loss": "loss",
        "importance_error": "importance_error",
        "ari": "ari",
        "cosine_between": "cosine_between",
        "cosine_within": "cosine_within",
        "clustering_objective": "clustering_objective",
        "consensus_distance": "consensus_distance",
    }.items()
}
