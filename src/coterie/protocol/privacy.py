"""Differential privacy where messages leave a client: what is clipped, noised or withheld, whatever the algorithm."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from coterie.engine.rows import Rows
from coterie.errors import require
from coterie.prng import gaussian, mix
from coterie.protocol.algorithm import Algorithm
from coterie.protocol.cohort import Cohort
from coterie.protocol.fields import ROWS, Declared, Role
from coterie.protocol.message import Fields, Messages
from coterie.validation import Checked

log = logging.getLogger("coterie")

Leaves = Literal["withheld", "sent"]
LEAST_IMPORTANCE = 1e-4  # once it was noised: no cluster has none
BLOCK = 2**22  # numbers of noise drawn at once
LEAST_NOISE = 1e-9  # below this it hides nothing, and its ε is beyond what can be computed
_OWN = {  # of each mechanism: what it needs, and what it cannot have
    "client": ("noise", ("epsilon",)),
    "paper": ("epsilon", ("noise", "importance_noise", "target_epsilon")),
}


@dataclass(frozen=True)
class Privacy(Checked):
    """Noise on what clients send, added at the client.

    `client` clips a client's update, its row minus what it was sent, over all that one message says of models, and
    adds Gaussian noise; every message of the planned rounds is counted. `paper` is FedSPD's B.2.6 as printed: each row
    is clipped to C, and σ = √(2 ln(1.25/δ))·C/ε. Its ε is per message, as printed, not a guarantee above 1.
    Choice: `paper` clips the row itself, as Wei et al. 2020 do, whom B.2.6 follows; the sensitivity, which B.2.6 does
    not print, is C; only trained parameters are clipped and noised. The final phase sends nothing and has no noise.
    """

    mechanism: Literal["client", "paper"] = "client"  # clip and noise updates and count, or rows as printed
    clip: float = 1.0  # C: the longest that a message's update (paper: a row) may be
    noise: float | None = None  # client: deviation of the noise, in clips; 0: clip alone
    epsilon: float | None = None  # paper: ε of one message, as printed
    delta: float = 1e-5  # δ
    target_epsilon: float | None = None  # client: a run whose planned rounds come to more is refused
    size: Leaves = "withheld"  # client: all clients count alike; sent: not covered
    importance_noise: float | None = None  # client: deviation of the noise on importance; None: not covered
    buffers: Leaves = "withheld"  # client: batch-norm statistics stay as they began; sent: not covered
    neighbour: Literal["absent", "replaced"] = "absent"  # client: ε is against no update, or any other data

    def __post_init__(self) -> None:
        super().__post_init__()
        finite = self.clip < math.inf or (self.mechanism == "client" and self.noise == 0)
        require(self.clip > 0 and finite, "clip", self.clip, "above 0, and finite where there is noise")
        require(0 < self.delta < 1, "delta", self.delta, "above 0 and below 1")
        needed, others = _OWN[self.mechanism]
        value = getattr(self, needed)
        known = value is not None and 0 <= value < math.inf and (value > 0 or needed == "noise")
        require(known, needed, value, f"a number above 0, with mechanism = {self.mechanism!r}")
        for name in ("noise", "importance_noise"):
            value = getattr(self, name)
            require(not value or value >= LEAST_NOISE, name, value, f"0, or {LEAST_NOISE:g} or more")
        for name in others:
            require(getattr(self, name) is None, name, getattr(self, name), f"none with {self.mechanism!r}")
        for name in ("importance_noise", "target_epsilon"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, name, value, "above 0")

    @property
    def withholds_sizes(self) -> bool:
        return self.mechanism == "client" and self.size == "withheld"

    def deviation(self) -> float:
        """Of the noise on every number of a model."""
        if self.epsilon is not None:
            return math.sqrt(2 * math.log(1.25 / self.delta)) * self.clip / self.epsilon
        return self.noise * self.clip if self.noise else 0.0

    def multiplier(self, role: Role | Literal["buffers"]) -> float | None:
        """Noise in units of what one client can change: infinite where nothing is sent, None where not covered."""
        value = None
        if self.mechanism == "client":
            if role in ROWS:
                value = self.noise or None
            elif role == "size" or role == "buffers":
                value = math.inf if getattr(self, role) == "withheld" else None
            elif role == "importance" or (role == "mass" and self.size == "withheld"):
                value = self.importance_noise
        return value / 2 if value is not None and self.neighbour == "replaced" else value

    # at the client

    def protect(
        self,
        run: str,
        algorithm: Algorithm,
        declared: Declared,
        cohort: Cohort,
        offer: Messages,
        sent: Fields,
    ) -> Fields:
        """What leaves the clients of what they would send. `run` says what is run: other settings, other noise."""
        began_at = partial(algorithm.trained_from, offer, sent)
        return {
            name: value
            if declared[name].echo
            else self._field(declared[name].role, value, began_at, cohort, noise_keys(run, name, cohort))
            for name, value in sent.items()
        }

    def _field(
        self, role: Role, value: Tensor, began_at: Callable[[], Tensor], cohort: Cohort, keys: Tensor
    ) -> Tensor:
        if role in ROWS and self.mechanism == "paper":
            rows, tail = cohort.model.rows.split(value)
            rows = rows / (torch.linalg.vector_norm(rows, dim=-1, keepdim=True) / self.clip).clamp(min=1)
            return torch.cat([rows + _noise(rows, self.deviation(), keys), tail], -1)
        if role in ROWS:
            return self._model(cohort, value, began_at(), keys)
        multiplier = self.multiplier(role)
        if multiplier is None:
            return value
        if multiplier == math.inf:
            return torch.ones_like(value)
        importance = _fractions(value)  # nobody is further than 1 from even fractions, which say nothing
        assert self.importance_noise is not None
        noise = _noise(importance, self.importance_noise, keys)
        return _fractions((importance + noise).clamp(min=LEAST_IMPORTANCE))

    def _model(self, cohort: Cohort, value: Tensor, began_at: Tensor, keys: Tensor) -> Tensor:
        """(client, ...) where it began + clipped update + noise."""
        rows, tail = cohort.model.rows.split(value)
        began, old = cohort.model.rows.split(began_at)
        rows = clipped(rows, began, self.clip)
        if self.deviation():
            rows = rows + _noise(rows, self.deviation(), keys)
        return torch.cat([rows, old.expand_as(tail) if self.buffers == "withheld" else tail], -1)


def clipped(rows: Tensor, began: Tensor, clip: float) -> Tensor:
    """(client, ...) no client further than `clip` from where it began; one that diverged sends no update."""
    each = (-1, *(1,) * (rows.dim() - 1))
    finite = (rows - began).flatten(1).isfinite().all(1)
    rows = torch.where(
        finite.view(each), rows, began
    )  # a message that is left out would say that it diverged
    length = torch.linalg.vector_norm((rows - began).flatten(1), dim=1, dtype=torch.float64).view(each)
    factor = (clip / length.clamp(min=clip)).to(rows.dtype) if clip < math.inf else 1.0
    return torch.where(length <= clip, rows, began + (rows - began) * factor)


def noise_keys(run: str, name: str, cohort: Cohort) -> Tensor:
    """(client,) what the noise on a field depends on, besides the place in it.

    Were it the same in two runs of one seed, subtracting their messages would remove it.
    """
    m = cohort.context
    return mix(m.seed, run, m.before, m.stage, m.round, "privacy", name, cohort.keys)


def _noise(like: Tensor, deviation: float, keys: Tensor) -> Tensor:
    """Normal numbers."""
    per_client = like[0].numel()
    place = torch.arange(per_client, device=like.device)
    drawn = like.new_empty(len(like), per_client)
    some = max(1, BLOCK // max(1, per_client))  # clients at a time
    for i in range(0, len(drawn), some):
        drawn[i : i + some] = deviation * gaussian(mix(keys[i : i + some, None], place))
    return drawn.view_as(like)


def _fractions(value: Tensor) -> Tensor:
    """(client, cluster) positive numbers that add up to 1; even where there is nothing to go by."""
    value = value.nan_to_num(0, 0, 0).clamp(min=0)
    total = value.sum(1, keepdim=True)
    return torch.where(total > 0, value / total, 1 / value.shape[1])


def warn_of_buffers(privacies: Iterable[Privacy | None], rows: Rows) -> None:
    """Said at the start: some models suffer."""
    buffers = {name for name, _ in rows.template.named_buffers()}
    withheld = any(p and p.mechanism == "client" and p.buffers == "withheld" for p in privacies)
    if withheld and any(slot.name in buffers for slot in rows.tail):
        log.warning(
            "the model has buffers (batch-norm statistics) that clients do not send under privacy: centers keep "
            "those of their random initialisation; layers without them, such as group norm, do better"
        )
