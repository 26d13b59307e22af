"""The verdict, from hand-made evidence and on small runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from coterie import IFCA, FedAvg, FedEM, FedSPD, Graph, Training, WeCFL
from coterie.data import digits, regressions
from coterie.models import build
from coterie.protocol.result import Snapshot
from coterie.report.verdicts import lines
from coterie.runs.alarms import Alarms
from coterie.runs.verdict import Evidence, Verdict, beside_fedavg, judge, unknown
from tests.builders import linear, state

LOG2 = torch.log(torch.tensor(2.0)).double()


def pairwise(value: float, clusters: int, clients: int) -> Tensor:
    """(client, cluster, cluster), 0 for a center with itself."""
    return (value * (1 - torch.eye(clusters))).double().expand(clients, -1, -1).clone()


def separated(clients: int = 20, clusters: int = 2) -> Evidence:
    """Every client is of one cluster, whose center has loss 0.1 where the others have 3 and a guess has 2."""
    own = torch.eye(clusters).double()[torch.arange(clients) % clusters]
    one = torch.ones(clients).double()
    return Evidence(
        chosen=own,
        hard=False,
        used=own.mean(0),
        largest=own.sum(0).long(),
        importance=own,
        losses=3 - 2.9 * own,
        personal=0.1 * one,
        common=0.8 * one,
        mean=1.5 * one,
        guess=2 * one,
        tuned=0.11 * one,
        pooled=pairwise(float(LOG2), clusters, clients) * (own[:, :, None] + own[:, None, :]),
        differ=pairwise(0.9, clusters, clients),
        lean=torch.zeros(clients, 10, clusters).double(),
    )


def merged(first: int, second: int, evidence: Evidence, differ: float) -> Evidence:
    """Clients lose nothing if they cannot tell these two apart."""
    pooled, different = evidence.pooled.clone(), evidence.differ.clone()
    pooled[:, first, second] = pooled[:, second, first] = 0
    different[:, first, second] = different[:, second, first] = differ
    return replace(evidence, pooled=pooled, differ=different)


def test_separated_centers_are_good() -> None:
    verdict = judge(separated())
    assert verdict.good is True
    assert verdict.findings == ()
    assert verdict.numbers["margins"][0][1] == pytest.approx(1.0, abs=1e-6)
    assert verdict.numbers["gain"] == pytest.approx(1 - 0.1 / 0.8)
    assert "all centers, averaged alike for all clients" in str(verdict)  # the stand-in is named
    assert Verdict.of(verdict.as_dict()) == verdict


@pytest.mark.parametrize(
    ("differ", "finding", "other"), [(0.05, "merged", "divided"), (0.9, "divided", "merged")]
)
def test_centers_that_clients_do_not_tell_apart(differ: float, finding: str, other: str) -> None:
    """They predict alike, or differ for points and not for clients."""
    evidence = replace(merged(0, 1, separated(), differ), personal=separated().common)
    verdict = judge(evidence)
    assert verdict.good is False
    assert {finding, "unseparated", "one-model"} <= set(verdict.findings)
    assert other not in verdict.findings


def test_one_center_too_many_is_named_and_the_rest_may_be_good() -> None:
    verdict = judge(merged(0, 2, separated(21, 3), 0.05))
    assert verdict.good is True
    assert verdict.findings == ("merged",)
    assert verdict.numbers["merged"] == [(0, 2)]
    assert "Centers 0 and 2 predict alike." in verdict.sentences
    assert "choose-clusters" in verdict.sentences[-1]


def test_a_center_that_nobody_uses() -> None:
    """Of what it would predict, nobody knows; it counts in no pair."""
    evidence, none = separated(), torch.zeros(20, 1).double()
    three = separated(20, 3)
    evidence = replace(
        three,
        chosen=torch.cat([evidence.chosen, none], 1),
        importance=torch.cat([evidence.importance, none], 1),
        used=torch.tensor([0.49, 0.49, 0.02]).double(),
        largest=torch.tensor([10, 10, 0]),
    )
    verdict = judge(evidence)
    assert verdict.good is True
    assert verdict.findings == ("unused",)
    assert "Nobody uses center 2." in verdict.sentences


def test_numbers_are_not_divided_by_class() -> None:
    divided = merged(0, 1, separated(), 0.9)
    assert "The centers divide points (by class, perhaps), not clients" in str(judge(divided))
    assert "The centers divide points, not clients" in str(judge(replace(divided, lean=None)))


def test_centers_that_lean_to_classes() -> None:
    """Clients differ a little, but half of what is divided goes by class."""
    evidence = separated()
    lean = torch.zeros(20, 10, 2).double()
    lean[:, :5], lean[:, 5:] = torch.tensor([0.025, -0.025]), torch.tensor([-0.025, 0.025])
    verdict = judge(replace(evidence, lean=lean))
    assert verdict.numbers["by_class"] == pytest.approx(0.5)
    assert verdict.findings == ("divided",)
    assert verdict.good is None
    assert str(verdict).startswith(
        "doubtful: Clients tell the centers apart, but these divide points by class"
    )
    assert "FedAvg" not in verdict.sentences[-1]  # one model has eight times the loss
    badly_served = judge(
        replace(evidence, lean=lean, personal=5 * evidence.personal, tuned=evidence.personal)
    )
    assert {"divided", "coarse"} <= set(badly_served.findings)
    assert badly_served.good is False
    three = merged(0, 1, separated(21, 3), 0.05)
    leaning = torch.cat([lean, torch.zeros(20, 10, 1)], 2).double()[[*range(20), 0]]
    not_all = judge(replace(three, lean=4 * leaning))
    assert not_all.findings == ("divided", "merged")  # clients do not tell all centers apart
    assert not_all.good is False
    assert "tell the centers apart" not in str(not_all)


@pytest.mark.parametrize(
    ("verdict", "word"),
    [(judge(separated()), "good"), (unknown("nobody answered"), "doubtful")],
)
def test_a_printed_verdict_begins_with_its_word(verdict: Verdict, word: str) -> None:
    assert str(verdict) == f"{word}: {verdict.sentences[0]}"
    assert list(lines({"FedEM": {"verdict": verdict.as_dict()}})) == [f"\nFedEM, {verdict}"]


@pytest.mark.parametrize(
    ("changed", "finding", "good"),
    [
        ({"common": 0.101}, "one-model", False),
        ({"tuned": 0.05, "personal": 0.7}, "coarse", None),
        ({"personal": 3.0}, "diverged", False),
        ({"personal": torch.inf}, "diverged", False),
        ({"apart": 0.6}, "no-consensus", False),
    ],
)
def test_numbers_of_clients(changed: dict[str, float], finding: str, good: bool | None) -> None:
    each = {name: torch.full((20,), value).double() for name, value in changed.items()}
    verdict = judge(replace(separated(), **each))  # type: ignore[arg-type]
    assert verdict.good is good
    assert finding in verdict.findings


def test_some_clients_fit_no_center_or_are_in_the_wrong_cluster() -> None:
    evidence = separated()
    personal = evidence.personal.clone()
    personal[:2] = 5.0
    verdict = judge(replace(evidence, personal=personal))
    assert (verdict.good, verdict.findings) == (None, ("misfits",))
    assert "2 of 20 clients fit no center: a blind guess is better." in verdict.sentences
    forty = separated(40)
    personal = forty.personal.clone()
    personal[0], personal[1] = 5.0, 1.0  # one fits no center, and one differs from its own: 5 % together
    assert judge(replace(forty, personal=personal)).good is None
    chosen = evidence.chosen.clone()
    chosen[:2] = chosen[:2].flip(1)
    losses = evidence.losses.clamp(max=2.0)  # the wrong center is no better than a guess, and no worse
    verdict = judge(replace(evidence, hard=True, chosen=chosen, losses=losses))
    assert (verdict.good, verdict.findings) == (None, ("misassigned",))


def test_a_guess_that_has_no_loss_condemns_nobody() -> None:
    """Clients whose numbers are all the same: their mean is right at once, which says nothing of the centers."""
    verdict = judge(replace(separated(), guess=torch.zeros(20).double()))
    assert verdict.good is True
    assert verdict.findings == ()


def test_a_graph_that_rounds_cannot_cross_and_an_initialisation_that_failed() -> None:
    verdict = judge(replace(separated(), gap=0.01, rounds=50, init_separated=False))
    assert verdict.findings == ("init-unseparated", "sparse-graph")
    assert verdict.good is True
    assert judge(replace(separated(), gap=0.01, rounds=200)).findings == ()
    unseparated = replace(merged(0, 1, separated(), 0.05), init_separated=False)
    assert "The initialisation ended before its centers were separated." in judge(unseparated).sentences


def test_a_center_that_is_not_finite() -> None:
    assert judge(replace(separated(), finite=False)).findings == ("diverged",)


def test_beside_fedavg() -> None:
    verdict, own = judge(separated()), {"personal": {"accuracy": 0.95}, "rounds": 150}
    better = beside_fedavg(verdict, own, {"personal": {"accuracy": 0.983}, "rounds": 150})
    assert better.good is False
    assert better.findings == ("fedavg-as-good",)
    says = "One model is better: FedAvg reached accuracy 0.983 in 150 rounds, and this 0.950 in 150."
    assert better.sentences[0] == says
    alike = beside_fedavg(verdict, own, {"personal": {"accuracy": 0.95}, "rounds": 150})
    assert alike.sentences[0].startswith("One model is as good: FedAvg")
    worse = beside_fedavg(verdict, own, {"personal": {"accuracy": 0.5}, "rounds": 100})
    assert (worse.good, worse.findings) == (True, ())
    assert "FedAvg reached accuracy 0.500 in 100 rounds" in str(worse)
    diverged = beside_fedavg(verdict, own, {"personal": {"accuracy": None}, "rounds": 150})
    assert diverged == verdict


@pytest.mark.parametrize("differ", [0.05, 0.9])
@pytest.mark.parametrize(("fedavg", "word"), [(0.9, "better"), (0.6, "as good")])
def test_fedavg_says_whether_one_model_is_better(differ: float, fedavg: float, word: str) -> None:
    """Also where the centers are not separated, and whatever a stand-in for one model has."""
    own, reference = ({"personal": {"accuracy": a}, "rounds": 8} for a in (0.6, fedavg))
    evidence = merged(0, 1, separated(), differ)
    for loss in (0.8, 1.6):
        each = loss * torch.ones(20).double()
        verdict = judge(replace(evidence, personal=each, tuned=each))
        beside = beside_fedavg(verdict, own, reference)
        assert f"one model is {word}" in beside.sentences[0].lower()


@pytest.mark.parametrize(("differ", "said"), [(0.05, "did not separate"), (0.9, "divide points")])
def test_where_fedavg_is_worse_nobody_is_sent_to_it(differ: float, said: str) -> None:
    """Personal models may be better than FedAvg's though their centers are not separated."""
    own, fedavg = ({"personal": {"accuracy": a}, "rounds": 8} for a in (0.7, 0.4))
    common = separated().common
    verdict = judge(replace(merged(0, 1, separated(), differ), personal=common, tuned=common))
    assert "one model is as good" in str(verdict).lower()
    assert "Try" in str(verdict)
    beside = beside_fedavg(verdict, own, fedavg)
    assert beside.good is False
    assert said in str(beside)
    assert "one model" not in str(beside).lower()
    assert "FedAvg" not in beside.sentences[-1]


