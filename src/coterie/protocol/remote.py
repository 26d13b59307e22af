"""Clients that are somewhere else: questions go out as bytes, and answers are checked one by one as they come in.

A backend writes `RemoteClients.carry`, how bytes travel, and has a `Responder` answer at the other end.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from coterie.engine.model import FunctionalModel
from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole
from coterie.protocol.client import ITSELF
from coterie.protocol.clients import Question
from coterie.protocol.envelope import PROTOCOL, BadMessage, Header, opened, seal
from coterie.protocol.fields import refusal
from coterie.protocol.message import ALONE, Fields, Messages, RoundContext
from coterie.protocol.peer import Peer
from coterie.protocol.questions import declared
from coterie.protocol.stages import Stages

log = logging.getLogger("coterie")

Parts = Sequence[bytes]  # what one client is sent at once: a question, and what its neighbours sent


def run_name(stages: Stages, seed: int) -> str:
    """Two sides that were set up differently do not take each other's messages."""
    text = f"{PROTOCOL} {seed} {[repr(stage) for stage in stages]}"
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
        self.run = run_name(stages, seed)
        self._sent: dict[int, bytes] = {}  # what each client sent when it was last trained

    @abstractmethod
    def carry(self, parcels: Mapping[str, Parts]) -> Mapping[str, bytes]:
        """Bring clients, by id, what is for them; what each answered. Who fell silent is missing."""

    def ask(self, question: Question, offer: Messages, context: RoundContext) -> Messages:
        headers = {i: Header(self.run, self.ids[i], question, context) for i in offer.clients.tolist()}
        fields = {n: t.cpu() for n, t in offer.fields.items()}
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
                log.warning("the message of client %r is left out: %s", header.client, why)
        if headers and next(iter(headers.values())).question == "train":
            self._sent = {i: replies[self.ids[i]] for i in good}
        clients = torch.tensor(list(good), dtype=torch.long, device=device)
        return Messages(clients, {n: _stacked(good, n).to(device) for n in _common(good)})

    def deliver(self, sent: Messages, edges: Tensor, context: RoundContext) -> None:
        present = sorted(set(edges[0].tolist()))
        spoke = set(sent.clients.tolist())
        parcels: dict[str, Parts] = {}
        for i in present:
            senders = [j for j in edges[1][edges[0] == i].tolist() if j in spoke]
            header = Header(self.run, self.ids[i], "combine", context)
            parcels[self.ids[i]] = [seal(header, {}), *(self._sent[j] for j in senders)]
        headers = {i: Header(self.run, self.ids[i], "combine", context) for i in present}
        self._taken(headers, self.carry(parcels), edges.device)

    def save(self, context: RoundContext) -> dict[str, Tensor]:
        """Every client writes what it keeps to its own disk."""
        self.ask("save", self._everyone(), context)
        return {}

    def load(self, tensors: dict[str, Tensor], order: Tensor, context: RoundContext) -> None:
        self.ask("load", self._everyone(), context)

    def _everyone(self) -> Messages:
        return Messages(torch.arange(len(self.ids)), {})


def _common(good: Mapping[int, Fields]) -> list[str]:
    """The fields that all have: optional ones may be missing."""
    every = list(good.values())
    return [name for name in every[0] if all(name in one for one in every)] if every else []


def _stacked(good: Mapping[int, Fields], name: str) -> Tensor:
    return torch.stack([fields[name] for fields in good.values()])


class Responder:
    """A client's end: opens what comes in, answers, and keeps its state on its own disk if it has a folder."""

    def __init__(self, client: Peer, id: str, seed: int, folder: Path | None = None):
        self.client, self.id, self.folder = client, id, folder
        self.run = run_name(client.stages, seed)

    def reply(self, parts: Parts) -> bytes:
        """To a question as bytes, and to what neighbours sent if the question is to combine that."""
        try:
            header, fields = opened(parts[0])
        except BadMessage as why:
            return seal(Header(self.run, self.id, "", RoundContext(0), str(why)), {})
        try:
            header.check(Header(self.run, self.id, header.question, header.context))
            answer, problem = self._answer(header, fields, parts[1:]), ""
        except (BadMessage, CoterieError) as why:
            answer, problem = {}, str(why)
        except Exception as why:  # one question that cannot be answered does not end a client
            log.exception("client %r could not answer %r", self.id, header.question)
            answer, problem = {}, f"{type(why).__name__}: {why}"
        return seal(Header(self.run, self.id, header.question, header.context, problem), answer)

    def _answer(self, header: Header, fields: Fields, others: Parts) -> Fields:
        question, context = header.question, header.context
        if not 0 <= context.stage < len(self.client.stages):
            raise BadMessage(f"there is no stage {context.stage}")
        if question == "save":
            self._save(context)
        elif question == "load":
            self._load(context)
        elif question == "combine":
            self._combine(others, context)
        else:
            offer = Messages(ITSELF, {n: t[None] for n, t in fields.items()})
            answered = self.client.answer(question, offer, context)  # type: ignore[arg-type]
            return {n: t[0] for n, t in answered.items()}
        return {}

    def _combine(self, parts: Parts, context: RoundContext) -> None:
        """What neighbours sent is checked as a server would; the header says who a neighbour claims to be."""
        own, others = None, list[Fields]()
        for data in parts:
            sender = "?"
            try:
                sender = opened(data)[0].client
                expected = Header(self.run, sender, "train", context)
                fields = checked(data, expected, self.client.stages, self.client.cohort.model)
            except BadMessage as why:
                log.warning("the message of client %r is left out: %s", sender, why)
                continue
            if sender == self.id:
                own = fields
            else:
                others.append(fields)
        self.client.combine(own, others, context)

    # its own disk

    def _file(self, context: RoundContext) -> Path:
        if self.folder is None:
            raise CoterieError("this client has no folder to keep its state in")
        return self.folder / f"state-{context.of_run:06d}.safetensors"

    def _save(self, context: RoundContext) -> None:
        path = self._file(context)
        make_folder(path.parent)
        # copies, for the best attempt and the present one may be the same tensors
        tensors = {n: t.detach().cpu().clone() for n, t in self.client.save().items()}
        write_whole(path, save(tensors))
        for old in sorted(path.parent.glob("state-*.safetensors"))[:-2]:
            old.unlink(missing_ok=True)

    def _load(self, context: RoundContext) -> None:
        path = self._file(context)
        if not path.is_file():
            raise CoterieError(f"{path} is missing; this client goes on without what it kept")
        self.client.load(load(path.read_bytes()), ITSELF)
