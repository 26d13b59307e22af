"""How centers are initialised before a clustered algorithm goes on, from Python."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import coterie
from coterie import IFCA, FedAvg, FedEM, FedSoft, FedSPD, Graph, Participation, Server, Stage, Stages, WeCFL
from coterie.algorithms.initialisation import INITIALISATIONS, initialised
from coterie.errors import CoterieError
from tests.builders import TRAINING, apart, finish, larger_clients, linear, parts, simulation

GRAPH = Graph("erdos-renyi", degree=4.0)


@pytest.mark.parametrize("topology", [Server(), GRAPH], ids=["server", "graph"])
@pytest.mark.parametrize("init", INITIALISATIONS)
def test_every_initialisation_apart_as_together(init: str, topology: Server | Graph) -> None:
    stage = Stage(FedEM(2), 9, TRAINING, topology, Participation(absent=0.1))
    if init == "several" and not topology.is_server:
        with pytest.raises(CoterieError, match="init is 'several', but over a graph nobody can compare them"):
            initialised(stage, init)
        return
    plan = initialised(stage, init)
    together = finish(simulation(plan, larger_clients()))
    assert together.progress.planned <= 9
    alone, traffic = apart(linear, larger_clients(), plan, seed=3)
    for one, other in zip(parts(alone), parts(together.finish()), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)
    assert traffic == together.traffic


@pytest.mark.parametrize("rounds", [2, 3, 4, 7, 11, 30])
def test_an_initialisation_takes_no_more_than_half_of_the_rounds(rounds: int) -> None:
    for init in INITIALISATIONS:
        plan = initialised(Stage(FedSoft(2), rounds), init)
        assert sum(stage.rounds * stage.n_init for stage in plan) == rounds
        assert plan[-1].rounds >= rounds / 2
        assert plan[-1].algorithm == FedSoft(2)


def test_no_initialisation_is_made_for_one_cluster_or_one_round() -> None:
    for stage in (Stage(FedSPD(1), 30), Stage(FedSPD(2), 1), Stage(FedSPD(2), 0)):
        assert initialised(stage, "clients") == (stage,)


def test_a_function_of_ones_own_is_an_initialisation() -> None:
    def twice(stage: Stage) -> Stages:
        return replace(stage, rounds=1).then(stage)

    run = coterie.run(linear, larger_clients(), IFCA(2), rounds=2, init=twice, training=TRAINING)
    assert run.summary["rounds"] == 3


def test_an_unknown_initialisation_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"init is 'lucky'; allowed is one of random, several"):
        coterie.run(linear, larger_clients(), IFCA(2), init="lucky")
    with pytest.raises(CoterieError, match=r"init is given beside stages"):
        coterie.run(linear, larger_clients(), Stage(IFCA(2), 2), init="soft")


def test_every_docstring_states_the_initialisation_that_is_taken() -> None:
    for kind in coterie.ALGORITHMS.values():
        if "n_clusters" in kind.__dataclass_fields__ and not kind.title().endswith("+"):
            said = next(line for line in (kind.__doc__ or "").splitlines() if "Initialisation:" in line)
            for init in {kind.init_at_server, *(() if kind.needs_server else (kind.init_over_graph,))}:
                assert f"`{init}`" in said or kind.title() == "OneShot", kind.title()


def test_a_lone_algorithm_takes_its_own_initialisation_and_the_papers_is_selectable() -> None:
    own = initialised(Stage(FedSPD(2), 30, topology=GRAPH))
    assert [stage.algorithm.title() for stage in own] == ["Corners", "FedSPD"]
    assert all(stage.topology == GRAPH for stage in own)  # so with no server at all
    assert [stage.algorithm.title() for stage in initialised(Stage(FedSPD(2), 30))] == ["WeCFL", "FedSPD"]
    assert initialised(Stage(FedSPD(2), 30), "random") == (Stage(FedSPD(2), 30),)


def test_initialisations_that_an_algorithm_cannot_have_are_refused() -> None:
    with pytest.raises(
        CoterieError, match="init needs centers, but WeCFL begins at one model; allowed is random"
    ):
        initialised(Stage(WeCFL(2), 9), "soft")
    assert [s.algorithm.title() for s in initialised(Stage(WeCFL(2), 9), "warm-up")] == ["FedAvg", "WeCFL"]
    with pytest.raises(CoterieError, match="WeCFL needs a server"):
        coterie.run(linear, larger_clients(), WeCFL(2), topology=GRAPH, init="several")
    private = Stage(IFCA(2), 9, privacy=coterie.Privacy(noise=1.0))
    with pytest.raises(CoterieError, match="init is 'several', but privacy does not cover their losses"):
        initialised(private, "several")
    assert [stage.until for stage in initialised(private, "clients")] == ["rounds", "rounds"]


def test_an_initialisation_that_clusters_clients_invites_them_all() -> None:
    few = Participation(0.2, select="loss", candidates=5)
    first, rest = initialised(Stage(IFCA(2), 9, participation=few), "clients")
    assert first.participation == Participation()
    assert rest.participation == few


def test_what_belongs_to_stages_is_refused_beside_them() -> None:
    for name, value in {"training": TRAINING, "topology": GRAPH, "participation": Participation(0.5)}.items():
        with pytest.raises(CoterieError, match=f"{name} is given beside stages"):
            coterie.run(linear, larger_clients(), Stage(IFCA(2), 2), **{name: value})
    for wrong in ("FedAvg", FedAvg):
        with pytest.raises(CoterieError, match=r"such as coterie\.FedAvg"):
            coterie.run(linear, larger_clients(), wrong)  # type: ignore[arg-type]