def test_where_all_centers_merged_and_clients_differ_fewer_are_no_help() -> None:
    evidence = replace(merged(0, 1, separated(), 0.05), personal=separated().common)
    verdict = judge(evidence)
    assert {"unseparated", "merged", "coarse"} <= set(verdict.findings)
    assert verdict.sentences[-1] == "Try init='clients' if it began otherwise, or more rounds."


def test_beside_fedavg_no_number_is_of_another_model() -> None:
    """The gain in numbers is over a stand-in, which the sentence no longer names."""
    own, fedavg = ({"personal": {"accuracy": a}, "rounds": 8} for a in (0.7, 0.4))
    assert beside_fedavg(judge(separated()), own, fedavg).sentences == (
        "The 2 centers are separated, and clients gain by having their own (FedAvg reached accuracy 0.400 in 8 rounds, "
        "and this 0.700 in 8).",
    )


# on runs


def mlp() -> Any:
    return build("mlp", (64,), 10, hidden=(32,))()


HOW: dict[str, Any] = {"rounds": 12, "training": Training(learning_rate=0.2, batch_size=20, epochs=3)}


def labelings(seed: int = 0, **more: Any) -> coterie.Federation:
    how = {"distributions": "relabel", "clusters": 2, "mixture": "pure", "clients": 30, **more}
    return digits(seed, **how)


