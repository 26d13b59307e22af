"""The clients' half, block by block where the rows of all would not be in memory at once.

A client computes from what it is sent, its own data and its own state, so it makes no difference to it who is computed
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from coterie.engine import storage
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages
from coterie.protocol.personal import is_shared


def parts(cohort: Cohort, offer: Messages) -> Iterator[tuple[slice, Cohort, Messages]]:
    """Some of the clients at a time with their messages: few enough for what they are sent and make of it."""
    row = cohort.model.rows.width * torch.finfo(cohort.model.dtype).bits // 8
    for some in storage.blocks(len(cohort), offer.message_bytes + row, cohort.at.device):
        clients = torch.arange(len(cohort), device=cohort.at.device)[some]
        whole = len(clients) == len(cohort)
        yield some, cohort if whole else cohort.take(clients), offer if whole else offer.take(clients)


def answered(
    answer: Callable[[Cohort, Messages], Fields],
    cohort: Cohort,
    offer: Messages,
    at_home: Sequence[str] = (),
) -> Fields:
    """What all of them answer. Fields that are `at_home` need not lie on the device that computes."""
    fields: dict[str, Tensor] = {}
    kept = {name: Kept(len(cohort)) for name in at_home}
    for some, clients, offers in parts(cohort, offer):
        for name, value in answer(clients, offers).items():
            if name in kept:
                kept[name].put(some, value)
            elif len(clients) == len(cohort):
                fields[name] = value
            else:
                _put(fields, name, some, value, len(cohort))
    return {**fields, **{name: one.rows for name, one in kept.items()}}


def _put(tables: dict[str, Tensor], name: str, some: slice, value: Tensor, clients: int) -> None:
    """Values of some of the clients into the table of that name."""
    if name not in tables:
        tables[name] = storage.table((clients, *value.shape[1:]), value.dtype, value.device)
    tables[name][some] = value


class Kept:
    """Rows of all clients, put together block by block; one row for all is kept once."""

    rows: Tensor  # (client, ...)

    def __init__(self, clients: int):
        self.clients = clients

    def put(self, some: slice, rows: Tensor) -> None:
        """Rows of some of the clients, in their order."""
        shared = is_shared(rows)
        if shared and (some.start == 0 or (is_shared(self.rows) and torch.equal(rows[0], self.rows[0]))):
            self.rows = rows[:1].expand(self.clients, *rows.shape[1:])
            return
        home = storage.home(rows.shape[1:], self.clients, rows.dtype, rows.device)
        if len(rows) == self.clients:
            self.rows = rows.to(home)
            return
        if some.start == 0 or is_shared(self.rows):
            table = storage.table((self.clients, *rows.shape[1:]), rows.dtype, home)
            if some.start:
                table[: some.start] = self.rows[: some.start]
            self.rows = table
        self.rows[some] = rows.to(home)
