"""A third place to run: one operating-system process for each client, over pipes.

It stands here to show what a backend has to write: how bytes travel, and nothing else.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from coterie.protocol import (
    Coordinator,
    RemoteClients,
    Responder,
    Stages,
    cohort_of,
    functional_model,
    peer_of,
    server_model,
)

FORK = multiprocessing.get_context("fork")
WAIT = 60.0  # seconds for an answer; who takes longer is absent from the round


class Pipes(RemoteClients):
    """Clients at the other ends of pipes."""

    def __init__(self, pipes: Mapping[str, Connection], stages: Stages, seed: int, model: Any):
        super().__init__(list(pipes), stages, seed, model, peers=True)
        self.pipes, self.asked = pipes, 0

    def carry(self, parcels: Mapping[str, Any]) -> Mapping[str, bytes]:
        self.asked += 1
        for id, parts in parcels.items():
            try:
                self.pipes[id].send_bytes(len(parts).to_bytes(4, "little"))
                for part in parts:
                    self.pipes[id].send_bytes(part)
            except (BrokenPipeError, OSError):
                continue  # its process is gone: it will not answer
        found = {}
        for id in parcels:
            try:
                if self.pipes[id].poll(WAIT):
                    found[id] = self.pipes[id].recv_bytes()
            except (EOFError, OSError):
                continue
        return found


Spoil = Callable[[str, int, bytes], bytes | None]  # client, how many questions it was asked, its answer


def work(
    pipe: Connection,
    build: Any,
    own: Any,
    stages: Stages,
    seed: int,
    folder: Path | None,
    spoil: Spoil | None,
) -> None:
    """A client's process: it has its own data and nobody else's."""
    torch.set_num_threads(1)
    model = functional_model(build, own, seed=seed, dtype=torch.float64, device=torch.device("cpu"))
    peer = peer_of(cohort_of(model, own, seed), 0, stages)
    (id,) = own.ids
    responder = Responder(peer, id, seed, None if folder is None else folder / id)
    asked = 0
    while True:
        try:
            number = int.from_bytes(pipe.recv_bytes(), "little")
            answer: bytes | None = responder.reply([pipe.recv_bytes() for _ in range(number)])
        except EOFError:
            return  # the run is over
        if spoil is not None and answer is not None:
            answer = spoil(id, asked, answer)
        asked += 1
        if answer is None:
            return  # it falls silent for good
        pipe.send_bytes(answer)


@contextmanager
def over_pipes(
    build: Any,
    data: Any,
    stages: Stages,
    *,
    seed: int = 3,
    folder: Path | None = None,
    spoil: Spoil | None = None,
) -> Iterator[Coordinator]:
    """A run over such clients; their processes end with it. With a folder clients keep their state there."""
    ends = {id: FORK.Pipe() for id in data.ids}
    workers = []
    for i, (_, theirs) in enumerate(ends.values()):
        arguments = (theirs, build, data.permuted([i]), stages, seed, folder, spoil)
        workers.append(
            FORK.Process(target=_alone, args=(list(ends.values()), i, work, arguments), daemon=True)
        )
        workers[-1].start()
    for _, theirs in ends.values():
        theirs.close()
    model = server_model(build, data.task, seed=seed, dtype=torch.float64, device=torch.device("cpu"))
    clients = Pipes({id: mine for id, (mine, _) in ends.items()}, stages, seed, model)
    try:
        yield Coordinator(model, stages, clients, data.ids, seed)
    finally:
        for mine, _ in ends.values():
            mine.close()
        for worker in workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()


def _alone(ends: list[Any], own: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """A forked process has copies of all pipes: it closes those that are not its own, so that an end is seen."""
    for i, (mine, theirs) in enumerate(ends):
        mine.close()
        if i != own:
            theirs.close()
    target(*arguments)