def test_two_labelings_that_are_found_are_good() -> None:
    verdict = coterie.run(mlp, labelings(), WeCFL(2), **HOW).verdict
    assert verdict is not None
    assert verdict.good is True
    assert not {"merged", "unused", "divided", "coarse", "misfits"} & set(verdict.findings)


def test_from_random_centers_fedspd_divides_classes_and_it_is_said() -> None:
    run = coterie.run(mlp, labelings(), FedSPD(2), init="random", **HOW)
    assert run.summary["ari"] < 0.5  # it really did not find the labelings
    assert run.verdict is not None
    assert run.verdict.good is False
    assert "divided" in run.verdict.findings
    assert "init='clients'" in str(run.verdict)


def test_one_distribution_needs_one_model() -> None:
    data = digits(0, distributions="none", mixture="pure", clients=30)
    verdict = coterie.run(mlp, data, IFCA(2), **HOW).verdict
    assert verdict is not None
    assert verdict.good is False
    assert "one-model" in verdict.findings
    assert "FedAvg" in str(verdict)


def test_two_distributions_too_many_for_the_centers() -> None:
    verdict = coterie.run(mlp, labelings(clusters=4, shift=3, clients=40), WeCFL(2), **HOW).verdict
    assert verdict is not None
    assert verdict.good is not True
    assert "coarse" in verdict.findings


