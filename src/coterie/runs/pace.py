"""When clients' models are evaluated.

That looks at every client, whoever trained: with thousands of them and a few in a round it would take longer than the
training.
"""

from __future__ import annotations

from typing import Literal

Every = int | Literal["auto"]  # rounds from one evaluation to the next; 0: never

LEAST = 10  # rounds at "auto" ...
PART = 2  # ... and until as many letters were told as one in so many of the clients, ...
MOST = 100  # ... but no more


class EvaluationInterval:
    """Counts rounds from one evaluation to the next."""

    def __init__(self, every: Every, clients: int):
        self.every, self.clients = every, clients
        self._rounds, self._letters = 0, 0

    def played(self, letters: int) -> bool:
        """One more round was played, in which so many letters were told: are models to be evaluated now?"""
        self._rounds += 1
        self._letters += letters
        if self.every == "auto":
            due = (self._rounds >= LEAST and PART * self._letters >= self.clients) or self._rounds >= MOST
        else:
            due = self._rounds == self.every
        if due:
            self._rounds, self._letters = 0, 0
        return due
