"""What every algorithm must hold to. An algorithm in the list is tested here without another line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from unittest import SkipTest

import pytest

from coterie import ALGORITHMS, Algorithm, CoterieError, FedAvg, FedProx, FedSoft, FedSPD, Participation
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import MODEL, NUMBER, SIZE, Declared
from coterie.protocol.message import Fields, Messages
from coterie.testing import Contract, contracts
from coterie.testing.case import Case, maker
from coterie.testing.checks import selected
from tests.builders import apart, clients, close, finish, linear, play, same_bits, simulation


@pytest.mark.parametrize("contract", [c for kind in ALGORITHMS.values() for c in contracts(kind)], ids=str)
def test_contracts(contract: Contract) -> None:
    contract()


@pytest.mark.parametrize(
    "who",
    [
        Participation(0.4, absent=0.2, select="size"),
        Participation(0.4, absent=0.2, select="loss-per-cluster", candidates=8, clusters=3),
    ],
    ids=lambda who: who.select,
)
@pytest.mark.parametrize("name", ["FedAvg", "FedSoft", "WeCFL"])
def test_selected_by_size_and_by_loss_per_cluster(name: str, who: Participation) -> None:
    selected(Case(maker(ALGORITHMS[name]), "server"), who)


def test_stages_hand_their_centers_on() -> None:
    """From a server to a graph and back; apart as together, and resumed as straight."""
    first, second = Case(FedSoft, "server").stages()[0], Case(FedSPD, "graph").stages()[0]
    plan = first.then(second).then(first)
    run, result = play(plan, clients())
    assert run.progress.planned == 9
    close(apart(linear, clients(), plan, seed=3)[0], result)
    half = simulation(plan)
    for _ in range(4):
        half.step()
    again = simulation(plan)
    again.load(*half.save())
    finish(again)
    assert same_bits(again.finish(), result)


# algorithms that break a contract are found


def contract(name: str, kind: type[Algorithm]) -> Contract:
    return next(c for c in contracts(kind) if str(c) == f"{kind.title()}-{name}")


@dataclass(frozen=True)
class Impure(FedAvg):
    """Depends on which clients are computed beside it."""

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        sent = super().train(cohort, offer)
        return {**sent, "row": sent["row"] + 0.01 * (sent["row"] - sent["row"].mean(0))}


def test_an_algorithm_that_uses_other_clients_is_found() -> None:
    with pytest.raises(AssertionError, match="not close"):
        contract("server-apart-as-together", Impure)()


@dataclass(frozen=True)
class Chatty(FedAvg):
    """Says more than it declares."""

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {**super().train(cohort, offer), "mean": cohort.means(cohort.points.y)}


@dataclass(frozen=True)
class Scalar(FedAvg):
    """Sends a field of another shape than it declares."""

    sends: ClassVar[Declared] = {"row": MODEL, "size": SIZE, "loss": NUMBER}

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {
            **super().train(cohort, offer),
            "loss": cohort.losses(offer.centers).new_zeros(len(cohort), 1),
        }


@dataclass(frozen=True)
class Silent(FedAvg):
    """Declares a report that nobody asks for."""

    reports: ClassVar[Declared] = {"size": SIZE}


@dataclass(frozen=True)
class Parrot(FedSoft):
    """Sends what it declares to be an echo, but of something else."""

    def train(self, cohort: Cohort, offer: Messages) -> Fields:
        return {**super().train(cohort, offer), "importance": offer.importance.flip(1)}


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (Chatty, "Chatty sends 'mean', which it does not declare"),
        (Scalar, r"its field 'loss' has the shape \(1,\) where \(\) is needed"),
        (Silent, r"`reports` declares \['size'\], but clients are asked: False"),
        (Parrot, "'importance' is declared to be an echo"),
    ],
)
def test_what_is_sent_but_not_declared_is_found(kind: type[Algorithm], what: str) -> None:
    with pytest.raises((AssertionError, CoterieError), match=what):
        contract("server-declared-fields", kind)()


@pytest.mark.parametrize("place", ["server", "graph"])
def test_and_apart_too(place: str) -> None:
    with pytest.raises(
        AssertionError, match=r"message of client .* is left out: its field 'loss' has the shape"
    ):
        contract(f"{place}-apart-as-together", Scalar)()


# exempt, and made by a function


@dataclass(frozen=True)
class Exempt(FedAvg):
    exempt: ClassVar[dict[str, str]] = {"chunk size": "it is for one client"}


@dataclass(frozen=True)
class Misspelt(FedAvg):
    exempt: ClassVar[dict[str, str]] = {"chunks": "it is for one client"}


@dataclass(frozen=True)
class Needy(Algorithm):
    n_clusters: int
    rank: int


def test_what_is_exempt_is_skipped_with_the_reason() -> None:
    with pytest.raises(SkipTest, match="Exempt: it is for one client"):
        contract("server-chunk-size", Exempt)()
    with pytest.raises(
        CoterieError, match="Misspelt is exempt from 'chunks'; allowed is same seed, chunk size"
    ):
        contracts(Misspelt)


def test_an_algorithm_with_settings_is_made_by_a_function() -> None:
    with pytest.raises(CoterieError, match="Needy needs rank; give contracts a function"):
        contracts(Needy)
    names = {str(c) for c in contracts(lambda n_clusters: Needy(n_clusters, rank=3))}
    assert "Needy-graph-one-point" in names
    assert "Needy-graph-selected-by-loss" not in names
    stage = contracts(lambda _: FedProx(pull=2.0))[0].case.stages()[0]
    assert stage.algorithm == FedProx(pull=2.0)