def test_without_clusters_there_is_no_verdict_and_without_held_out_points_there_is() -> None:
    data = regressions(8, 2, "pure", separation=166.0, test_points=0)
    assert coterie.run(linear, data, FedAvg(), rounds=2).verdict is None
    assert coterie.run(linear, data, coterie.ALGORITHMS["FedAvg+"](2), rounds=2).verdict is None
    verdict = coterie.run(linear, data, WeCFL(2), rounds=10, training=Training(learning_rate=0.04)).verdict
    assert verdict is not None
    assert verdict.good is True


@pytest.mark.parametrize("algorithm", [IFCA(2), FedEM(2), WeCFL(2)])
def test_of_clients_with_one_point_each_nothing_is_known(algorithm: coterie.Algorithm) -> None:
    chance = torch.Generator().manual_seed(0)
    data = [(torch.randn(1, 10, generator=chance), torch.randn(1, generator=chance)) for _ in range(8)]
    verdict = coterie.run(linear, data, algorithm, rounds=6, training=Training(learning_rate=0.02)).verdict
    assert verdict is not None
    assert verdict.findings == ("unknown",)


def test_over_a_graph_peers_are_compared() -> None:
    data = regressions(12, 2, "pure", separation=166.0)
    run = coterie.run(linear, data, FedEM(2), rounds=10, topology=Graph("complete"))
    assert run.verdict is not None
    assert run.verdict.numbers["peers_apart"] == pytest.approx(0.0, abs=1e-6)  # who receive all have the same


def test_an_initialisation_that_never_separates_is_told(caplog: pytest.LogCaptureFixture) -> None:
    data = regressions(12, 1, "pure", seed=2)
    with caplog.at_level(logging.WARNING, "coterie"):
        run = coterie.run(linear, data, IFCA(2), rounds=6)
    assert [m for m in caplog.messages if "did not separate the centers in 2 rounds" in m]
    assert run.verdict is not None
    assert "init-unseparated" in run.verdict.findings
    assert [r["separated"] for r in run.records if "separated" in r] == [False]


# while it runs


def test_what_is_lost_on_the_way_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    alarms, centers = Alarms(), torch.zeros(2, 1)
    apart, alike = torch.tensor([[1.0, 3.0], [3.0, 1.0]]), torch.tensor([[2.0, 2.01], [2.01, 2.0]])
    both, one = torch.eye(2), torch.tensor([[1.0, 0.0], [0.9, 0.1]])
    with caplog.at_level(logging.WARNING, "coterie"):
        for losses, importance in ((alike, both), (apart, both), (alike, one), (alike, one)):
            alarms.evaluated((0, 0), Snapshot(centers, importance, losses=losses))
    assert caplog.messages == [
        "cluster 1 has lost its last client",
        "centers 0 and 1, which were separate, have become alike",
    ]


