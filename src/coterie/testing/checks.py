"""What every algorithm must hold to. A check is named by its function; `Algorithm.exempt` uses the same words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from coterie.backends.simulation import Together
from coterie.data import digits, from_arrays
from coterie.engine.training import Training
from coterie.protocol.clients import Question
from coterie.protocol.fields import refusal
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.participation import Participation
from coterie.protocol.questions import declared
from coterie.protocol.result import Result
from coterie.protocol.stages import Stage, Stages
from coterie.protocol.traffic import Traffic
from coterie.testing.case import Case
from coterie.testing.small import (
    F64,
    apart,
    clients,
    close,
    finish,
    linear,
    parts,
    play,
    same_bits,
    simulation,
)

Check = Callable[[Case], None]


def same_seed(case: Case) -> None:
    """The same seed gives the same bits, and another seed other ones."""
    first, second, other = (play(case.stages(), clients(), seed=seed)[1] for seed in (3, 3, 4))
    assert same_bits(first, second), "two runs with the same seed differ"
    assert not same_bits(first, other), "two runs with different seeds are the same"


def chunk_size(case: Case) -> None:
    """Clients may be computed one at a time or all at once."""
    close(play(case.stages(), clients(), chunk=1)[1], play(case.stages(), clients())[1])


def order_of_clients(case: Case) -> None:
    """Clients that are listed in another order have the same models."""
    order = [5, 2, 11, 0, 9, 1, 3, 10, 4, 8, 6, 7]
    straight, permuted = (play(case.stages(), data)[1] for data in (clients(), clients().permuted(order)))
    personal = replace(
        straight.personal, rows=straight.personal.rows[order], weights=straight.personal.weights[order]
    )
    close(permuted, Result(straight.centers, straight.importance[order], personal))


# what is sent


def declared_fields(case: Case) -> None:
    """Every message is as `reports` and `sends` declare it, and an echo is what was offered."""
    run = simulation(case.stages())
    assert isinstance(run.clients, Together)
    run.clients = watched = _Watched(run.clients.client)
    finish(run)
    asked, reports = "report" in watched.asked, case.kind.reports
    assert asked == bool(reports), f"`reports` declares {sorted(reports)}, but clients are asked: {asked}"


@dataclass
class _Watched(Together):
    """Clients whose every message is compared with what the algorithm declares."""

    asked: set[str] = field(default_factory=set)

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        sent = super().ask(question, offer, context)
        if question in ("report", "train"):
            self.asked.add(question)
            self._check(question, offer, sent, self.client.stages[context.stage])
        return sent

    def _check(self, question: Question, offer: Messages, sent: Messages, stage: Stage) -> None:
        fields, model = declared(question, stage) or {}, self.cohort.model
        sizes = {"width": model.rows.width, "cluster": stage.algorithm.clusters()}
        for number in range(len(sent)):
            message = {name: t[number] for name, t in sent.fields.items()}
            why = refusal(message, fields, sizes, model.dtype)
            assert why is None, f"a message of {question!r} is not as declared: {why}"
        for name in (name for name, one in fields.items() if one.echo):
            same = torch.equal(sent.fields[name], offer.fields[name])
            assert same, f"{name!r} is declared to be an echo, but it is not what was offered"


def apart_as_together(case: Case) -> None:
    """Clients that are computed one by one, with all between them as bytes, get the same models for as many bytes."""
    _same_apart(case.stages(rounds=4))


def losses_on_the_way(case: Case) -> None:
    """The same where not all clients are invited, some are absent, and some messages come too late."""
    _same_apart(case.stages(rounds=4, who=Participation(fraction=0.7, absent=0.3, stragglers=0.3)))


def _same_apart(plan: Stages) -> Result:
    run, together = play(plan, clients())
    alone, traffic = apart(linear, clients(), plan, seed=3)
    close(alone, together)
    assert traffic == run.traffic, f"apart {traffic} is counted, and together {run.traffic}"
    return together


# who takes part


def selected_by_loss(case: Case) -> None:
    """A server that selects clients by loss gets the same apart as together, and resumed as never stopped."""
    selected(case, Participation(0.4, absent=0.2, select="loss", candidates=8))


def selected(case: Case, who: Participation) -> None:
    """The same for any way of selecting."""
    plan = case.stages(rounds=4, who=who)
    _same_resumed(plan, 1, _same_apart(plan))


def resume(case: Case) -> None:
    """A run that goes on from a checkpoint ends with the bits of one that was never stopped."""
    plan = case.stages(rounds=5)
    straight, expected = play(plan, clients())
    traffic = _same_resumed(plan, 2, expected)
    assert traffic == straight.traffic, f"resumed {traffic} is counted, and otherwise {straight.traffic}"


def _same_resumed(plan: Stages, after: int, expected: Result) -> Traffic:
    """Stop after so many rounds, and go on in another run."""
    first, second = simulation(plan), simulation(plan)
    for _ in range(after):
        first.step()
    tensors, numbers = first.save()
    second.load({name: t.clone() for name, t in tensors.items()}, numbers)
    finish(second)
    assert same_bits(second.finish(), expected), "the run that was resumed ended otherwise"
    return second.traffic


NOBODY = 1 - 1e-12  # a chance of being absent by which no client comes


def absent_clients(case: Case) -> None:
    """Rounds to which half of the clients come, or none, are played; rounds without clients change nothing."""
    for absent in (0.5, NOBODY):
        run, result = play(case.stages(who=Participation(absent=absent, stragglers=0.2)), clients())
        _check_finite(result)
    untouched = simulation(case.stages()).state.centers
    assert torch.equal(run.state.centers, untouched), "the centers changed in rounds to which nobody came"


# small and strange


def one_cluster(case: Case) -> None:
    """With one cluster every client has all of it."""
    _, result = play(case.stages(clusters=1), clients())
    assert len(result.centers) == 1, f"with one cluster there are {len(result.centers)} centers"
    torch.testing.assert_close(result.importance, torch.ones(12, 1, dtype=F64))
    _check_finite(result)


def one_point(case: Case) -> None:
    """A client may have one point."""
    g = torch.Generator().manual_seed(0)
    points = [(torch.randn(n, 10, generator=g), torch.randn(n, 1, generator=g)) for n in (1, 30, 2, 17)]
    data = from_arrays(points, test_fraction=0.0, task="regression")
    plan = Stages((replace(case.stages()[0], topology=case.complete),))
    _, result = play(plan, data)
    _check_finite(result)
    close(apart(linear, data, plan, seed=3)[0], result)


def norm_and_dropout(case: Case) -> None:
    """Layers that have to know their client do, in any chunk and apart."""
    data = digits(clients=6, image=True, train_points=12, test_points=4, seed=1)
    training = Training(learning_rate=0.05, batch_size=5)  # momentum would blow rounding up
    plan = Stages((Stage(case.make(2), 2, training, case.complete),))

    def together(chunk: int | None) -> Result:
        run = finish(simulation(plan, data, model=_norm_and_dropout, seed=0, chunk=chunk))
        assert run.model.vectorised, "clients were computed one by one"
        return run.finish()

    close(together(1), together(None))
    close(apart(_norm_and_dropout, data, plan)[0], together(None))


def _norm_and_dropout() -> nn.Module:
    """Without a bias before the norm, which would blow rounding up."""
    layers = [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 36, 10))


def _check_finite(result: Result) -> None:
    assert all(t.isfinite().all() for t in parts(result)), "a number of the result is not finite"


CHECKS: tuple[Check, ...] = (
    same_seed,
    chunk_size,
    order_of_clients,
    declared_fields,
    apart_as_together,
    losses_on_the_way,
    selected_by_loss,
    resume,
    absent_clients,
    one_cluster,
    one_point,
    norm_and_dropout,
)
AT_SERVER = {selected_by_loss}  # nobody selects over a graph
