"""Data sets by name, from three lines of TOML to a finished run; text and images through the same engine."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch

from coterie.data import data_folder, load, named
from coterie.data.sources.catalogue import KNOWN
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment, parse
from coterie.runs.summary import summarise
from tests.builders import finish

AVERAGE = {"name": "FedAvg"}
SGD = {"learning_rate": 0.1, "batch_size": 8, "epochs": 1}


def experiment(
    data: dict, model: dict | str = "linear", rounds: int = 1, algorithm: dict = AVERAGE
) -> Experiment:
    model = model if isinstance(model, dict) else {"name": model}
    return parse({"data": data, "model": model, "algorithm": algorithm, "training": SGD, "rounds": rounds})


def played(asked: Experiment) -> tuple[dict, list[float]]:
    """The summary, and the mean training loss after each round."""
    prepared = asked.prepare()
    simulation = prepared.simulation.coordinator(asked.methods[0].stages)
    losses = []
    while not simulation.done:
        simulation.step()
        losses.append(float(simulation.evaluate().scores.loss.mean()))
    return summarise(simulation, prepared.federation.description, simulation.finish()), losses


@pytest.mark.parametrize(
    ("data", "distributions"),
    [
        ({"source": "mnist", "distributions": "rotate", "clusters": 4, "clients": 8}, 4),
        ({"source": "mnist", "clusters": 2, "alpha": [0.5, 10], "clients": 8}, 2),
        ({"source": "cifar10", "clusters": 2, "classes": [3, 2], "clients": 8}, 2),
        ({"source": "cifar10+mnist", "mixture": "uniform", "clients": 8, "augment": True}, 2),
        ({"source": "emnist-balanced", "distributions": ["case", "rotate"], "clusters": 4, "clients": 8}, 4),
        ({"source": "digits", "distributions": "none", "mixture": "pure", "classes": 2, "clients": 8}, 1),
    ],
)
def test_three_lines_of_toml_are_a_run(data_files, data, distributions):
    asked = experiment(data)
    again = parse(tomllib.loads(asked.resolved()))
    assert again.data == asked.data
    made = asked.federation()
    assert made.fingerprint() == again.federation().fingerprint()
    assert made.mixture.shape == (8, distributions)
    summary, losses = played(asked)
    assert np.isfinite(losses).all()
    assert len(summary["centers"]["center_of_distribution"]) == distributions


def test_images_stay_uint8_and_are_normalised_as_the_source_says(data_files):
    made = named("cifar10", clients=4)
    assert made.train.x.dtype == torch.uint8
    assert made.normalise == KNOWN["cifar10"].normalise
    assert made.names[3] == "cat"
    assert made.classes == ()  # its labels are numbers
    assert [named("cifar10", clients=4, augment=given).augment for given in (False, True)] == [False, True]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"source": "mnits"}, "data.source is 'mnits', the nearest is 'mnist'"),
        ({"source": "cifar10+mnits"}, "data.source is 'mnits', the nearest is 'mnist'"),
        ({"source": "cifar10+regressions"}, "data.source is 'regressions'; allowed is mnist"),
        ({"source": "mnist", "labels": "offset"}, "data.labels is not a known key"),
        ({"source": "mnist", "rotate": True}, "data.rotate is not a known key"),
        (
            {"source": "mnist", "alpha": "much"},
            "data.alpha is 'much'; allowed is a number or a list of 2 numbers",
        ),
        (
            {"source": "mnist", "draw": "any"},
            "data.draw is 'any'; allowed is one of 'once', 'shared', 'replace'",
        ),
        (
            {"source": "mnist", "alpha": 0.1, "classes": 2},
            "data.alpha is 0.1 and classes is 2; allowed is only one",
        ),
        ({"source": "mnist", "clients": 1000}, "data.clients is 1000, which leaves client"),
        (
            {"source": "mnist", "distributions": "case"},
            "data.distributions is 'case'; allowed is that for labels of both",
        ),
        ({"source": "fashion-mnist"}, "fashion-mnist cannot be read"),
    ],
)
def test_wrong_data_is_said_in_one_sentence(data_files, data, sentence):
    with pytest.raises(CoterieError, match=sentence.replace("(", r"\(").replace("+", r"\+")) as problem:
        experiment(data).federation()
    assert "\n" not in str(problem.value)


# text


@pytest.mark.parametrize("algorithm", [AVERAGE, {"name": "WeCFL", "n_clusters": 2}])
def test_shakespeare_by_role_trains(data_files, algorithm):
    asked = experiment({"source": "shakespeare"}, {"name": "char_lstm", "hidden": 16}, 4, algorithm)
    made = asked.federation()
    source = load("shakespeare", data_files)
    assert (made.task, made.n_outputs) == ("next-character", len(source.classes))
    assert made.ids == tuple(f"a play/role {i}" for i in range(6))
    assert made.train.y.shape[1:] == made.train.x.shape[1:]
    assert torch.equal(made.train.x[made.train.at][:, 1:], made.train.y[:, :-1])  # the next characters
    summary, losses = played(asked)
    assert losses[-1] < losses[0] < np.log(made.n_outputs)
    assert summary["outputs"] == made.n_outputs


def test_wecfl_finds_two_ways_of_speaking(data_files):
    asked = experiment(
        {"source": "shakespeare"}, {"name": "char_lstm", "hidden": 16}, 4, {"name": "WeCFL", "n_clusters": 2}
    )
    simulation = asked.prepare().simulation.coordinator(asked.methods[0].stages)
    finish(simulation)
    found = simulation.finish().importance.argmax(1)
    assert (found == found[0]).tolist() == [True, False] * 3


@pytest.mark.skipif(
    KNOWN["shakespeare"].at(data_folder()) is None,
    reason="Shakespeare is not in the data folder (COTERIE_DATA)",
)
@pytest.mark.parametrize("algorithm", [AVERAGE, {"name": "WeCFL", "n_clusters": 2}])
def test_the_real_plays_train(algorithm):
    data = {"source": "shakespeare", "clients": 6, "train_points": 12, "test_points": 4}
    _, losses = played(experiment(data, {"name": "char_lstm", "hidden": 16}, 3, algorithm))
    assert losses[-1] < losses[0]
