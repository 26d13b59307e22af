"""Starts, stages that end when they have separated, and several tries."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import (
    IFCA,
    FedAvg,
    FedEM,
    FedSoft,
    FedSPD,
    Graph,
    Participation,
    Server,
    Stage,
    Stages,
    Training,
    WeCFL,
)
from coterie.algorithms import OneShot
from coterie.algorithms.initialisation import INITIALISATIONS, initialised
from coterie.backends.evaluation import Result
from coterie.backends.loopback import run_apart
from coterie.backends.simulation import PERTURB, Simulation, hand_over, loss_of_try, perturbed
from coterie.data import from_arrays, regressions
from coterie.data.federation import Federation
from coterie.engine.model import LOSSES, FunctionalModel
from coterie.engine.rows import Rows
from coterie.errors import CoterieError
from coterie.experiment.experiment import parse
from coterie.prng import id_keys
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Messages, Traffic
from coterie.protocol.separation import likeliest_shares, look, mixture_loss, separated
from coterie.protocol.stages import Progress

F64 = torch.float64
TRAINING = Training(learning_rate=0.02, batch_size=10, epochs=2)
GRAPH = Graph("erdos-renyi", degree=4.0)


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def clients(pattern: str = "10:90", **more: int) -> Federation:
    return regressions(
        clients=12, pattern=pattern, sizes=(20, 40), separation=166.0, test_points=5, **{"seed": 7, **more}
    )


def simulation(plan: Stages, data: Federation | None = None, seed: int = 3) -> Simulation:
    return Simulation(linear, data or clients(), plan, seed=seed, dtype=F64, device=torch.device("cpu"))


def played(plan: Stages, data: Federation | None = None, seed: int = 3) -> Simulation:
    one = simulation(plan, data, seed)
    while not one.done:
        one.step()
    return one


def parts(result: Result) -> list[Tensor]:
    return [result.centers, result.importance, result.personal.rows, result.personal.weights]


# what clients see


def scalar_cohort(points: list[list[float]]) -> Cohort:
    """Clients whose only input is 1 and whose model is one number w: its loss on a point y is (w − y)²."""
    data = from_arrays(
        [(torch.ones(len(y), 1), torch.tensor(y)[:, None]) for y in points],
        test_fraction=0.0,
        task="regression",
    )
    model = FunctionalModel(
        lambda: nn.Linear(1, 1, bias=False),
        LOSSES["regression"],
        device=torch.device("cpu"),
        dtype=F64,
        seed=0,
    )
    return Cohort.whole(model, Training(), data.train, id_keys(data.ids), data.task, 0)


def shown(*centers: float, clients: int) -> Messages:
    rows = torch.tensor(centers, dtype=F64)[None, :, None].expand(clients, -1, -1)
    return Messages(torch.arange(clients), {"centers": rows})


def test_shares_are_those_of_a_mixture() -> None:
    """Far from the other center a point is surely of its own: shares are counts, and the loss is their entropy."""
    cohort = scalar_cohort([[0.0, 0.0, 0.0, 100.0], [100.0, 100.0]])
    losses = cohort.losses(shown(0.0, 100.0, clients=2).centers)
    shares = likeliest_shares(cohort, losses)
    torch.testing.assert_close(shares, torch.tensor([[0.75, 0.25], [0.0, 1.0]], dtype=F64))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(mixture_loss(cohort, losses, shares), torch.tensor([entropy, 0.0], dtype=F64))


def test_margin_is_one_for_pure_clients_and_nought_where_centers_are_alike_or_tell_no_client_apart() -> None:
    pure = look(scalar_cohort([[0.0, 0.0], [100.0, 100.0]]), shown(0.0, 100.0, clients=2))
    torch.testing.assert_close(pure["margin"], torch.ones(2, dtype=F64))
    torch.testing.assert_close(pure["loss"], torch.zeros(2, dtype=F64))
    alike = look(scalar_cohort([[0.0, 3.0], [3.0, 3.0]]), shown(1.0, 1.0, clients=2))
    torch.testing.assert_close(alike["margin"], torch.zeros(2, dtype=F64), rtol=0, atol=1e-12)
    halves = look(scalar_cohort([[0.0, 100.0], [100.0, 0.0]]), shown(0.0, 100.0, clients=2))
    torch.testing.assert_close(halves["margin"], torch.zeros(2, dtype=F64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5])
def test_the_margin_of_a_pure_client_is_one_with_any_number_of_clusters(clusters: int) -> None:
    """And 0 with a single one, which nothing can be apart from."""
    margin = look(scalar_cohort([[0.0, 0.0]]), shown(*(100.0 * s for s in range(clusters)), clients=1))[
        "margin"
    ]
    assert float(margin) == pytest.approx(float(clusters > 1))


def test_a_client_remembers_what_it_saw() -> None:
    cohort = scalar_cohort([[0.0, 0.0], [100.0, 100.0]])
    look(cohort, shown(0.0, 100.0, clients=2))
    again = look(cohort, shown(0.0, 100.0, clients=2))
    assert again["moved"].abs().max() < 1e-12
    assert again["grown"].abs().max() < 1e-12
    turned = look(cohort, shown(100.0, 0.0, clients=2))
    torch.testing.assert_close(turned["moved"], torch.ones(2, dtype=F64))


@pytest.mark.parametrize(
    ("margin", "moved", "grown", "expected"),
    [(0.5, 0.0, 0.0, True), (0.05, 0.0, 0.0, False), (0.5, 0.2, 0.0, False), (0.5, 0.0, 0.1, False)],
)
def test_separated_asks_for_a_margin_that_no_longer_grows_and_steady_shares(
    margin: float, moved: float, grown: float, expected: bool
) -> None:
    sent = {n: torch.full((3,), v) for n, v in {"margin": margin, "moved": moved, "grown": grown}.items()}
    assert separated(Messages(torch.arange(3), sent)) is expected
    assert not separated(Messages(torch.arange(0), {}))


# where a run is


def test_course_counts_stages_tries_and_rounds() -> None:
    plan = Stage(IFCA(2), 3, n_init=2).then(Stage(IFCA(2), 4))
    progress = Progress(plan)
    assert progress.planned == 10
    progress.round = 3
    assert (progress.over, progress.done, progress.last_attempt) == (True, False, False)
    progress.go_on()
    assert (progress.stage, progress.attempt, progress.round, progress.before) == (0, 1, 0, 3)
    progress.round, progress.ended = 1, True
    assert (progress.over, progress.planned) == (True, 8)
    progress.go_on()
    assert (progress.stage, progress.attempt, progress.before, progress.planned) == (1, 0, 4, 8)
    progress.round = 4
    assert (progress.done, progress.played) == (True, 8)


def test_a_stage_ends_when_its_centers_have_come_apart(caplog: pytest.LogCaptureFixture) -> None:
    first = Stage(WeCFL(2), 20, TRAINING, until="separated")
    with caplog.at_level(logging.INFO, "coterie"):
        run = played(first.then(Stage(FedEM(2), 2, TRAINING)))
    assert f"the stage ends after {run.progress.played - 2} of at most 20 rounds" in caplog.text
    assert 3 <= run.progress.played < 22  # shares must have been seen to stay
    fixed = Stage(WeCFL(2), run.progress.played - 2, TRAINING)
    same = played(fixed.then(Stage(FedEM(2), 2, TRAINING)))
    for one, other in zip(parts(run.result()), parts(same.result()), strict=True):
        assert torch.equal(one, other)
    assert run.traffic.total() > same.traffic.total()  # looking is not for nothing


def test_a_stage_whose_centers_do_not_come_apart_plays_all_its_rounds() -> None:
    alike = clients("50:50")
    assert played(Stages((Stage(FedAvg(), 4, TRAINING, until="separated"),)), alike).progress.played == 4


def test_the_best_of_several_tries_goes_on() -> None:
    """Each try is played by itself, by hand; the one whose clients have the least loss is what the stage leaves."""
    data = clients("pure")
    run = simulation(Stages((Stage(IFCA(2), 3, TRAINING, n_init=4),)), data)
    ends: list[tuple[float, Tensor]] = []
    while not run.done:
        run.step()
        if run.progress.round == 3 and not run.done:
            offer = run.state.for_everyone().offer(centers=run.state.centers)
            ends.append(
                (
                    float(run.clients.tell(look, offer, run.state.context).loss.mean()),
                    run.state.centers.clone(),
                )
            )
    assert run.progress.played == 12
    offer = run.state.for_everyone().offer(centers=run.state.centers)
    kept = float(run.clients.tell(look, offer, run.state.context).loss.mean())
    best = min(loss for loss, _ in ends)
    assert kept <= best
    assert len({round(loss, 6) for loss, _ in ends}) > 1  # they were different starts
    earlier = any(torch.equal(run.state.centers, centers) for _, centers in ends)
    assert earlier == (kept == best)  # it is one of the first three, or the last, which was better


def test_the_best_try_goes_on_with_what_its_clients_kept() -> None:
    run = simulation(Stages((Stage(FedSoft(2), 2, TRAINING, n_init=3),)), clients("pure"), seed=6)
    ends = []
    while not run.done:
        run.step()
        if run.progress.round == 2 and not run.done:
            ends.append((run.state.centers, run.clients.cohort.client_state.values["row"].clone()))
    best = [row for centers, row in ends if torch.equal(centers, run.state.centers)]
    assert len(best) == 1  # with this seed it is not the last
    assert torch.equal(run.clients.cohort.client_state.values["row"], best[0])


def test_a_try_with_a_loss_that_is_no_number_is_the_worst() -> None:
    seen = [
        loss_of_try(Messages(torch.arange(2), {"loss": torch.tensor([1.0, last])}))
        for last in (3.0, torch.nan)
    ]
    assert seen == [2.0, torch.inf]


def test_tries_end_where_that_try_alone_would_have() -> None:
    """Of one try and of three, the first random start is the same."""
    one, three = (simulation(Stages((Stage(IFCA(2), 3, TRAINING, n_init=n),))) for n in (1, 3))
    for _ in range(3):
        one.step()
        three.step()
    assert torch.equal(one.state.centers, three.state.centers)


@pytest.mark.parametrize("seconds", range(1, 9))
def test_tries_and_early_ends_are_resumed_to_the_bit(seconds: int) -> None:
    data = clients("pure")
    plan = Stage(IFCA(2), 2, TRAINING, n_init=3).then(Stage(FedSoft(2), 9, TRAINING, until="separated"))
    straight = played(plan, data)
    first = simulation(plan, data)
    for _ in range(seconds):
        first.step()
    second = simulation(plan, data)
    tensors, numbers = first.save()
    second.load({n: t.clone() for n, t in tensors.items()}, dict(numbers))
    while not second.done:
        second.step()
    assert second.progress.played == straight.progress.played
    assert second.traffic == straight.traffic
    for one, other in zip(parts(second.result(final=True)), parts(straight.result(final=True)), strict=True):
        assert torch.equal(one, other)


def test_what_was_tried_is_loaded_by_clients_in_another_order() -> None:
    data, plan, order = (
        clients("pure"),
        Stages((Stage(FedSoft(2), 2, TRAINING, n_init=2),)),
        [*range(5, 12), *range(5)],
    )
    run, again = simulation(plan, data), simulation(plan, data.permuted(order))
    for _ in range(3):
        run.step()
    again.load(*run.save())
    assert run.best is not None
    assert again.best is not None
    assert again.best.loss == run.best.loss
    memories = (
        (run.best.client_state, again.best.client_state),
        (run.clients.cohort.client_state, again.clients.cohort.client_state),
    )
    for (old, new), (was, now) in zip(
        memories, ((run.best.state, again.best.state), (run.state, again.state)), strict=True
    ):
        assert torch.equal(new.values["row"], old.values["row"][order])
        assert torch.equal(now.share, was.share[order])
        assert torch.equal(now.centers, was.centers)
    assert not torch.equal(run.best.state.centers, run.state.centers)


# from one stage to the next


@pytest.mark.parametrize(
    ("before", "after"), [(Server(), GRAPH), (GRAPH, Server()), (GRAPH, GRAPH), (Server(), Server())]
)
def test_centers_that_somebody_else_is_to_hold_are_sent(
    before: Server | Graph, after: Server | Graph
) -> None:
    held = (
        torch.arange(60, dtype=F64).view(3, 2, 10)
        if isinstance(before, Graph)
        else torch.ones(1, 2, 10, dtype=F64)
    )
    one, two = (Stage(IFCA(2), 1, topology=where) for where in (before, after))
    traffic = Traffic()
    given = hand_over(one, two, held, Rows(linear()), 3, 0, traffic)
    sent = 3 * 2 * 10 * 8  # clients, clusters, numbers, bytes
    down, up = (sent * ((before, after) == way) for way in ((Server(), GRAPH), (GRAPH, Server())))
    assert traffic == Traffic(messages=3 if before != after else 0, down=down, up=up)
    assert torch.equal(given, held.mean(0, keepdim=True) if up else held)


# one model to several centers


def test_one_model_is_pushed_every_way_alike() -> None:
    rows = Rows(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    model = torch.arange(2 * rows.width, dtype=F64).view(2, 1, -1) / 10
    centers = perturbed(model, 3, rows, seed=5)
    assert centers.shape == (2, 3, rows.width)
    n = rows.n_parameters
    torch.testing.assert_close(centers.mean(1, keepdim=True), model)  # the pushes cancel
    assert torch.equal(centers[:, :, n:], model.expand(-1, 3, -1)[:, :, n:])  # statistics are not pushed
    push = centers[..., :n] - model[..., :n]
    size = model[..., :n].square().mean((1, 2)).sqrt()
    torch.testing.assert_close(push[0] / size[0], push[1] / size[1])  # the same way for all listeners
    assert 0.5 * PERTURB < float((push[0] / size[0]).std()) < 1.5 * PERTURB


def test_a_warm_up_leaves_one_model_and_the_next_stage_starts_around_it() -> None:
    plan = Stage(FedAvg(), 2, TRAINING).then(Stage(IFCA(2), 1, TRAINING))
    run = simulation(plan)
    run.step()
    run.step()
    model = run.state.centers.clone()
    run._go_on()
    torch.testing.assert_close(run.state.centers.mean(1, keepdim=True), model)
    assert not torch.equal(run.state.centers[:, 0], run.state.centers[:, 1])


def test_a_method_that_begins_at_one_model_may_follow_a_warm_up() -> None:
    run = simulation(Stage(FedAvg(), 1, TRAINING).then(Stage(WeCFL(2), 1, TRAINING)))
    run.step()
    model = run.state.centers[:, 0].clone()
    run._go_on()
    assert torch.equal(run.state.centers[:, 0], model)
    with pytest.raises(CoterieError, match="WeCFL begins at one common model"):
        simulation(Stage(IFCA(2), 1, TRAINING).then(Stage(WeCFL(2), 1, TRAINING)))


# starts


@pytest.mark.parametrize("topology", [Server(), GRAPH], ids=["server", "graph"])
@pytest.mark.parametrize("start", INITIALISATIONS)
def test_every_start_apart_as_together(start: str, topology: Server | Graph) -> None:
    stage = Stage(FedEM(2), 9, TRAINING, topology, Participation(absent=0.1))
    if start == "several" and not topology.is_server:
        with pytest.raises(CoterieError, match="init is 'several', but over a graph nobody can compare them"):
            initialised(stage, start)
        return
    plan = initialised(stage, start)
    together = played(plan)
    assert together.progress.planned <= 9
    apart, traffic = run_apart(linear, clients(), plan, seed=3)
    for one, other in zip(parts(apart), parts(together.result(final=True)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)
    if topology.is_server:
        traffic.to_clients(together.stage.algorithm.final_offer(together.state.for_everyone()))
    assert traffic == together.traffic


@pytest.mark.parametrize("rounds", [2, 3, 4, 7, 11, 30])
def test_a_start_takes_no_more_than_half_of_the_rounds(rounds: int) -> None:
    for start in INITIALISATIONS:
        plan = initialised(Stage(FedSoft(2), rounds), start)
        assert sum(stage.rounds * stage.n_init for stage in plan) == rounds
        assert plan[-1].rounds >= rounds / 2
        assert plan[-1].algorithm == FedSoft(2)


def test_no_start_is_made_for_one_cluster_or_one_round() -> None:
    for stage in (Stage(FedSPD(1), 30), Stage(FedSPD(2), 1), Stage(FedSPD(2), 0)):
        assert initialised(stage, "clients") == (stage,)


def test_a_function_of_ones_own_is_a_start() -> None:
    def twice(stage: Stage) -> Stages:
        return replace(stage, rounds=1).then(stage)

    run = coterie.run(linear, clients(), IFCA(2), rounds=2, init=twice, training=TRAINING)
    assert run.summary["rounds"] == 3


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"init is 'lucky'; allowed is one of random, several"):
        coterie.run(linear, clients(), IFCA(2), init="lucky")
    with pytest.raises(CoterieError, match=r"init is given beside stages"):
        coterie.run(linear, clients(), Stage(IFCA(2), 2), init="soft")


# in TOML


def written(**more: object) -> dict[str, object]:
    table: dict[str, object] = {
        "rounds": 12,
        "data": {"source": "regressions", "clients": 6},
        "model": {"name": "linear"},
        "algorithm": {"name": "IFCA", "n_clusters": 2},
    }
    return {**table, **more}


def test_a_start_is_named_in_toml_and_makes_stages() -> None:
    experiment = parse(written(init="clients"))
    (method,) = experiment.methods
    assert method.label == "IFCA"
    assert [(s.algorithm.title(), s.rounds, s.until) for s in method.stages] == [
        ("WeCFL", 4, "separated"),
        ("IFCA", 8, "rounds"),
    ]
    again = parse(coterie.toml.read(experiment.resolved(), "resolved"), name="experiment")
    assert again.methods == experiment.methods


def test_the_papers_own_start_stays_what_it_is_when_written_out() -> None:
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


def test_tries_and_until_are_settings_of_a_stage() -> None:
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


def test_tries_and_until_of_the_file_are_those_of_its_methods_and_stages() -> None:
    table = written(n_init=3, until="separated", init="random")
    lone = {"algorithm": table.pop("algorithm")}
    own = {**lone, "label": "own", "n_init": 2, "until": "rounds"}
    staged = {"label": "staged", "stage": [lone, lone]}
    methods = parse({**table, "method": [lone, own, staged]}).methods
    found = [[(stage.n_init, stage.until) for stage in method.stages] for method in methods]
    assert found == [[(3, "separated")], [(2, "rounds")], [(3, "separated"), (1, "separated")]]


# one shot


def test_one_shot_finds_clusters_once_and_takes_in_those_who_come_later() -> None:
    data = clients("pure")
    long = replace(TRAINING, epochs=20)
    run = simulation(Stages((Stage(OneShot(2), 3, long, participation=Participation(absent=0.5)),)), data)
    run.step()
    first = run.state.member[run.state.clustered].clone()
    known = run.state.clustered.clone()
    while not run.done:
        run.step()
    assert torch.equal(run.state.member[known], first)  # it never asks again
    assert data.mixture is not None
    whole = data.mixture.argmax(1)[run.state.clustered]
    found = run.state.member[run.state.clustered]
    assert torch.equal(found, whole) or torch.equal(found, 1 - whole)


def test_one_shot_warns_where_fewer_clients_are_heard_than_there_are_clusters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = Participation(fraction=0.15)  # 2 of 12
    run = played(Stages((Stage(OneShot(4), 4, TRAINING, participation=few),)), clients("pure"))
    assert caplog.messages == ["2 clients were heard, too few to find 4 clusters at once"]
    assert int(run.state.clustered.sum()) > 2
    assert run.state.centers.isfinite().all()


def test_every_docstring_states_the_start_that_is_taken() -> None:
    for kind in coterie.ALGORITHMS.values():
        if "n_clusters" in kind.__dataclass_fields__ and not kind.title().endswith("+"):
            said = next(line for line in (kind.__doc__ or "").splitlines() if "Initialisation:" in line)
            for start in {kind.init_at_server, *(() if kind.needs_server else (kind.init_over_graph,))}:
                assert f"`{start}`" in said or kind.title() == "OneShot", kind.title()


def test_a_lone_algorithm_takes_its_own_start_and_the_papers_is_selectable() -> None:
    own = initialised(Stage(FedSPD(2), 30, topology=GRAPH))
    assert [stage.algorithm.title() for stage in own] == ["FedSoft", "FedSPD"]
    assert all(stage.topology == GRAPH for stage in own)  # so with no server at all
    assert [stage.algorithm.title() for stage in initialised(Stage(FedSPD(2), 30))] == ["WeCFL", "FedSPD"]
    assert initialised(Stage(FedSPD(2), 30), "random") == (Stage(FedSPD(2), 30),)


def test_starts_that_an_algorithm_cannot_have_are_refused() -> None:
    with pytest.raises(
        CoterieError, match="init needs centers, but WeCFL begins at one model; allowed is random"
    ):
        initialised(Stage(WeCFL(2), 9), "soft")
    assert [s.algorithm.title() for s in initialised(Stage(WeCFL(2), 9), "warm-up")] == ["FedAvg", "WeCFL"]
    with pytest.raises(CoterieError, match="WeCFL needs a server"):
        coterie.run(linear, clients(), WeCFL(2), topology=GRAPH, init="several")
    private = Stage(IFCA(2), 9, privacy=coterie.Privacy(noise=1.0))
    with pytest.raises(CoterieError, match="init is 'several', but privacy does not cover their losses"):
        initialised(private, "several")
    assert [stage.until for stage in initialised(private, "clients")] == ["rounds", "rounds"]


def test_tries_are_of_random_starts() -> None:
    with pytest.raises(
        CoterieError, match="n_init is 3; allowed is 1 where an initialisation finds the centers"
    ):
        parse(written(n_init=3))
    assert parse(written(n_init=3, init="random")).methods[0].stages[0].n_init == 3


def test_a_start_that_clusters_clients_invites_them_all() -> None:
    few = Participation(0.2, select="loss", candidates=5)
    first, rest = initialised(Stage(IFCA(2), 9, participation=few), "clients")
    assert first.participation == Participation()
    assert rest.participation == few


def test_what_belongs_to_stages_is_refused_beside_them() -> None:
    for name, value in {"training": TRAINING, "topology": GRAPH, "participation": Participation(0.5)}.items():
        with pytest.raises(CoterieError, match=f"{name} is given beside stages"):
            coterie.run(linear, clients(), Stage(IFCA(2), 2), **{name: value})
    for wrong in ("FedAvg", FedAvg):
        with pytest.raises(CoterieError, match=r"such as coterie\.FedAvg"):
            coterie.run(linear, clients(), wrong)  # type: ignore[arg-type]
