"""The clients' half, block by block where the rows of all would not be in memory at once.

A client computes from what it is sent, its own data and its own memory, so it makes no difference to it who is
computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coterie.engine import storage
from coterie.protocol.cohort import Cohort
from coterie.protocol.message import Fields, Messages


def parts(cohort: Cohort, offer: Messages) -> Iterator[tuple[slice, Cohort, Messages]]:
    """Some of the clients at a time with their letters: few enough for what they are sent and make of it."""
    row = cohort.model.rows.width * torch.finfo(cohort.model.dtype).bits // 8
    for some in storage.blocks(len(cohort), offer.message_bytes + row, cohort.at.device):
        clients = torch.arange(len(cohort), device=cohort.at.device)[some]
        whole = len(clients) == len(cohort)
        yield some, cohort if whole else cohort.take(clients), offer if whole else offer.take(clients)


def sent(answer: Callable[[Cohort, Messages], Fields], cohort: Cohort, offer: Messages) -> Fields:
    """What all of them answer."""
    fields: dict[str, Tensor] = {}
    for some, clients, letters in parts(cohort, offer):
        said = answer(clients, letters)
        if len(clients) == len(cohort):
            return said
        for name, value in said.items():
            put(fields, name, some, value, len(cohort))
    return fields


def put(tables: dict[str, Tensor], name: str, some: slice, value: Tensor, clients: int) -> None:
    """Values of some of the clients into the table of that name."""
    if name not in tables:
        tables[name] = storage.table((clients, *value.shape[1:]), value.dtype, value.device)
    tables[name][some] = value
