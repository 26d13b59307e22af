"""The processes that play one run together, on torch.distributed: which one this is, and what they exchange.

`torchrun` starts them, each with the whole program. All make the same calls in the same order; what the aggregators
know is the same in all of them, and clients are divided among them (sharded.py).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from coterie.backends.torchrun import launched
from coterie.errors import CoterieError, Lost

T = TypeVar("T")

WAIT = timedelta(minutes=30)  # for a process that says nothing; one whose connection ends is missed at once
CHUNK = 16 * 2**20  # bytes of rows that a process sends at a time


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of this run; alone, unless `join` says otherwise."""

    rank: int = 0
    size: int = 1
    nccl: bool = False  # between GPUs; otherwise everything goes through the hosts' memory
    store: Any = field(default=None, repr=False, compare=False)  # where torchrun has the processes meet

    @property
    def first(self) -> bool:
        """The one that writes and speaks."""
        return self.rank == 0

    def device(self, asked: torch.device | None) -> torch.device | None:
        """Each process of a host has a GPU of its own, as far as there are enough."""
        if self.size == 1:
            return asked
        cuda = torch.cuda.is_available() if asked is None else asked.type == "cuda"
        if not cuda:
            return torch.device("cpu")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def check(self, clients: int) -> None:
        if clients < self.size:
            raise CoterieError(
                f"{clients} clients cannot be divided among {self.size} processes; allowed are no more "
                "processes than clients"
            )

    # small things

    def all(self, work: Callable[[], T]) -> list[T]:
        """What every process makes of the same work; where one cannot, none goes on, and all say its reason."""
        if self.size == 1:
            return [work()]
        made: T | None = None
        problem: Exception | None = None
        try:
            made = work()
        except (CoterieError, OSError) as met:
            problem = met
        found: list[Any] = [None] * self.size
        with _missing():
            dist.all_gather_object(found, (None if problem is None else str(problem), made))
        if problem is not None:
            raise problem
        for reason, _ in found:
            if reason is not None:
                raise CoterieError(reason)
        return [made for _, made in found]

    def agree(self, work: Callable[[], T]) -> T:
        """My own result, when all have theirs."""
        mine: list[T] = []
        self.all(lambda: mine.append(work()))
        return mine[0]

    def once(self, work: Callable[[], T]) -> T:
        """The first process does it, and all know what came out."""
        made: Any = self.all(lambda: work() if self.first else None)[0]
        return made  # type: ignore[no-any-return]

    # tensors

    def sum(self, part: Tensor) -> Tensor:
        """The sum over all processes, the same bits in each."""
        return self._reduced(part, dist.ReduceOp.SUM)

    def max(self, part: Tensor) -> Tensor:
        """The greatest over all processes, number by number."""
        return self._reduced(part, dist.ReduceOp.MAX)

    def _reduced(self, part: Tensor, how: Any) -> Tensor:
        if self.size == 1:
            return part
        whole = self._carried(part).clone(memory_format=torch.contiguous_format)
        with _missing():
            dist.all_reduce(whole, how)
        return whole.to(part.device)

    def gather(self, rows: Tensor, owner: Tensor, only_first: bool = False) -> Tensor:
        """(row, ...) all rows in their order, from those of each process; owner (row,) says whose each is.

        In chunks, so that no process has more than the whole and a little; or the first alone, and the others none.
        """
        if self.size == 1:
            return rows
        order = torch.argsort(owner.to(rows.device), stable=True)
        places = torch.split(order, torch.bincount(owner, minlength=self.size).tolist())
        wanted = self.first or not only_first
        whole = rows.new_empty(len(owner) if wanted else 0, *rows.shape[1:])
        some = max(1, CHUNK // max(1, rows.shape[1:].numel() * rows.element_size()))
        for begin in range(0, max(map(len, places)), some):
            length = min(some, max(map(len, places)) - begin)
            sent = rows.new_zeros(length, *rows.shape[1:])
            part = rows[begin : begin + length]
            sent[: len(part)] = part
            found = self._gathered(sent)
            for at, got in zip(places, found, strict=True) if wanted else ():
                at = at[begin : begin + length]
                whole[at] = got[: len(at)]
        return whole

    def _gathered(self, sent: Tensor) -> list[Tensor]:
        """As bytes, which every backend carries, whatever the numbers are."""
        carried = self._carried(sent)
        flat = carried.reshape(-1).view(torch.uint8)
        found = [torch.empty_like(flat) for _ in range(self.size)]
        with _missing():
            dist.all_gather(found, flat)
        return [one.view(sent.dtype).view(sent.shape).to(sent.device) for one in found]

    def _carried(self, part: Tensor) -> Tensor:
        return part if self.nccl else part.cpu()

    # the end

    def speaks_of_loss(self) -> bool:
        """Is this the first process to notice that one is gone? Then it says so, and the others need not."""
        if self.store is None:
            return True
        try:
            return bool(self.store.add("noticed", 1) == 1)
        except RuntimeError:  # the place to meet is gone too
            return True


ALONE = ProcessGroup()


@contextmanager
def _missing() -> Iterator[None]:
    """The words for what torch.distributed raises when a connection ends, or nothing comes for too long."""
    try:
        yield
    except RuntimeError as problem:
        raise Lost("another process of this run is gone") from problem


@cache
def here() -> ProcessGroup:
    """The group that this process is in: that of torchrun, or its own."""
    if not launched():
        return ALONE
    nccl = torch.cuda.is_available() and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
    with _missing():
        store, rank, size = next(iter(rendezvous("env://", timeout=WAIT)))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=PrefixStore("run", store),
            rank=rank,
            world_size=size,
            timeout=WAIT,
        )
    atexit.register(dist.destroy_process_group)  # its threads abort a process that ends before them
    return ProcessGroup(rank, size, nccl, PrefixStore("coterie", store))


def wait_for_all(reason: str | None = None) -> None:
    """At the end: nobody leaves while another still reads, or has yet to say why; a reason is sent to all."""

    def end() -> None:
        if reason is not None:
            raise CoterieError(reason)

    if launched():
        with suppress(CoterieError, Lost):
            here().all(end)
