"""Stages: their progress, early ends, the best of several attempts, and what one hands to the next."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from coterie import IFCA, FedAvg, FedEM, FedSoft, Graph, Server, Stage, Stages, WeCFL
from coterie.data.federation import Federation
from coterie.engine.rows import Rows
from coterie.errors import CoterieError
from coterie.protocol import separation
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Fields, Messages
from coterie.protocol.round import PERTURB, hand_over, perturbed
from coterie.protocol.stages import Progress
from coterie.protocol.traffic import Traffic
from tests import builders
from tests.builders import F64, TRAINING, finish, larger_clients, linear, parts

GRAPH = Graph("erdos-renyi", degree=4.0)


def simulation(plan: Stages, data: Federation | None = None, seed: int = 3) -> Coordinator:
    return builders.simulation(plan, data or larger_clients(), seed=seed)


def test_progress_counts_stages_attempts_and_rounds() -> None:
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


def test_a_stage_ends_when_its_centers_are_separated(caplog: pytest.LogCaptureFixture) -> None:
    first = Stage(WeCFL(2), 20, TRAINING, until="separated")
    with caplog.at_level(logging.INFO, "coterie"):
        run = finish(simulation(first.then(Stage(FedEM(2), 2, TRAINING))))
    assert f"the stage ends after {run.progress.played - 2} of at most 20 rounds" in caplog.text
    assert 3 <= run.progress.played < 22  # importance must have been seen to stay
    fixed = Stage(WeCFL(2), run.progress.played - 2, TRAINING)
    same = finish(simulation(fixed.then(Stage(FedEM(2), 2, TRAINING))))
    for one, other in zip(parts(run.finish()), parts(same.finish()), strict=True):
        assert torch.equal(one, other)
    assert run.traffic.total() > same.traffic.total()  # measuring the separation costs traffic


def test_a_stage_whose_centers_are_not_separated_plays_all_its_rounds() -> None:
    alike = larger_clients("50:50")
    run = finish(simulation(Stages((Stage(FedAvg(), 4, TRAINING, until="separated"),)), alike))
    assert run.progress.played == 4


def test_the_best_of_several_attempts_goes_on() -> None:
    """Each try is played by itself, by hand; the one whose clients have the least loss is what the stage leaves."""
    data = larger_clients("pure")
    run = simulation(Stages((Stage(IFCA(2), 3, TRAINING, n_init=4),)), data)
    ends: list[tuple[float, Tensor]] = []
    while not run.done:
        run.step()
        if run.progress.round == 3 and not run.done:
            offer = run.state.for_everyone().offer(centers=run.state.centers)
            ends.append(
                (
                    float(run.clients.ask("separation", offer, run.state.context).loss.mean()),
                    run.state.centers.clone(),
                )
            )
    assert run.progress.played == 12
    offer = run.state.for_everyone().offer(centers=run.state.centers)
    kept = float(run.clients.ask("separation", offer, run.state.context).loss.mean())
    best = min(loss for loss, _ in ends)
    assert kept <= best
    assert len({round(loss, 6) for loss, _ in ends}) > 1  # they were different initialisations
    earlier = any(torch.equal(run.state.centers, centers) for _, centers in ends)
    assert earlier == (kept == best)  # it is one of the first three, or the last, which was better


def test_the_best_attempt_goes_on_with_what_its_clients_kept() -> None:
    run = simulation(Stages((Stage(FedSoft(2), 2, TRAINING, n_init=3),)), larger_clients("pure"), seed=6)
    ends = []
    while not run.done:
        run.step()
        if run.progress.round == 2 and not run.done:
            ends.append((run.state.centers, run.clients.cohort.client_state.values["row"].clone()))
    best = [row for centers, row in ends if torch.equal(centers, run.state.centers)]
    assert len(best) == 1  # with this seed it is not the last
    assert torch.equal(run.clients.cohort.client_state.values["row"], best[0])


def test_an_attempt_with_a_loss_that_is_no_number_is_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three has the least loss by far, but for one client."""
    measured, losses = separation.measure, iter([3.0, 0.0, 2.0])

    def loss(cohort: Cohort, offer: Messages) -> Fields:
        found = {**measured(cohort, offer)}
        found["loss"] = torch.full_like(found["loss"], next(losses))
        found["loss"][0] = torch.nan if found["loss"][0] == 0 else found["loss"][0]
        return found

    monkeypatch.setattr(separation, "measure", loss)
    run, kept = simulation(Stages((Stage(IFCA(2), 2, TRAINING, n_init=3),))), []
    while not run.done:
        run.step()
        kept.append(None if run.best is None else run.best.loss)
    assert kept == [None, 3.0, 3.0, 3.0, 3.0, None]


def test_attempts_end_where_that_attempt_alone_would_have() -> None:
    """Of one attempt and of three, the first random initialisation is the same."""
    one, three = (simulation(Stages((Stage(IFCA(2), 3, TRAINING, n_init=n),))) for n in (1, 3))
    for _ in range(3):
        one.step()
        three.step()
    assert torch.equal(one.state.centers, three.state.centers)


@pytest.mark.parametrize("seconds", range(1, 9))
def test_attempts_and_early_ends_are_resumed_to_the_bit(seconds: int) -> None:
    data = larger_clients("pure")
    plan = Stage(IFCA(2), 2, TRAINING, n_init=3).then(Stage(FedSoft(2), 9, TRAINING, until="separated"))
    straight = finish(simulation(plan, data))
    first = simulation(plan, data)
    for _ in range(seconds):
        first.step()
    second = simulation(plan, data)
    tensors, numbers = first.save()
    second.load({n: t.clone() for n, t in tensors.items()}, dict(numbers))
    finish(second)
    assert second.progress.played == straight.progress.played
    assert second.traffic == straight.traffic
    for one, other in zip(parts(second.finish()), parts(straight.finish()), strict=True):
        assert torch.equal(one, other)


def test_what_was_tried_is_loaded_by_clients_in_another_order() -> None:
    data, plan, order = (
        larger_clients("pure"),
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
        (run.clients.client.best, again.clients.client.best),
        (run.clients.cohort.client_state, again.clients.cohort.client_state),
    )
    for (old, new), (was, now) in zip(
        memories, ((run.best.state, again.best.state), (run.state, again.state)), strict=True
    ):
        assert torch.equal(new.values["row"], old.values["row"][order])
        assert torch.equal(now.importance, was.importance[order])
        assert torch.equal(now.centers, was.centers)
    assert not torch.equal(run.best.state.centers, run.state.centers)


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
    torch.testing.assert_close(push[0] / size[0], push[1] / size[1])  # the same way for all aggregators
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
