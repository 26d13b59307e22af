"""When clients' models are evaluated.

It looks at every client, whoever trained: with thousands of them and a few in a round it would take longer than the
training.
"""

from __future__ import annotations

from typing import Literal

Every = int | Literal["auto"]

ROUNDS = 10  # from one evaluation to the next at "auto", at the least ...
PART = 2  # ... and until as many clients have told something as one in so many of all


class Pace:
    """Counts rounds; `every` 0 is never."""

    def __init__(self, every: Every, clients: int):
        self.every, self.clients = every, clients
        self._rounds, self._told = 0, 0  # since the last evaluation

    def is_due(self, told: int) -> bool:
        """After one more round, in which so many clients told something."""
        self._rounds += 1
        self._told += told
        if self.every == "auto":
            due = self._rounds >= ROUNDS and PART * self._told >= self.clients
        else:
            due = self._rounds == self.every
        if due:
            self._rounds, self._told = 0, 0
        return due
