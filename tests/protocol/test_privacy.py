"""Differential privacy: what leaves a client, what is counted, what is promised."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import coterie
from coterie import (
    ALGORITHMS,
    Algorithm,
    CoterieError,
    FedAvg,
    FedEM,
    Federation,
    FedSoft,
    Privacy,
    Stage,
    Stages,
    Training,
    pFedMe,
)
from coterie.backends.simulation import Together, simulate
from coterie.data import digits, from_arrays, regressions
from coterie.prng import gaussian, mix
from coterie.protocol.client import Client
from coterie.protocol.clients import Question
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import ROWS, Declared
from coterie.protocol.message import Fields, Messages, RoundContext
from coterie.protocol.privacy import clipped
from tests.builders import (
    CASES,
    F64,
    MOMENTUM,
    PLACES,
    TRAINING,
    algorithm,
    apart,
    clients,
    close,
    finish,
    linear,
    one_number_cohort,
    play,
    same_bits,
    simulation,
)

CLIENT = Privacy(clip=0.5, noise=0.3, importance_noise=0.2)
PAPER = Privacy("paper", clip=2.0, epsilon=10.0, delta=0.01)
MECHANISMS = {"client": CLIENT, "paper": PAPER}


def stages(name: str, privacy: Privacy | None, place: str = "server", rounds: int = 3) -> Stages:
    short = pFedMe(local_rounds=2) if name == "pFedMe" else algorithm(name)
    return Stages((Stage(short, rounds, MOMENTUM, PLACES[place], privacy=privacy),))


def few() -> Federation:
    return regressions(clients=5, mixture="10:90", sizes=(10, 20), separation=166.0, test_points=5, seed=7)


# the mechanism


def test_clipping_by_hand() -> None:
    began = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    rows = torch.tensor([[4.0, 5.0], [0.9, 1.2], [1.3, 1.4], [-0.5, 0.0]])
    expected = torch.tensor([[1.6, 1.8], [0.6, 0.8], [1.3, 1.4], [-0.5, 0.0]])
    torch.testing.assert_close(clipped(rows, began, 1.0), expected)
    assert torch.equal(clipped(rows, began, 1.0)[2:], rows[2:])  # what is short enough is not touched


def test_all_rows_of_a_message_are_clipped_together() -> None:
    rows = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])  # (client, cluster, width)
    expected = torch.tensor([[[0.6, 0.0], [0.0, 0.8]]])
    torch.testing.assert_close(clipped(rows, torch.zeros_like(rows), 1.0), expected)


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf])
def test_who_diverged_sends_no_update(wild: float) -> None:
    began = torch.tensor([[1.0, 2.0]])
    assert torch.equal(clipped(torch.tensor([[wild, 2.0]]), began, 1.0), began)
    assert torch.equal(clipped(torch.tensor([[wild, 2.0]]), began, math.inf), began)


@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=3, max_size=3), st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_nobody_gets_further_than_the_clip(row: list[float], clip: float) -> None:
    began = torch.tensor([[0.5, -1.0, 2.0]])
    sent = clipped(torch.tensor([row]), began, clip)
    assert float((sent - began).double().norm()) <= clip * (1 + 1e-5) + 1e-6


def test_the_paper_s_deviation() -> None:
    expected = math.sqrt(2 * math.log(1.25 / 0.01)) / 10  # B.2.6 with ε = 10
    assert (
        Privacy("paper", epsilon=10.0, delta=0.01).deviation()
        == pytest.approx(expected)
        == pytest.approx(0.31075, 1e-4)
    )
    assert PAPER.deviation() == pytest.approx(2 * expected)


def test_gaussian_numbers() -> None:
    drawn = gaussian(mix(3, torch.arange(200_000)))
    assert float(drawn.mean()) == pytest.approx(0, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1, abs=0.015)
    assert float((drawn**4).mean()) == pytest.approx(3, abs=0.1)
    assert float((drawn > 1.959964).double().mean()) == pytest.approx(0.025, abs=0.002)


WIDE = 4000
START = RoundContext(seed=5)


def wide(context: RoundContext = START, ids: tuple[str, ...] = ("a", "b", "c")) -> Cohort:
    """Clients of a model with many parameters."""
    data = from_arrays({i: (torch.randn(4, WIDE), torch.randn(4, 1)) for i in ids}, test_fraction=0.0)
    simulation = simulate(
        lambda: nn.Linear(WIDE, 1, bias=False),
        data,
        stages("FedAvg", None),
        device=torch.device("cpu"),
        dtype=F64,
    )
    return simulation.clients.cohort.when(context)


def leaving(privacy: Privacy, cohort: Cohort, rows: Tensor, center: Tensor, run: str = "FedAvg") -> Fields:
    offer = Messages(torch.arange(len(cohort)), {"centers": center.expand(len(cohort), 1, -1)})
    sent = {"row": rows, "size": torch.tensor([3, 4, 5])}
    return privacy.protect(run, FedAvg(), FedAvg.sends, cohort, offer, sent)


def test_what_is_sent_is_received_plus_clipped_update_plus_noise() -> None:
    center = torch.full((WIDE,), 2.0, dtype=F64)
    rows = center + torch.tensor([0.0, 1e-6, 10.0], dtype=F64)[:, None]
    sent = leaving(Privacy(clip=3.0, noise=0.5), wide(), rows, center)
    noise = sent["row"] - center
    noise[1] -= 1e-6  # too short to be clipped
    noise[2] -= 3.0 / math.sqrt(WIDE)  # clipped to 3, along (1, 1, ..., 1)
    assert float(noise.mean()) == pytest.approx(0, abs=4 * 1.5 / math.sqrt(3 * WIDE))
    for each in noise:
        assert float(each.std()) == pytest.approx(1.5, rel=0.05)
    correlation = torch.corrcoef(noise)
    assert float((correlation - torch.eye(3)).abs().max()) < 0.08  # every client draws its own
    assert torch.equal(sent["size"], torch.tensor([1, 1, 1]))  # withheld


def test_the_paper_clips_the_row_itself() -> None:
    rows = torch.zeros(3, WIDE, dtype=F64)
    rows[:, 0] = torch.tensor([1.0, 4.0, 400.0])
    sent = leaving(PAPER, wide(), rows, torch.full((WIDE,), 9.0, dtype=F64))
    for each, expected in zip(sent["row"], (1.0, 2.0, 2.0), strict=True):
        assert float(each[0]) == pytest.approx(expected, abs=5 * PAPER.deviation())
        assert float(each[1:].std()) == pytest.approx(PAPER.deviation(), rel=0.05)
    silent = replace(PAPER, epsilon=1e12)
    assert leaving(silent, wide(), rows, rows[0])["row"][:, 0].tolist() == pytest.approx([1.0, 2.0, 2.0])
    assert torch.equal(sent["size"], torch.tensor([3, 4, 5]))  # nothing else is touched


def test_noise_depends_on_what_is_run_and_when_and_on_the_client() -> None:
    center = torch.zeros(WIDE, dtype=F64)
    rows = center.expand(3, -1)

    def noise(*context: int, ids: tuple[str, ...] = ("a", "b", "c"), run: str = "FedAvg") -> Tensor:
        return leaving(CLIENT, wide(RoundContext(*context), ids), rows, center, run)["row"]

    first = noise(5, 0, 0)
    assert torch.equal(first, noise(5, 0, 0))
    torch.testing.assert_close(noise(5, 0, 0, ids=("c", "a", "b")), first[[2, 0, 1]], rtol=0, atol=1e-12)
    next_attempt = noise(5, 0, 0, 1, 3)  # the same round of the same stage, after the rounds of another
    for other in (noise(6, 0, 0), noise(5, 1, 0), noise(5, 0, 1), next_attempt, noise(5, 0, 0, run="IFCA")):
        assert float((other - first).abs().max()) > 0.01
        assert abs(float(torch.corrcoef(torch.stack([other[0], first[0]]))[0, 1])) < 0.08


def test_noise_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    center = torch.zeros(WIDE, dtype=F64)
    whole = leaving(CLIENT, wide(), center.expand(3, -1), center)["row"]
    monkeypatch.setattr("coterie.protocol.privacy.BLOCK", 1)
    torch.testing.assert_close(
        leaving(CLIENT, wide(), center.expand(3, -1), center)["row"], whole, rtol=0, atol=1e-12
    )


def test_importance_stays_importance() -> None:
    cohort = wide()
    offer = Messages(torch.arange(3), {})
    importance = torch.tensor([[0.9, 0.1], [0.5, 0.5], [1.0, 1e-4]], dtype=F64)

    def leaves(privacy: Privacy, algorithm: Algorithm, declared: Declared, **sent: Tensor) -> Tensor:
        (only,) = privacy.protect("run", algorithm, declared, cohort, offer, sent).values()
        return only

    noisy = replace(CLIENT, importance_noise=0.05)
    sent = leaves(noisy, FedSoft(2), FedSoft.reports, importance=importance)
    torch.testing.assert_close(sent.sum(1), torch.ones(3, dtype=F64))
    assert bool((sent > 0).all())
    assert bool((sent != importance).all())
    torch.testing.assert_close(sent, importance, rtol=0, atol=0.3)
    mass = torch.tensor([[30.0, 10.0], [math.nan, 5.0], [0.0, 0.0]], dtype=F64)
    by_mass = FedEM(2, weights="mass")
    sent = leaves(replace(CLIENT, importance_noise=1e-9), by_mass, by_mass.sends, mass=mass)
    expected = torch.tensor([[0.75, 0.25], [1e-4, 1.0], [0.5, 0.5]], dtype=F64)
    torch.testing.assert_close(sent, expected, rtol=0, atol=2e-4)  # the size is gone
    open = replace(CLIENT, size="sent")
    assert leaves(open, by_mass, by_mass.sends, mass=mass) is mass


def test_no_noised_importance_is_nothing() -> None:
    importance = torch.tensor([[1.0, 0.0]] * 3, dtype=F64)
    quiet, offer = replace(CLIENT, importance_noise=1e-9), Messages(torch.arange(3), {})
    sent = quiet.protect("run", FedSoft(2), FedSoft.reports, wide(), offer, {"importance": importance})
    assert float(sent["importance"].min()) >= 1e-4 / (1 + 2 * 1e-4)


def many(n: int = 4000) -> Cohort:
    return one_number_cohort(*[([1.0], [1.0])] * n)


@pytest.mark.parametrize("times", [1, 40])  # mass: importance times size
def test_the_noise_on_importance_is_as_large_as_it_is_counted(times: int) -> None:
    """Of (u, 1 − u) with noise a, b of deviation d: (u + a)/(1 + a + b) ≈ u + (1 − u)·a − u·b, whatever the size."""
    cohort, d, u = many(), 0.02, 0.3
    declared = FedSoft.reports if times == 1 else FedEM(2, weights="mass").sends
    name = "importance" if times == 1 else "mass"
    sent = {name: torch.tensor([[u, 1 - u]], dtype=F64).expand(len(cohort), 2) * times}
    offer = Messages(torch.arange(len(cohort)), {})
    privacy = replace(CLIENT, importance_noise=d)
    left = privacy.protect("run", FedSoft(2), declared, cohort, offer, sent)[name]
    assert float(left[:, 0].mean()) == pytest.approx(u, abs=0.002)
    expected = d * math.sqrt((1 - u) ** 2 + u**2)
    assert float(left[:, 0].std()) == pytest.approx(expected, rel=0.06)


def test_what_is_sent_back_is_not_noised_again() -> None:
    importance = torch.tensor([[0.9, 0.1]] * 3, dtype=F64)
    offer = Messages(torch.arange(3), {"importance": importance})
    noisy = replace(CLIENT, importance_noise=0.05)
    sent = {"importance": importance}

    def leaves(declared: Declared) -> Tensor:
        return noisy.protect("run", FedSoft(2), declared, wide(), offer, sent)["importance"]

    assert leaves(FedSoft.sends) is importance
    assert leaves(FedSoft.reports) is not importance


def test_subtracting_the_messages_of_two_methods_leaves_their_noise() -> None:
    """What is left of the difference, without the updates, is the noise of both."""
    privacy = Privacy(clip=0.5, noise=0.3)
    sent = [
        recorded_messages(stages(name, privacy, rounds=1), TRAINING)[-1][1].row
        for name in ("FedAvg", "FedProx")
    ]
    plain = [
        recorded_messages(stages(name, replace(privacy, noise=0.0), rounds=1), TRAINING)[-1][1].row
        for name in ("FedAvg", "FedProx")
    ]
    rest = (sent[0] - sent[1]) - (plain[0] - plain[1])
    assert float(rest.std()) == pytest.approx(0.3 * 0.5 * math.sqrt(2), rel=0.2)


# every algorithm that privacy covers

PRIVATE = [(name, place) for name, place in CASES if not ALGORITHMS[name].not_private]


@pytest.mark.parametrize(("name", "place"), [case for case in CASES if case not in PRIVATE])
def test_an_algorithm_that_it_cannot_cover_is_refused(name: str, place: str) -> None:
    with pytest.raises(CoterieError, match=f"privacy is given, but {name} has every client send"):
        stages(name, CLIENT, place)


class Recorded(Together):
    """All that clients sent in rounds, with what they were offered."""

    def __init__(self, client: Client):
        super().__init__(client)
        self.received: list[tuple[Messages, Messages]] = []

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        sent = super().ask(question, offer, context)
        if question in ("report", "train"):
            self.received.append((offer, sent))
        return sent


def recorded_messages(plan: Stages, training: Training = MOMENTUM) -> list[tuple[Messages, Messages]]:
    plan = Stages(replace(stage, training=training) for stage in plan)
    run = simulation(plan)
    run.clients = Recorded(run.clients.client)
    return finish(run).clients.received


@pytest.mark.parametrize(("name", "place"), CASES)
def test_an_algorithm_declares_all_that_it_sends(name: str, place: str) -> None:
    rounds = 5
    sent: Counter[str] = Counter()
    for offer, messages in recorded_messages(stages(name, None, place, rounds)):
        sent.update(n for n, t in messages.fields.items() if t is not offer.fields.get(n))
    assert dict(sent) == algorithm(name).times_sent(rounds)


@pytest.mark.parametrize(("name", "place"), PRIVATE)
def test_what_a_client_says_of_models_is_within_the_clip(name: str, place: str) -> None:
    """Here noise is 0, so that the update itself can be seen; models are compared all together."""
    clip, seen = 1e-3, 0
    for offer, sent in recorded_messages(stages(name, Privacy(clip=clip, noise=0.0), place)):
        for field in sent.fields:
            if algorithm(name).role(field) in ROWS:
                update = sent.fields[field] - algorithm(name).trained_from(offer, sent.fields)
                lengths = update.flatten(1).norm(dim=1)
                assert float(lengths.max()) <= clip * (1 + 1e-9)
                assert float(lengths.max()) == pytest.approx(clip)  # somebody was clipped
                seen += 1
    assert seen == (0 if name == "Local" else 3)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "place"), PRIVATE)
def test_every_algorithm_runs_private_apart_as_together(name: str, place: str, mechanism: str) -> None:
    plan = stages(name, MECHANISMS[mechanism], place, rounds=2)
    _, together = play(plan, few(), chunk=5)
    assert all(t.isfinite().all() for t in (together.centers, together.importance, together.personal.rows))
    close(apart(linear, few(), plan, seed=3)[0], together)
    open = play(stages(name, None, place, rounds=2), few())[1]
    assert same_bits(together, open) == (name == "Local")


@pytest.mark.parametrize("name", ["FedSoft", "FedSPD"])
def test_order_of_clients_does_not_matter(name: str) -> None:
    order = [5, 2, 11, 0, 9, 1, 3, 10, 4, 8, 6, 7]
    straight, permuted = (play(stages(name, CLIENT), d)[1] for d in (clients(), clients().permuted(order)))
    torch.testing.assert_close(permuted.centers, straight.centers, rtol=0, atol=1e-8)
    torch.testing.assert_close(permuted.personal.rows, straight.personal.rows[order], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "place"), PRIVATE)
def test_without_noise_and_clip_it_is_as_without_privacy(name: str, place: str) -> None:
    nothing = Privacy(clip=math.inf, noise=0.0, size="sent", buffers="sent")
    private, open = (play(stages(name, p, place), clients())[1] for p in (nothing, None))
    assert same_bits(private, open)


def test_resumed_is_as_never_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 6, "training": MOMENTUM, "privacy": CLIENT, "checkpoint_every": 2}
    straight = coterie.run(linear, clients(), FedSoft(2), **settings)

    def stop(record: dict[str, Any], rounds: int) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.run(linear, clients(), FedSoft(2), out=tmp_path / "run", watch=stop, **settings)
    resumed = coterie.run(linear, clients(), FedSoft(2), out=tmp_path / "run", resume=True, **settings)
    for a, b in zip(straight.centers, resumed.centers, strict=True):
        assert torch.equal(a.module.weight, b.module.weight)


def test_a_client_that_diverges_is_received_all_the_same() -> None:
    wild = Training(learning_rate=1e30, epochs=30)
    assert any(
        len(sent) and not sent.finite().all() for _, sent in recorded_messages(stages("FedAvg", None), wild)
    )
    assert all(sent.finite().all() for _, sent in recorded_messages(stages("FedAvg", CLIENT), wild))


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


def test_buffers_are_withheld_or_sent(caplog: pytest.LogCaptureFixture) -> None:
    data = digits(clients=4, train_points=12, test_points=4)
    tails = {}
    for buffers in ("withheld", "sent"):
        privacy = Privacy(noise=0.1, buffers=buffers)
        with caplog.at_level(logging.WARNING, "coterie"):
            simulation = simulate(with_norm, data, stages("FedAvg", privacy), device=torch.device("cpu"))
        tails[buffers] = simulation.model.rows.split(simulation.step().row)[1]
    assert torch.equal(tails["withheld"], torch.cat([torch.zeros(8), torch.ones(8)]).expand(4, -1))
    assert not torch.equal(tails["sent"], tails["withheld"])
    assert caplog.text.count("batch-norm statistics") == 1


@dataclass(frozen=True)
class Chatty(FedAvg):
    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {**super().train(cohort, offer), "secret": cohort.sizes}


def test_a_field_that_was_not_declared_is_refused() -> None:
    with pytest.raises(CoterieError, match="Chatty sends 'secret', which it does not declare"):
        play(Stages((Stage(Chatty(), 1, privacy=CLIENT),)), clients())
