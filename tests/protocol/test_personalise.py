"""Ways to a personal model, and the client's choice among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import (
    CFL,
    IFCA,
    FedAvg,
    FedAvgPlus,
    FedEM,
    FedSPD,
    Graph,
    Local,
    Privacy,
    Stage,
    Stages,
    Training,
    WeCFL,
)
from coterie.errors import CoterieError
from coterie.protocol import personalise
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.personal import Personal
from tests.builders import F64, MOMENTUM, TRAINING, clients, finish, messages, one_number_cohort, simulation

STEP = Training(learning_rate=0.1, batch_size=None, epochs=1)


def offered(cohort: Cohort, *centers: float, **more: float) -> Messages:
    offer = messages(list(range(len(cohort))), centers=[[[c] for c in centers]] * len(cohort))
    fields = {name: torch.full((len(cohort), 1), value, dtype=F64) for name, value in more.items()}
    return Messages(offer.clients, {**offer.fields, **fields})


# the ways, by hand: centers 0 and 4, with importance 1/4 and 3/4


@pytest.mark.parametrize(
    ("way", "rows"),
    [("largest", [4.0]), ("parameters", [3.0]), ("mixture", [0.0, 4.0]), ("mean", [2.0]), ("common", [7.0])],
)
def test_a_way_without_a_final_phase(way: str, rows: list[float]) -> None:
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 4, 4, 4]), training=STEP)
    found = personalise.made(way, FedSPD(2), cohort, offered(cohort, 0, 4, common=7))
    assert found.rows[0, :, 0].tolist() == pytest.approx(rows)
    assert found.weights[0].tolist() == pytest.approx([0.25, 0.75] if way == "mixture" else [1.0])


@pytest.mark.parametrize("way", ["largest", "parameters", "mean", "common"])
def test_a_final_phase_trains_on_all_points_at_half_the_first_rate(way: str) -> None:
    """Ten steps of rate 0.1/2 toward 3, the mean of 0, 4, 4 and 4, from wherever the way begins."""
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 4, 4, 4]), training=replace(STEP, schedule="cosine"))
    cohort = cohort.when(RoundContext(0, round=99, rounds=100))  # a schedule that went on would be near 0
    offer = offered(cohort, 0, 4, common=7)
    start = float(personalise.made(way, FedSPD(2), cohort, offer).rows)
    found = personalise.made(f"{way}+final", FedSPD(2), cohort, offer)
    assert float(found.rows) == pytest.approx(3 + (start - 3) * 0.9**10)


def test_the_final_phase_of_a_mixture_trains_each_center_on_its_own_points() -> None:
    cohort = one_number_cohort(([1, 1, 1], [-1, 5, 5]), training=STEP)
    found = personalise.made("mixture+final", FedSPD(2), cohort, offered(cohort, 0, 4))
    assert found.rows[0, :, 0].tolist() == pytest.approx([-1 + 0.9**10, 5 - 0.9**10])


def test_with_hard_clusters_a_mixture_is_the_clients_center() -> None:
    """Its final phase trains it on the points that no other center fits better, here 5 and 5."""
    cohort = one_number_cohort(([1, 1, 1], [-1, 5, 5]), training=STEP)
    for way, row in (("parameters", 4), ("mixture", 4), ("mixture+final", 5 - 0.9**10)):
        found = personalise.made(way, IFCA(2), cohort, offered(cohort, 0, 4))
        assert found.rows.flatten().tolist() == pytest.approx([row])
        assert found.weights.tolist() == [[1]]


def test_a_final_phase_leaves_no_trace_in_what_the_client_keeps() -> None:
    cohort = one_number_cohort(([1, 1], [0, 4]), training=replace(MOMENTUM, batch_size=None))
    personalise.made("mean+final", FedSPD(2), cohort, offered(cohort, 0, 4))
    assert cohort.client_state.values == {}


def test_own_is_what_the_algorithm_does() -> None:
    cohort = one_number_cohort(([1, 1, 1, 1], [0, 4, 4, 4]), training=STEP)
    offer = offered(cohort, 0, 4)
    own, expected = personalise.finish("own", FedSPD(2), cohort, offer), FedSPD(2).finish(cohort, offer)
    assert torch.equal(own.rows, expected.rows)


# the choice


def auto(algorithm: Any, cohort: Cohort, offer: Messages) -> Personal:
    return personalise.finish("auto", algorithm, cohort, offer)


def test_each_client_takes_what_predicts_its_points_best() -> None:
    """Clients whose points are all 4, all 2 or all 7 take the center 4, the mean 2 and the common model 7."""
    cohort = one_number_cohort(
        *(([1] * 20, [y] * 20) for y in (4.0, 2.0, 7.0)), training=replace(STEP, epochs=0)
    )
    offer = offered(cohort, 0, 4, common=7)
    found = auto(FedSPD(2), cohort, offer)
    assert [float((one.rows[:, 0] * one.weights).sum()) for one in each(found)] == pytest.approx([4, 2, 7])
    assert float(cohort.score(found).loss.max()) == pytest.approx(0, abs=1e-12)


def each(personal: Personal) -> list[Any]:
    return [Personal(rows, weights) for rows, weights in zip(personal.rows, personal.weights, strict=True)]


def test_one_that_is_no_mixture_fills_all_parts() -> None:
    """So that all clients send models of one shape; the first part counts."""
    cohort = one_number_cohort(([1] * 20, [2.0] * 20), training=STEP)
    found = auto(FedSPD(2), cohort, offered(cohort, 0, 4))
    assert found.rows.flatten().tolist() == pytest.approx([2, 2])
    assert found.weights.tolist() == [[1, 0]]


def test_points_held_out_are_not_trained_on_and_then_they_are() -> None:
    """Every point but those held out says 3: before the choice no model that is made knows of these."""
    cohort = one_number_cohort(([1] * 20, [3.0] * 20), training=STEP)
    held = personalise.held_out(cohort)
    assert int(held.sum()) == 2
    y = torch.where(held, 100.0, 3.0).to(F64)
    cohort = replace(cohort, points=replace(cohort.points, y=y))
    seen: list[Tensor] = []
    real = personalise.made

    def spied(way: str, algorithm: Any, known: Cohort, offer: Messages) -> Personal:
        seen.append(known.points.y)
        return real(way, algorithm, known, offer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(personalise, "made", spied)
        auto(FedSPD(2), cohort, offered(cohort, 0, 4))
    *scored, last = seen
    assert len(scored) == 8
    assert all(float(points.max()) == 3 for points in scored)
    assert sorted(last.tolist()) == [3.0] * 18 + [100.0] * 2


def test_the_same_points_are_held_out_in_every_round_and_by_each_client_alone() -> None:
    cohort = one_number_cohort(([1] * 230, [0] * 230), ([1] * 4, [0] * 4), ([1], [0]), training=STEP)
    held = personalise.held_out(cohort)
    assert [int(held[cohort.points.owner == i].sum()) for i in (0, 2)] == [23, 0]
    later = cohort.when(RoundContext(0, stage=1, round=7))
    assert torch.equal(personalise.held_out(later), held)
    assert torch.equal(personalise.held_out(cohort.take(torch.tensor([0]))), held[:230])
    assert not torch.equal(personalise.held_out(cohort.when(RoundContext(1))), held)


def test_a_tenth_of_all_points_is_held_out_however_few_a_client_has() -> None:
    """Of 400 clients with 4 points, 40 of 100 hold out one: at least one each would be a quarter of all points."""
    cohort = one_number_cohort(*[([1] * 4, [0.0] * 4)] * 400, training=STEP)
    counts = torch.bincount(cohort.points.owner[personalise.held_out(cohort)], minlength=400)
    assert set(counts.tolist()) == {0, 1}
    assert 0.35 < float(counts.double().mean()) < 0.45


def test_clients_that_held_out_nothing_have_no_say() -> None:
    tried = messages([0, 1, 2], errors=[[1.0, 3.0], [0.0, 0.0], [2.0, 5.0]])
    found = personalise.prior(tried)
    assert found is not None
    assert found.tolist() == [[1.5, 4.0]]
    assert personalise.prior(messages([0], errors=[[0.0, 0.0]])) is None


def test_few_points_follow_the_population_and_many_their_own() -> None:
    """Whatever most clients found, the points of these say 4, the center that they have."""
    cohort = one_number_cohort(([1] * 5, [4.0] * 5), ([1] * 2000, [4.0] * 2000), training=STEP)
    offer = offered(cohort, 0, 4)
    ways = personalise.ways_to_choose(IFCA(2), offer)
    assert ways == ["largest", "mean", "largest+final", "mean+final", "mixture+final"]
    liked = torch.tensor([[5.0, 1.0, 5.0, 5.0, 5.0]], dtype=F64).expand(2, -1)  # the mean of all centers
    choice = personalise._choice(IFCA(2), cohort, Messages(offer.clients, {**offer.fields, "prior": liked}))
    assert [ways[i] for i in choice.tolist()] == ["mean", "largest"]
    alone = personalise._choice(IFCA(2), cohort, offer)
    assert [ways[i] for i in alone.tolist()] == ["largest", "largest"]


def test_a_client_with_one_point_takes_the_first_way_or_that_of_the_population() -> None:
    cohort = one_number_cohort(([1], [100.0]), training=STEP)
    offer = offered(cohort, 0, 4)
    assert personalise._choice(FedSPD(2), cohort, offer).tolist() == [0]
    liked = torch.arange(8, 0, -1, dtype=F64)[None]
    offer = Messages(offer.clients, {**offer.fields, "prior": liked})
    assert personalise._choice(FedSPD(2), cohort, offer).tolist() == [7]


def test_a_way_that_diverged_is_not_chosen_and_does_not_spoil_the_mean_of_all() -> None:
    cohort = one_number_cohort(([1] * 10, [1.0] * 10), ([1] * 10, [1.0] * 10), training=STEP)
    offer = offered(cohort, 1, 1, common=float("nan"))
    sent = personalise.try_all(FedSPD(2), cohort, offer)["errors"]
    ways = personalise.ways_to_choose(FedSPD(2), offer)
    assert sent.isfinite().all()
    assert set(sent.argmax(1).tolist()) <= {ways.index("common"), ways.index("common+final")}
    assert auto(FedSPD(2), cohort, offer).rows.isfinite().all()


def test_what_is_kept_counts_at_the_end() -> None:
    """The centers have since been trained on the points held out; the choice is the one made before."""
    cohort = one_number_cohort(([1] * 20, [4.0] * 20), training=STEP)
    personalise.try_all(IFCA(2), cohort, offered(cohort, 0, 8))  # the mean is the best
    assert auto(IFCA(2), cohort, offered(cohort, 4, 10)).rows.flatten().tolist() == pytest.approx([7])


# in a run


def plan(algorithm: Any, rounds: int = 8, **more: Any) -> Stages:
    return Stages((Stage(algorithm, rounds, TRAINING, personal="auto", **more),))


@pytest.mark.parametrize(("rounds", "after"), [(1, 1), (3, 3), (4, 3), (8, 6), (20, 15)])
def test_clients_hold_out_until_they_choose(rounds: int, after: int) -> None:
    """As the sizes that they send say."""
    run, full = simulation(plan(WeCFL(2), rounds)), clients().train.sizes
    for number in range(rounds):
        sizes = run.step().size
        cohort = run.clients.cohort  # type: ignore[attr-defined]
        held = torch.bincount(cohort.points.owner[personalise.held_out(cohort)], minlength=12)
        assert 0 < int(held.sum()) < 0.15 * int(full.sum())
        assert torch.equal(sizes, full - held if number < after else full)


def test_the_common_model_is_fedavg_on_the_points_that_are_not_held_out() -> None:
    """By hand, the first round: every client trains the model that FedAvg begins with; the mean is by size."""
    run = simulation(plan(IFCA(2)))
    assert run.common is not None
    begun = run.common.clone()
    assert torch.equal(begun, simulation(Stages((Stage(FedAvg(), 1, TRAINING),))).state.centers)
    run.step()
    cohort = run.clients.cohort.when(run.state.context)  # type: ignore[attr-defined]
    known = replace(cohort, points=cohort.points.only(~personalise.held_out(cohort)))
    rows = known.solve(begun[0].expand(12, -1), purpose="common")
    weight = known.sizes.double()
    torch.testing.assert_close(run.common[0, 0], weight @ rows / weight.sum())


def test_over_a_graph_there_is_no_common_model_but_what_others_found() -> None:
    run = finish(simulation(plan(FedSPD(2), 4, topology=Graph("complete"))))
    assert run.common is None
    assert run.prior is not None
    assert run.prior.shape == (1, 8)
    assert run.finish().personal.rows.isfinite().all()


def test_privacy_does_not_cover_what_clients_send_to_choose() -> None:
    with pytest.raises(CoterieError, match="personal is 'auto'; allowed is another than 'auto' with privacy"):
        Stage(FedSPD(2), 4, personal="auto", privacy=Privacy(noise=0.5))
    Stage(FedSPD(2), 4, personal="mixture", privacy=Privacy(noise=0.5))


def test_the_prior_is_the_mean_of_what_clients_found() -> None:
    run = finish(simulation(plan(FedEM(2), 4)))
    cohort = run.clients.cohort  # type: ignore[attr-defined]
    kept = cohort.recall("errors of ways", torch.full((12, 10), torch.nan, dtype=F64))
    assert run.prior is not None
    torch.testing.assert_close(run.prior[0], kept.mean(0))


@pytest.mark.parametrize("algorithm", [FedAvg(), Local(), FedAvgPlus(2)])
def test_methods_without_clusters_have_nothing_to_choose(algorithm: Any) -> None:
    with pytest.raises(
        CoterieError, match=r"personal is 'auto'; allowed is 'own' for .*, which has no clusters"
    ):
        simulation(plan(algorithm))


def test_a_method_that_finds_its_clusters_itself_chooses_among_them() -> None:
    found = finish(simulation(plan(CFL(), 4))).finish()
    assert found.personal.rows.shape[:2] == (12, 1)


def test_other_stages_print_as_before() -> None:
    """Noise is drawn by how a run prints, and clients' folders are named by it."""
    assert "personal" not in repr(Stage(FedSPD(2), 3))
    assert repr(Stage(FedSPD(2), 3)).startswith("Stage(algorithm=FedSPD(n_clusters=2, final_epochs=10")
    assert repr(Stage(FedSPD(2), 3, personal="auto")).endswith("n_init=1, personal='auto')")


def test_of_several_attempts_the_best_ones_errors_count() -> None:
    """The last attempt need not be the best; resumed in the middle of it, all is as it was."""
    stages = plan(IFCA(2), 4, n_init=3)
    straight, first, second = (simulation(stages) for _ in range(3))
    for _ in range(9):
        first.step()
    tensors, numbers = first.save()
    second.load({name: t.clone() for name, t in tensors.items()}, numbers)
    for run in (finish(straight), finish(second)):
        kept = run.clients.cohort.recall("errors of ways", torch.full((12, 7), torch.nan, dtype=F64))  # type: ignore[attr-defined]
        assert run.prior is not None
        torch.testing.assert_close(run.prior[0], kept.mean(0))
    assert torch.equal(straight.finish().personal.rows, second.finish().personal.rows)


def test_a_private_stage_before_trains_no_common_model() -> None:
    first = Stage(FedSPD(2), 2, TRAINING, privacy=Privacy(noise=0.5))
    run = simulation(first.then(Stage(FedSPD(2), 4, TRAINING, personal="auto")))
    assert run.common is None
