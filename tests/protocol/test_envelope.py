"""Messages that are not what was asked for: each is refused with one line, and the round goes on without its client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie import IFCA, FedAvg, FedSoft, FedSPD, Graph, Server, Stage, Stages, WeCFL
from coterie.backends.loopback import Loopback, loopback
from coterie.data.federation import Federation
from coterie.protocol.clients import Refused
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.envelope import BadMessage, Header, opened, seal
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.remote import Parts, Responder
from coterie.runs.play import play
from tests import builders
from tests.builders import TRAINING, finish, linear, simulation

CLIENT = 4  # who spoils its messages


def clients() -> Federation:
    return builders.clients(n=6)


ID = clients().ids[CLIENT]

Spoil = Callable[[Header, dict[str, Tensor], bytes], bytes]


def field(name: str, change: Callable[[Tensor], Tensor]) -> Spoil:
    return lambda header, fields, data: seal(header, {**fields, name: change(fields[name])})


def header(**changed: object) -> Spoil:
    return lambda header, fields, data: seal(replace(header, **changed), fields)  # type: ignore[arg-type]


def announcing(data: bytes, size: int) -> bytes:
    """The same bytes, whose table of tensors says that they end elsewhere."""
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    for name, one in table.items():
        if name != "__metadata__":
            one["data_offsets"][1] = size
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def without_header(header: Header, fields: dict[str, Tensor], data: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + length])
    del table["__metadata__"]
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


MALFORMED: dict[str, tuple[Spoil, str]] = {
    "no header": (without_header, "it has no header of coterie"),
    "another run": (header(run="0123456789abcdef"), "its run is '0123456789abcdef', not"),
    "another round": (header(context=RoundContext(3, round=7)), "its context is round 7 of stage 0"),
    "another seed": (
        header(context=RoundContext(4, round=1, rounds=3)),
        "round 1 of stage 0 with seed 4, not",
    ),
    "another question": (header(question="report"), "its question is 'report', not 'train'"),
    "another client's id": (
        header(client=clients().ids[0]),
        f"its client is '{clients().ids[0]}', not '{ID}'",
    ),
    "another protocol": (header(protocol=2), "it speaks version 2 of the protocol, not 1"),
    "a problem of its own": (header(problem="my disk is full"), "it says: 'my disk is full'"),
    "unknown field": (
        lambda h, f, _: seal(h, {**f, "extra": torch.ones(2)}),
        "it has a field 'extra'; allowed is choice, row, size",
    ),
    "missing field": (
        lambda h, f, _: seal(h, {n: t for n, t in f.items() if n != "row"}),
        "its field 'row' is missing",
    ),
    "wrong shape": (
        field("row", lambda t: t[:-1]),
        "its field 'row' has the shape (9,) where (10,) is needed",
    ),
    "a row for each of many": (field("row", lambda t: t.expand(5, -1)), "has the shape (5, 10)"),
    "wrong dtype": (
        field("row", lambda t: t.long()),
        "its field 'row' is of type int64 where float64 is needed",
    ),
    "float16": (
        field("row", lambda t: t.half()),
        "its field 'row' is of type float16 where float64 is needed",
    ),
    "a size that is no whole number": (
        field("size", lambda t: t.float()),
        "is of type float32 where int64 is needed",
    ),
    "NaN": (field("row", lambda t: t * torch.nan), "its field 'row' has a number that is not finite"),
    "infinite": (field("row", lambda t: t / 0), "its field 'row' has a number that is not finite"),
    "negative size": (field("size", lambda t: -t), "its field 'size' is -"),
    "no points": (field("size", lambda t: 0 * t), "its field 'size' is 0, outside 1 to 1e+09"),
    "absurd size": (field("size", lambda t: t + 10**12), "its field 'size' is 1e+12, outside 1 to 1e+09"),
    "a cluster that is not there": (
        field("choice", lambda t: 0 * t + 2),
        "its field 'choice' is 2, outside 0 to 1",
    ),
    "truncated": (lambda h, f, data: data[:-20], "is announced to end beyond"),
    "cut in the header": (lambda h, f, data: data[:60], "it announces a header of"),
    "nothing": (lambda h, f, data: b"", "it has 0 bytes and no header"),
    "1 GB announced": (lambda h, f, data: announcing(data, 10**9), "is announced to end beyond its"),
    "a header of 1 GB": (
        lambda h, f, data: (10**9).to_bytes(8, "little") + data[8:108],
        "it announces a header of 1000000000 bytes and has 100",
    ),
    "noise": (lambda h, f, data: bytes(range(256)) * 4, "it announces a header of"),
    "a page": (lambda h, f, data: b"<html><body>502 Bad Gateway</body></html>", "it announces a header of"),
}


class Spoiled(Loopback):
    """One client's answers to `train` are spoiled in the second round."""

    spoil: Spoil

    def carry(self, parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        answers = dict(super().carry(parcels))
        asked, _ = opened(next(iter(parcels.values()))[0])
        if asked.question == "train" and asked.context.round == 1 and ID in answers:
            answers[ID] = self.spoil(*opened(answers[ID]), answers[ID])  # type: ignore[arg-type]
        return answers


def spoiled(plan: Stages, spoil: Spoil) -> object:
    run = loopback(linear, clients(), plan, seed=3)
    run.clients.__class__ = Spoiled
    run.clients.spoil = spoil  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("place", ["server", "graph"])
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_message_is_as_none(kind: str, place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The centers are those of a run in which that client's message was lost in that round."""
    spoil, reason = MALFORMED[kind]
    topology = Server() if place == "server" else Graph("erdos-renyi", degree=3.0)
    plan = Stages((Stage(IFCA(2), 3, TRAINING, topology),))
    run = spoiled(plan, spoil)
    with caplog.at_level(logging.WARNING, "coterie"):
        sent = [run.step().clients.tolist() for _ in range(3)]  # type: ignore[attr-defined]
    assert [CLIENT in who for who in sent] == [True, False, True]
    assert len(sent[1]) == 5
    (line,) = [m for m in caplog.messages if "left out" in m]
    assert line.startswith(f"the message of client '{ID}' is left out: ")
    assert reason in line
    assert "\n" not in line
    absent = without(plan, topology)
    torch.testing.assert_close(run.state.centers, absent, rtol=0, atol=1e-8)  # type: ignore[attr-defined]


def without(plan: Stages, topology: Server | Graph) -> Tensor:
    """A simulation from whose second round one message is taken away before anybody combines."""
    run = simulation(plan, clients())
    ask = run.clients.ask

    def asked(question, offer, context):  # type: ignore[no-untyped-def]
        sent = ask(question, offer, context)
        if question == "train" and context.round == 1:
            return sent.take((sent.clients != CLIENT).nonzero()[:, 0])
        return sent

    run.clients.ask = asked  # type: ignore[method-assign]
    return finish(run).state.centers


SHARES = {
    "above 1": (lambda t: 0 * t + 1.5, "its field 'importance' is 1.5"),
    "below 0": (lambda t: 0 * t - 0.5, "its field 'importance' is -0.5"),
}


@pytest.mark.parametrize("kind", SHARES)
def test_importance_outside_0_to_1_is_refused(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    change, reason = SHARES[kind]
    run = spoiled(Stages((Stage(FedSoft(2), 3, TRAINING),)), field("importance", change))
    with caplog.at_level(logging.WARNING, "coterie"):
        finish(run)  # type: ignore[arg-type]
    assert any(reason in m for m in caplog.messages)


def test_a_peer_checks_its_neighbours_itself(caplog: pytest.LogCaptureFixture) -> None:
    """What is brought to it over a network need not have passed anybody else's eyes."""
    plan = Stages((Stage(FedAvg(), 1, TRAINING, Graph("complete")),))
    for kind, (spoil, _) in MALFORMED.items():
        if kind in ("unknown field", "a size that is no whole number", "another client's id"):
            continue  # of IFCA's fields; ids have a test of their own
        if "choice" in kind or kind == "a cluster that is not there":
            continue
        run = loopback(linear, clients(), plan, seed=3)
        everyone = run.clients._everyone()  # type: ignore[attr-defined]
        context = RoundContext(3)
        run.clients.ask("train", everyone, context)
        letters = dict(run.clients._sent)  # type: ignore[attr-defined]
        letters[CLIENT] = spoil(*opened(letters[CLIENT]), letters[CLIENT])  # type: ignore[arg-type]
        me = run.clients.responders[clients().ids[0]]  # type: ignore[attr-defined]
        question = seal(Header(me.run, me.id, "combine", context), {})
        caplog.clear()
        reply, _ = opened(me.reply([question, *letters.values()]))
        assert reply.problem == ""
        assert sum("left out" in m for m in caplog.messages) == 1, kind
        good = [opened(data)[1] for i, data in letters.items() if i != CLIENT]
        weight = torch.stack([one["size"] for one in good]).double()
        mean = (weight[:, None] * torch.stack([one["row"] for one in good])).sum(0) / weight.sum()
        torch.testing.assert_close(me.client.state.centers[0, 0], mean, rtol=0, atol=1e-12)


def test_a_client_set_up_with_other_settings_does_not_take_part(caplog: pytest.LogCaptureFixture) -> None:
    """Another learning rate at one client: its run has another name, and both sides say so."""
    plan, other = (Stages((Stage(FedAvg(), 1, replace(TRAINING, learning_rate=r)),)) for r in (0.02, 0.03))
    run, strange = loopback(linear, clients(), plan, seed=3), loopback(linear, clients(), other, seed=3)
    run.clients.responders[ID] = strange.clients.responders[ID]  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "coterie"):
        assert CLIENT not in run.step().clients.tolist()
    assert f"the message of client '{ID}' is left out: its run is" in caplog.text


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_opened_or_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        opened(data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_message_with_changed_bytes_is_opened_or_refused(data: st.DataObject) -> None:
    whole = bytearray(seal(Header("run", "a", "train", RoundContext(0)), {"row": torch.arange(4.0)}))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found, fields = opened(bytes(whole))
    except BadMessage:
        return
    assert isinstance(found.context, RoundContext)
    assert all(isinstance(t, Tensor) for t in fields.values())


def test_what_is_sealed_is_opened() -> None:
    context = RoundContext(5, 1, 2, 30, 7)
    header = Header("run", "klinik-β", "train", context)
    found, fields = opened(seal(header, {"row": torch.arange(3.0), "size": torch.tensor(7)}))
    assert found == header
    assert fields["row"].tolist() == [0, 1, 2]
    assert fields["size"].item() == 7
    assert Messages(torch.arange(1), {n: t[None] for n, t in fields.items()}).message_bytes == 3 * 4 + 8


# other questions than `train`


@pytest.mark.parametrize(
    ("question", "name", "change"),
    [
        ("finish", "rows", lambda t: t[..., :-1]),
        ("finish", "weights", lambda t: t.expand(3)),
        ("evaluate", "importance", lambda t: t.repeat(4)),
        ("evaluate", "loss", lambda t: t.expand(3)),
        ("evaluate", "loss", lambda t: t.to(torch.float8_e4m3fn)),
        ("size", "size", lambda t: t.int()),
        ("training_loss", "loss", lambda t: t.half()),
    ],
)
def test_a_malformed_answer_leaves_out_its_client_alone(
    question: str, name: str, change: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    run = loopback(linear, clients(), Stages((Stage(IFCA(2), 2, TRAINING),)), seed=3)
    carry = run.clients.carry  # type: ignore[attr-defined]

    def spoiling(parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        answers = dict(carry(parcels))
        head, fields = opened(answers[ID])
        if head.question == question:
            answers[ID] = seal(head, {**fields, name: change(fields[name])})
        return answers

    run.clients.carry = spoiling  # type: ignore[attr-defined]
    ended = play(run, clients().description, experiment="", evaluate_every=1)
    assert [
        m for m in caplog.messages if f"the message of client '{ID}' is left out: its field '{name}'" in m
    ]
    others = torch.tensor([i for i in range(6) if i != CLIENT])
    assert ended._result.importance[others].isfinite().all()
    assert ended.summary["personal"]["loss"] > 0


class Silent(Loopback):
    """Nobody answers some question, or nobody is to be asked it."""

    question, refuses = "", False

    def ask(self, question: Any, offer: Messages, context: RoundContext) -> Messages:
        if question == self.question and self.refuses:
            raise Refused("models stay with the clients")
        return super().ask(question, offer, context)

    def carry(self, parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        asked, _ = opened(next(iter(parcels.values()))[0])
        return {} if asked.question == self.question else super().carry(parcels)


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    "question",
    ["size", "training_loss", "evaluate", "finish", "fit", "judge", "gradient", "center_loss", "separation"],
)
def test_a_question_that_nobody_answers_ends_no_run(question: str, refuses: bool, tmp_path: Path) -> None:
    if question == "separation" and refuses:
        pytest.skip("without it several attempts cannot be compared")
    algorithm = {"finish": FedSPD(2), "center_loss": WeCFL(2)}.get(question, IFCA(2))
    plan = Stages((Stage(algorithm, 2, TRAINING, n_init=2),))
    run = loopback(linear, clients(), plan, seed=3)
    run.clients.__class__, run.clients.question, run.clients.refuses = Silent, question, refuses  # type: ignore
    ended = play(run, clients().description, experiment="", evaluate_every=1, out=tmp_path / "run")
    assert ended._result.centers.isfinite().all()
    assert (tmp_path / "run" / "summary.json").exists()
    if refuses:
        assert ended.summary["not_asked"][question] == "models stay with the clients"
    verdict = ended.verdict
    assert verdict is not None
    if question in ("judge", "finish"):
        assert (verdict.good, verdict.findings) == (None, ("unknown",))
        assert "is not known" in str(verdict)


# a client's end


def lose_begin(run: Coordinator) -> None:
    """The question by which a stage begins never reaches client ID."""
    carry = run.clients.carry  # type: ignore[attr-defined]

    def losing(parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        if opened(next(iter(parcels.values()))[0])[0].question == "begin":
            parcels = {id: parts for id, parts in parcels.items() if id != ID}
        return carry(parcels)  # type: ignore[no-any-return]

    run.clients.carry = losing  # type: ignore[attr-defined]


def test_who_missed_the_beginning_of_a_stage_begins_with_the_first_question() -> None:
    """Else it would train as the stage before, or with settings that nobody chose."""
    plan = Stage(FedAvg(), 1, TRAINING).then(Stage(FedAvg(), 1, replace(TRAINING, learning_rate=0.005)))
    whole = finish(loopback(linear, clients(), plan, seed=3))
    run = loopback(linear, clients(), plan, seed=3)
    lose_begin(run)
    torch.testing.assert_close(finish(run).state.centers, whole.state.centers, rtol=0, atol=0)


def test_a_peer_that_missed_the_centers_says_so(caplog: pytest.LogCaptureFixture) -> None:
    plan = Stage(FedAvg(), 1, TRAINING).then(Stage(FedAvg(), 1, TRAINING, Graph("complete")))
    run = loopback(linear, clients(), plan, seed=3)
    run.step()
    lose_begin(run)
    assert CLIENT not in run.step().clients.tolist()
    assert "it says: 'it was not told the centers that this stage begins with'" in caplog.text


def test_a_neighbour_counts_once_and_cannot_speak_for_me(caplog: pytest.LogCaptureFixture) -> None:
    run = loopback(linear, clients(), Stages((Stage(FedAvg(), 1, TRAINING, Graph("complete")),)), seed=3)
    context = RoundContext(3)
    run.clients.ask("train", run.clients._everyone(), context)  # type: ignore[attr-defined]
    letters = run.clients._sent  # type: ignore[attr-defined]
    me, ids = run.clients.responders[clients().ids[0]], clients().ids  # type: ignore[attr-defined]
    head, fields = opened(letters[1])
    mine = seal(replace(head, client=ids[0]), {**fields, "row": fields["row"] * 0 + 666})
    question = seal(Header(me.run, me.id, "combine", context), {})
    me.reply([question, letters[0], mine, letters[1], letters[1], letters[1]])
    (own, one) = (opened(letters[i])[1] for i in (0, 1))
    mean = (own["size"] * own["row"] + one["size"] * one["row"]) / (own["size"] + one["size"])
    torch.testing.assert_close(me.client.state.centers[0, 0], mean, rtol=0, atol=1e-12)
    assert sum("it came twice" in m for m in caplog.messages) == 2


def test_a_clients_folder_may_hold_other_runs(tmp_path: Path) -> None:
    """Files of a longer run lie there; those of this one are kept and found."""
    responders = []
    for rate in (0.02, 0.03):
        plan = Stages((Stage(FedAvg(), 50, replace(TRAINING, learning_rate=rate)),))
        run = loopback(linear, clients(), plan, seed=3)
        responders.append(Responder(run.clients.responders[ID].client, ID, 3, tmp_path))  # type: ignore[attr-defined]
    for responder, rounds in zip(responders, ((29, 39, 49), (9, 19)), strict=True):
        for number in rounds:
            asked = Header(responder.run, ID, "save", RoundContext(3, round=number, rounds=50))
            assert opened(responder.reply([seal(asked, {})]))[0].problem == ""
    kept = sorted(path.name.split("-")[1][:6] for path in tmp_path.iterdir())
    assert kept == ["000009", "000019", "000039", "000049"]
    asked = Header(responders[1].run, ID, "load", RoundContext(3, round=19, rounds=50))
    assert opened(responders[1].reply([seal(asked, {})]))[0].problem == ""
    strange = replace(asked, context=RoundContext(3, round=49, rounds=50))
    assert "is missing" in opened(responders[1].reply([seal(strange, {})]))[0].problem


def test_a_responder_answers_whatever_comes() -> None:
    run = loopback(linear, clients(), Stages((Stage(FedAvg(), 1, TRAINING),)), seed=3)
    me = run.clients.responders[ID]  # type: ignore[attr-defined]
    for parts in ([], [b""], [b"x" * 99], [seal(Header(me.run, ID, "sing", RoundContext(3)), {})]):
        head, fields = opened(me.reply(parts))
        assert head.problem
        assert not fields
    twice = torch.ones(1, 1, 10, dtype=torch.float64)
    asked = seal(Header(me.run, ID, "train", RoundContext(3)), {"centers": twice[0], "again": twice[0]})
    assert opened(me.reply([asked]))[0].problem == ""
