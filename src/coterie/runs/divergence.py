"""Clients whose training diverges: who they are, whether their data is to blame, and when a run is stopped for it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.protocol.message import Messages
from coterie.protocol.participation import Participation

log = logging.getLogger("coterie")

GROWN = 1e3  # a loss explodes if it is so many times a client's first one, and that of a blind guess
LEAST = 1.0  # a loss up to this has not exploded, whatever a guess has
CLIMB = 10  # centers are good while the median loss of those who train from them is at most so many times the least
PATIENCE = 3  # rounds in a row in which most of those who trained diverge, before the run is stopped
SILENCE = 5  # rounds in a row in which nobody is heard, ...
CHANCE = 1e-6  # ... if that is no chance: participation alone would make it less likely than this
NAMED = 5  # clients, in a sentence
STRANGE = 100  # data is out of scale if its largest number is so many times that of the median client
FIRST, LAST, MEDIAN = "loss.first", "loss.last", "loss.least"  # in a checkpoint


@dataclass(frozen=True)
class Stop:
    """Why a run goes no further."""

    rounds: int  # that were played
    says: str
    diverged: bool  # or nobody was heard


class Divergence:
    """What was seen of the clients' training losses so far."""

    def __init__(self, ids: Sequence[str], ask_scale: Callable[[], Messages | None]):
        self.ids, self.ask_scale = ids, ask_scale  # see protocol/scale.py
        self.first = torch.full(
            (len(ids),), torch.nan, dtype=torch.float64
        )  # (client,) the first loss of each
        self.last = self.first.clone()
        self.in_a_row = self.silent = 0  # rounds
        self.least = torch.tensor(torch.inf, dtype=torch.float64)  # median loss of a round
        self.good = True  # could clients train from the centers that they had in the last round?
        self.stop: Stop | None = None
        self._seen: dict[int, None] = {}  # clients that diverged, in the order seen; the first ones are named
        self._scale: Messages | None = None

    def played(
        self, rounds: int, sent: Messages, found: Messages | None, left_out: Tensor, counts: bool
    ) -> None:
        """After so many rounds: who was heard, their training losses, and whose messages were not finite.

        Unless the round `counts`, clients are named and no run is stopped: another attempt may do better.
        """
        self.last[left_out.cpu()] = torch.inf
        exploded = self._exploded(found)
        bad = sorted({*exploded, *left_out.tolist()})
        heard = len(sent) + len(left_out)
        most = bool(bad) and 2 * len(bad) > heard
        self.in_a_row = self.in_a_row + 1 if most and counts else 0
        if found is not None and len(found):
            median = found.loss.double().nanmedian().cpu().nan_to_num(torch.inf)
            self.least = torch.minimum(self.least, median)
            self.good = bool(median <= CLIMB * self.least)
        self.good = self.good and not most
        self._name([i for i in bad if i not in self._seen], rounds)
        if self.in_a_row >= PATIENCE:
            self.stop = self._stopped(rounds, len(bad), heard, f"in round {rounds}")

    def _exploded(self, found: Messages | None) -> list[int]:
        """Those heard whose loss is not finite, or has grown too far."""
        if found is None or not len(found):
            return []
        at, loss = found.clients.cpu(), found.loss.double().cpu()
        known = at[~loss.isnan()]
        loss = loss[~loss.isnan()]
        new = self.first[known].isnan() & loss.isfinite()
        self.first[known[new]] = loss[new]
        self.last[known] = loss
        grown = ~(loss <= GROWN * self.first[known].nan_to_num(0.0))
        high = new & (
            loss > GROWN * LEAST
        )  # at once, which is no matter of the rate if its data is out of scale
        if high.any():
            high &= torch.tensor(self._out_of_scale())[known]
        return self._beyond_a_guess(self.last, known[grown | high])

    def _beyond_a_guess(self, losses: Tensor, clients: Tensor | None = None) -> list[int]:
        """Of these clients, or of all, who do so much worse than a blind guess that it is no matter of a small first
        loss."""
        clients = (losses > LEAST).nonzero()[:, 0] if clients is None else clients
        if not len(clients):
            return []
        guess = self._of("guess")
        first = self.first.nan_to_num(LEAST).clamp(min=LEAST)  # where nobody may ask for a guess
        guess = torch.where(guess.isnan(), first, guess)
        found: list[int] = clients[~(losses[clients] <= GROWN * guess[clients])].tolist()
        return found

    def heard(self, anybody: bool, rounds: int, how: Participation) -> None:
        """Was anybody heard in this round?"""
        self.silent = 0 if anybody else self.silent + 1
        came = (1 - how.absent) * (1 - how.stragglers)
        nobody = (1 - came) ** max(1, round(how.fraction * len(self.ids)))
        if self.silent >= SILENCE and nobody**self.silent < CHANCE and self.stop is None:
            says = f"The run was stopped after {rounds} rounds: nobody was heard in the last {self.silent}."
            self.stop = Stop(rounds, says, diverged=False)

    def at_the_end(self, rounds: int) -> None:
        """A run has not ended well if most clients diverged in its last round, do much worse than a guess, or were
        never heard."""
        if self.stop is not None:
            return
        if self.silent == rounds > 0:
            nobody = f"Nobody was heard in any of the {rounds} rounds"
            says = f"{nobody}, so nothing was learned. Lower absent or stragglers."
            self.stop = Stop(rounds, says, diverged=False)
            return
        self._stop_if_most(rounds, self.last, f"in round {rounds}")

    def scored(self, rounds: int, losses: Tensor) -> None:
        """(client,) of the models at the end on held-out points: nobody trains from the last centers, good or not."""
        if self.stop is None:
            self._stop_if_most(rounds, losses.double().cpu(), "at the end, on held-out points,")

    def _stop_if_most(self, rounds: int, losses: Tensor, when: str) -> None:
        known, bad = int((~losses.isnan()).sum()), self._beyond_a_guess(losses)
        if 2 * len(bad) > known:
            self.stop = self._stopped(rounds, len(bad), known, when)

    # saved between rounds; no round in which most diverged is

    def save(self) -> tuple[dict[str, Tensor], dict[str, int]]:
        return {FIRST: self.first, LAST: self.last, MEDIAN: self.least}, {"silent": self.silent}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, int], keys: Tensor) -> None:
        """For clients who may be listed in another order now."""
        if FIRST in tensors:  # runs of older versions have none
            saved = {key: i for i, key in enumerate(tensors["clients"].tolist())}
            order = [saved[key] for key in keys.tolist()]
            self.first, self.last, self.least = tensors[FIRST][order], tensors[LAST][order], tensors[MEDIAN]
            self.silent = numbers["silent"]

    # in words

    def _stopped(self, rounds: int, bad: int, heard: int, when: str) -> Stop:
        what = f"{when} {bad} of {heard} clients had a loss that is not finite or has exploded"
        return Stop(rounds, f"The run diverged: {what}. {self._advice()}", diverged=True)

    def _advice(self) -> str:
        strange = self._strange()
        if strange:
            return f"Look at the data of {self._listed(strange)}, which is out of scale."
        return "Try a smaller learning_rate."

    def _strange(self) -> list[int]:
        """Who do badly, or did at first, and have data that is out of scale; a run that was resumed knows it too."""
        bad, out_of_scale = self._beyond_a_guess(torch.fmax(self.first, self.last)), self._out_of_scale()
        return [i for i in bad if out_of_scale[i]]

    def _name(self, clients: list[int], rounds: int) -> None:
        """Each once, and not too many; the others are counted."""
        room = max(0, NAMED - len(self._seen))
        self._seen.update(dict.fromkeys(clients))
        strange = self._strange() if clients[:room] else []
        others = (
            f"look at the data of {self._listed(strange)}" if strange else "a smaller learning_rate may help"
        )
        for client in clients[:room]:
            what = _loss(float(self.first[client]), float(self.last[client]))
            blame = "its data is out of scale" if client in strange else others
            about = f"{what}{self._data(client)}; {blame}"
            log.warning("client %r diverged in round %d: %s", self.ids[client], rounds, about)
        if len(clients) > room:
            more = len(clients) - room
            log.warning("%d more client%s diverged in round %d", more, "" if more == 1 else "s", rounds)

    def _data(self, client: int) -> str:
        own = [float(self._of(name)[client]) for name in ("input", "target")]
        if any(number != number for number in own):
            return ""
        middle = [float(self._of(name).nanmedian()) for name in ("input", "target")]
        return (
            f" (its largest input is {own[0]:.3g} and its largest label {own[1]:.3g}; "
            f"of the median client they are {middle[0]:.3g} and {middle[1]:.3g})"
        )

    def _out_of_scale(self) -> list[bool]:
        """Of every client, whether its data is."""
        inputs, targets = (
            one > STRANGE * one.nanmedian().clamp(min=1e-12)
            for one in (self._of("input"), self._of("target"))
        )
        found: list[bool] = (inputs | targets).tolist()
        return found

    def _of(self, name: str) -> Tensor:
        """(client,) what clients say of their data, who are asked once; nan where they do not."""
        if self._scale is None:
            self._scale = self.ask_scale() or Messages(torch.arange(0), {})
        if name not in self._scale.fields:
            return torch.full_like(self.first, torch.nan)
        return self._scale.scattered(name, len(self.ids)).double().cpu()

    def _listed(self, clients: list[int]) -> str:
        words = [repr(self.ids[i]) for i in clients[:NAMED]]
        words += [f"{len(clients) - NAMED} more"] if len(clients) > NAMED else []
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _loss(first: float, last: float) -> str:
    """Of a client, in words."""
    if not math.isfinite(last):
        return "its model is not finite"
    return f"its loss {'is' if first == last else 'grew to'} {last:.3g}"