def test_rows_that_are_too_few_are_told_once_and_not_before_there_are_any(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alarms, waits = Alarms(), WeCFL(2).begin(state([[[0.0]] * 2], 3))
    for rows in (0, 1, 2, 1):
        alarms.received(rows, waits)
    assert caplog.messages == [
        "1 client sent a model; more are needed to find 2 clusters, so all are one for now"
    ]


# runs that are hard to judge end well


def two_rules(clients: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clients whose labels follow one of two opposite rules."""
    chance = torch.Generator().manual_seed(0)
    x = [torch.randn(60, 4, generator=chance) for _ in range(clients)]
    return [(one, ((one[:, 0] > 0) ^ (i % 2 == 1)).long()) for i, one in enumerate(x)]


def test_targets_of_several_axes_are_judged() -> None:
    chance = torch.Generator().manual_seed(0)
    data = [
        (x := torch.randn(40, 4, generator=chance), (x[:, :1, None] * (1 if i % 2 else -1)).expand(-1, 2, 3))
        for i in range(8)
    ]
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Unflatten(1, (2, 3)))
    run = coterie.run(model, data, coterie.IFCA(2), rounds=20, training=coterie.Training(learning_rate=0.1))
    assert run.verdict is not None
    assert run.verdict.good is True


def test_a_loss_of_ones_own_with_more_outputs_than_targets_is_judged() -> None:
    def gaussian(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mean, log_variance = outputs.unbind(-1)
        return 0.5 * (log_variance + (y.reshape(-1) - mean) ** 2 / log_variance.exp())

    chance = torch.Generator().manual_seed(0)
    data = [(x := torch.randn(40, 4, generator=chance), x[:, 0]) for _ in range(6)]
    training = coterie.Training(learning_rate=0.01)
    run = coterie.run(
        torch.nn.Linear(4, 2), data, coterie.FedEM(2), rounds=3, training=training, loss=gaussian
    )
    assert run.verdict is not None


def test_a_client_without_held_out_points_is_left_out_of_the_verdict() -> None:
    data = coterie.data.from_arrays(
        {str(i): (x, y) if i == 0 else (x, y, x[:20], y[:20]) for i, (x, y) in enumerate(two_rules())},
        test_fraction=0.0,
    )
    training = coterie.Training(learning_rate=0.5, epochs=5)
    run = coterie.run(torch.nn.Linear(4, 2), data, coterie.IFCA(2), rounds=10, training=training)
    assert run.verdict is not None
    assert run.verdict.good is True
    assert run.verdict.numbers["clients_asked"] == 7


def test_clients_of_one_class_have_not_diverged() -> None:
    chance = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(40, 4, generator=chance) + 4 * torch.eye(4)[i % 4], torch.full((40,), i % 4))
        for i in range(12)
    ]
    training = coterie.Training(learning_rate=0.1, epochs=2)
    run = coterie.run(torch.nn.Linear(4, 4), data, coterie.FedEM(2), rounds=10, training=training)
    assert run.verdict is not None
    assert "diverged" not in run.verdict.findings
    assert run.summary["personal"]["accuracy"] > 0.9


def test_a_loss_of_zero_is_judged() -> None:
    evidence = separated()
    nothing = torch.zeros_like(evidence.personal)
    perfect = replace(
        evidence, losses=torch.zeros_like(evidence.losses), personal=nothing, common=nothing, mean=nothing
    )
    assert "one-model" in judge(perfect).findings


def test_one_answer_that_is_not_finite_decides_nothing() -> None:
    evidence = separated()
    wild = evidence.pooled.clone()
    wild[0] = float("nan")
    assert judge(replace(evidence, pooled=wild)).findings == judge(evidence).findings


def test_an_epoch_that_diverges_gains_nothing() -> None:
    evidence = separated()
    found = judge(replace(evidence, tuned=torch.full_like(evidence.tuned, float("inf"))))
    assert found.numbers["clients_asked"] == len(evidence.tuned)
    assert "coarse" not in found.findings


def test_beside_fedavg_what_is_not_finite_is_said() -> None:
    evidence = separated()
    verdict = judge(evidence)
    lost = replace(verdict, numbers={**verdict.numbers, "loss_of_one_model": None, "gain": None})
    summary = {"personal": {"loss": 0.1}, "rounds": 3}
    found = beside_fedavg(lost, summary, {"personal": {"loss": 1.0}, "rounds": 3})
    assert "FedAvg reached loss 1.000" in str(found)
