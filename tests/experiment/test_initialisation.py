"""Initialisation, attempts and early ends, as an experiment file names them."""

from __future__ import annotations

import pytest

import coterie
from coterie.errors import CoterieError
from coterie.experiment.experiment import parse


def written(**more: object) -> dict[str, object]:
    table: dict[str, object] = {
        "rounds": 12,
        "data": {"source": "regressions", "clients": 6},
        "model": {"name": "linear"},
        "algorithm": {"name": "IFCA", "n_clusters": 2},
    }
    return {**table, **more}


def test_an_initialisation_is_named_in_toml_and_makes_stages() -> None:
    experiment = parse(written(init="clients"))
    (method,) = experiment.methods
    assert method.label == "IFCA"
    assert [(s.algorithm.title(), s.rounds, s.until) for s in method.stages] == [
        ("WeCFL", 4, "separated"),
        ("IFCA", 8, "rounds"),
    ]
    again = parse(coterie.toml.read(experiment.resolved(), "resolved"), name="experiment")
    assert again.methods == experiment.methods


def test_the_papers_own_initialisation_stays_what_it_is_when_written_out() -> None:
    experiment = parse(written(init="random"))
    assert len(experiment.methods[0].stages) == 1
    again = parse(coterie.toml.read(experiment.resolved(), "resolved"), name="experiment")
    assert again.methods == experiment.methods


def test_a_list_of_stages_is_played_as_it_is_written() -> None:
    table = written()
    stage = {"rounds": 3, "algorithm": table.pop("algorithm")}
    assert len(parse({**table, "stage": [stage]}).methods[0].stages) == 1
    with pytest.raises(
        CoterieError, match=r"^init is 'soft'; allowed is none beside stages; stage\.0\.init is"
    ):
        parse({**table, "init": "soft", "stage": [stage]})
    assert len(parse({**table, "stage": [{**stage, "init": "soft"}]}).methods[0].stages) == 2
    with pytest.raises(CoterieError, match=r"stage\.1\.init is 'soft'; allowed is none in stage 1"):
        parse({**table, "stage": [stage, {**stage, "init": "soft"}]})


def test_n_init_and_until_are_settings_of_a_stage() -> None:
    experiment = parse(written(init="random", n_init=3, until="separated"))
    assert (experiment.methods[0].stages[0].n_init, experiment.methods[0].stages[0].until) == (3, "separated")
    with pytest.raises(CoterieError, match="until is 'soon'"):
        parse(written(until="soon"))
    with pytest.raises(CoterieError, match="n_init is 2; allowed is 1 where no round is played"):
        parse(written(init="random", n_init=2, rounds=0))
    with pytest.raises(CoterieError, match="n_init is 2; allowed is 1 over a graph"):
        parse(written(init="random", n_init=2, topology={"kind": "complete"}))
    with pytest.raises(CoterieError, match="init is 'lucky'"):
        parse(written(init="lucky"))


def test_n_init_and_until_of_the_file_are_those_of_its_methods_and_stages() -> None:
    table = written(n_init=3, until="separated", init="random")
    lone = {"algorithm": table.pop("algorithm")}
    own = {**lone, "label": "own", "n_init": 2, "until": "rounds"}
    staged = {"label": "staged", "stage": [lone, lone]}
    methods = parse({**table, "method": [lone, own, staged]}).methods
    found = [[(stage.n_init, stage.until) for stage in method.stages] for method in methods]
    assert found == [[(3, "separated")], [(2, "rounds")], [(3, "separated"), (1, "separated")]]


def test_n_init_is_of_random_initialisations() -> None:
    with pytest.raises(
        CoterieError, match="n_init is 3; allowed is 1 where an initialisation finds the centers"
    ):
        parse(written(n_init=3))
    assert parse(written(n_init=3, init="random")).methods[0].stages[0].n_init == 3
