"""Clients that are somewhere else: questions go out as bytes, and answers are checked one by one as they come in.

A backend writes `RemoteClients.carry`, how bytes travel, and has a `Responder` answer at the other end.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.engine.model import FunctionalModel
from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole
from coterie.protocol.clients import Question
from coterie.protocol.envelope import PROTOCOL, BadMessage, Header, opened, seal
from coterie.protocol.fields import refusal
from coterie.protocol.message import ALONE, Fields, Messages, RoundContext
from coterie.protocol.peer import Peer
from coterie.protocol.personal import is_shared
from coterie.protocol.questions import declared
from coterie.protocol.round import hop_weights
from coterie.protocol.stages import Stages

log = logging.getLogger("coterie")

Parts = Sequence[bytes]  # what one client is sent at once: a question, and what its neighbours sent


def run_name(stages: Stages, seed: int, model: FunctionalModel) -> str:
    """Of a run's settings: two sides that were set up differently do not take each other's messages."""
    layout = [(slot.name, tuple(slot.shape)) for slot in (*model.rows.parameters, *model.rows.tail)]
    loss = getattr(model.loss, "__name__", type(model.loss).__name__)
    text = f"{PROTOCOL} {seed} {model.dtype} {loss} {layout} {[repr(stage) for stage in stages]}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def checked(data: bytes, expected: Header, stages: Stages, model: FunctionalModel) -> Fields:
    """The fields of a message that is what was waited for; raises `BadMessage` if it is not."""
    header, fields = opened(data)
    header.check(expected)
    stage = stages[expected.context.stage]
    wanted = declared(expected.question, stage)  # type: ignore[arg-type]
    if wanted is not None:
        sizes = {"width": model.rows.width, "cluster": stage.algorithm.clusters()}
        why = refusal(fields, wanted, sizes, model.dtype)
        if why is not None:
            raise BadMessage(why)
    return fields


class RemoteClients(ABC):
    """`Clients` over any way to carry bytes."""

    group = ALONE

    def __init__(
        self, ids: Sequence[str], stages: Stages, seed: int, model: FunctionalModel, peers: bool = False
    ):
        self.ids, self.stages, self.model, self.peers = tuple(ids), stages, model, peers
        self.run = run_name(stages, seed, model)
        self._sent: dict[
            int, bytes
        ] = {}  # over a graph: what each client sent when it last trained or passed on
        self._passed = False

    @abstractmethod
    def carry(self, parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        """Bring clients, by id, what is for them; what each answered. Who fell silent is missing."""

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        headers = {i: Header(self.run, self.ids[i], question, context) for i in offer.clients.tolist()}
        # what is the same for all is brought from a GPU once
        fields = {n: (t[:1].cpu().expand_as(t) if is_shared(t) else t.cpu()) for n, t in offer.fields.items()}
        parcels = {
            self.ids[i]: [seal(header, {n: t[number] for n, t in fields.items()})]
            for number, (i, header) in enumerate(headers.items())
        }
        return self._taken(headers, self.carry(parcels) if parcels else {}, offer.clients.device)

    def _taken(
        self, headers: Mapping[int, Header], replies: Mapping[str, bytes], device: torch.device
    ) -> Messages:
        """The answers that are what was asked for; who sent something else counts as absent."""
        good: dict[int, Fields] = {}
        for i, header in headers.items():
            reply = replies.get(header.client)
            if reply is None:
                log.warning("client %r does not answer %r and is left out", header.client, header.question)
                continue
            try:
                good[i] = checked(reply, header, self.stages, self.model)
            except BadMessage as why:
                _leave_out(header.client, why)
        good = self._completed(self._alike(good))
        asked = next(iter(headers.values()), None)
        if asked is not None and asked.question in ("train", "pass") and self._over_graph(asked.context):
            self._sent, self._passed = {i: replies[self.ids[i]] for i in good}, asked.question == "pass"
        clients = torch.tensor(list(good), dtype=torch.long, device=device)
        names = next(iter(good.values()), {})
        return Messages(
            clients, {n: torch.stack([one[n] for one in good.values()]).to(device) for n in names}
        )

    def _alike(self, good: dict[int, Fields]) -> dict[int, Fields]:
        """Those whose fields have the shapes that most have: not every shape is declared."""
        kinds = {(i, n): (tuple(t.shape), t.dtype) for i, one in good.items() for n, t in one.items()}
        for name in {name for _, name in kinds}:
            of_name = {i: kind for (i, n), kind in kinds.items() if n == name and i in good}
            usual = Counter(of_name.values()).most_common(1)
            for i in [i for i, kind in of_name.items() if kind != usual[0][0]]:
                _leave_out(
                    self.ids[i], f"its field {name!r} has another shape or type than that of most clients"
                )
                del good[i]
        return good

    def _completed(self, good: dict[int, Fields]) -> dict[int, Fields]:
        """With nan in place of optional fields that only others have."""
        every = {name: t for one in good.values() for name, t in one.items()}
        return {
            i: {n: one[n] if n in one else torch.full_like(t, torch.nan) for n, t in every.items()}
            for i, one in good.items()
        }

    def _over_graph(self, context: RoundContext) -> bool:
        return self.peers and not self.stages[context.stage].topology.is_server

    def deliver(self, sent: Messages, edges: Tensor, context: RoundContext) -> None:
        weights = hop_weights(self.stages[context.stage], edges, len(self.ids), context)
        spoke, headers = torch.isin(edges[1], sent.clients), {}
        parcels: dict[str, Parts] = {}
        for i in sorted(set(edges[0].tolist())):
            headers[i] = Header(self.run, self.ids[i], "join" if self._passed else "combine", context)
            mine = spoke & (edges[0] == i)
            fields = {} if weights is None else {"weights": weights[mine].cpu()}
            parcels[self.ids[i]] = [
                seal(headers[i], fields),
                *(self._sent[j] for j in edges[1][mine].tolist()),
            ]
        self._sent = {}
        self._taken(headers, self.carry(parcels), edges.device)

    def save(self, context: RoundContext) -> dict[str, Tensor]:
        """Every client writes what it keeps to its own disk."""
        self.ask("save", self._everyone(), context)
        return {}

    def load(self, tensors: dict[str, Tensor], order: Tensor, context: RoundContext) -> None:
        self.ask("load", self._everyone(), context)

    def _everyone(self) -> Messages:
        return Messages(torch.arange(len(self.ids)), {})


def _are_weights(weights: Tensor, count: int) -> bool:
    return weights.shape == (count,) and bool(((weights >= 0) & weights.isfinite()).all())


def _leave_out(client: str, why: object) -> None:
    log.warning("the message of client %r is left out: %s", client, why)


class Responder:
    """A client's end: opens what comes in, answers, and keeps its state on its own disk if it has a folder."""

    def __init__(self, client: Peer, id: str, seed: int, folder: Path | None = None):
        self.client, self.id, self.folder = client, id, folder
        self.run = run_name(client.stages, seed, client.cohort.model)
        self._own: Fields | None = None  # over a graph: what it sent in this round

    def reply(self, parts: Parts) -> bytes:
        """To a question as bytes, and to what neighbours sent if the question is to combine that."""
        header = Header(self.run, self.id, "", RoundContext(0))
        try:
            asked, fields = opened(parts[0] if parts else b"")
            header = replace(header, question=asked.question, context=asked.context)
            asked.check(header)
            return seal(header, self._answer(asked, fields, parts[1:]))
        except (BadMessage, CoterieError) as why:
            problem = str(why)
        except Exception as why:  # one question that cannot be answered does not end a client
            log.exception("client %r could not answer %r", self.id, header.question)
            problem = f"{type(why).__name__}: {why}"
        return seal(replace(header, problem=problem), {})

    def _answer(self, asked: Header, fields: Fields, others: Parts) -> Fields:
        question, context = asked.question, asked.context
        if not 0 <= context.stage < len(self.client.stages):
            raise BadMessage(f"there is no stage {context.stage}")
        if question == "save":
            self._save(context)
        elif question == "load":
            self._load(context)
        elif question in ("combine", "join"):
            self._combine(others, fields.get("weights"), context, passed=question == "join")
        else:
            at, device = self.client.cohort.at, self.client.cohort.model.device
            offer = Messages(torch.zeros_like(at), {n: t.to(device)[None] for n, t in fields.items()})
            answered = self.client.answer(question, offer, context)  # type: ignore[arg-type]
            answer = {n: t[0].cpu() for n, t in answered.items()}
            self._own = answer if question in ("train", "pass") else self._own
            return answer
        return {}

    def _combine(self, parts: Parts, weights: Tensor | None, context: RoundContext, passed: bool) -> None:
        """What neighbours sent is checked as a server would; what I sent myself I need nobody to bring."""
        received: dict[str, Fields] = {}
        counts: dict[str, float] = {}
        if weights is not None and not _are_weights(weights, len(parts)):
            raise BadMessage("its field 'weights' is not one number from 0 for each message")
        for data, weight in zip(
            parts, [1.0] * len(parts) if weights is None else weights.tolist(), strict=True
        ):
            sender = "?"
            try:
                sender = opened(data)[0].client
                expected = Header(self.run, sender, "pass" if passed else "train", context)
                fields = checked(data, expected, self.client.stages, self.client.cohort.model)
                if sender in received:
                    raise BadMessage("it came twice")
            except BadMessage as why:
                _leave_out(sender, why)
                continue
            counts.setdefault(sender, weight)
            if sender != self.id:
                received[sender] = fields
        own, self._own = self._own if self.id in counts else None, None  # if it was fit to be sent
        mine = [] if own is None else [counts[self.id]]
        weighed = (
            None
            if weights is None
            else torch.tensor([*mine, *(counts[id] for id in received)], dtype=torch.float64)
        )
        self.client.combine(own, list(received.values()), context, weighed, passed)

    # its own disk: what it kept after each of the last two checkpoints of this run

    def _file(self, context: RoundContext) -> Path:
        if self.folder is None:
            raise CoterieError("this client has no folder to keep its state in")
        return self.folder / f"{self.run}-{context.of_run:06d}.safetensors"

    def _save(self, context: RoundContext) -> None:
        path = self._file(context)
        make_folder(path.parent)
        # copies, for the best attempt and the present one may be the same tensors
        write_whole(path, save({n: t.detach().cpu().clone() for n, t in self.client.save().items()}))
        older = sorted(file for file in path.parent.glob(f"{self.run}-*.safetensors") if file < path)
        for file in older[:-1]:
            file.unlink(missing_ok=True)

    def _load(self, context: RoundContext) -> None:
        path = self._file(context)
        if not path.is_file():
            raise CoterieError(f"{path} is missing; this client goes on without what it kept")
        self.client.load(load(path.read_bytes()), torch.zeros_like(self.client.cohort.at).cpu())
