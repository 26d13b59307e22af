"""What was tried and what was chosen: every number of clusters with its held-out losses, and the rule.

Every number that was tried is kept in a file of its own, so that a choice can be interrupted.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from coterie.errors import CoterieError, require
from coterie.files import make_folder, read_kept, refuse_link, with_checksum, write_json, write_whole
from coterie.validation import Checked

JSON, CSV, PLOT = "choice.json", "choice.csv", "choice.png"
TRIED = "tried"  # the folder of what was tried
CHANCE = 1.645  # standard errors: a one-sided test at 5 %. One client that fares badly makes 1, two make 1.4


@dataclass(frozen=True)
class Choosing(Checked):
    """How the number of clusters is chosen."""

    least: int = 1  # the fewest clusters that are tried
    most: int = 8  # the most that are tried; always fewer than there are clients
    held_out: float = 0.25  # the share of a client's training points that every number is scored on
    n_init: int = (
        2  # runs of each number, from other random initialisations; that of least held-out loss is kept
    )
    gain: float = 0.05  # more clusters must lower the held-out loss by more than this share of the best

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.least >= 1, "least", self.least, "1 or more")
        require(self.most >= self.least, "most", self.most, f"{self.least} (least) or more")
        require(0 < self.held_out < 1, "held_out", self.held_out, "a number above 0 and below 1")
        require(self.n_init >= 1, "n_init", self.n_init, "1 or more")
        require(0 <= self.gain < 1, "gain", self.gain, "a number from 0 and below 1")

    def numbers(self, clients: int) -> range:
        """Those that are tried."""
        most = max(1, clients - 1)
        require(self.least <= most, "least", self.least, f"1 to {most}, fewer than there are clients")
        return range(self.least, min(self.most, most) + 1)


@dataclass(frozen=True)
class Tried:
    """A number of clusters after its best attempt."""

    n_clusters: int
    losses: tuple[float, ...]  # (client,) in the order of their ids, on the points held out, if they have any
    training: float  # the mean over clients, on the points trained on
    parameters: int  # numbers in all centers together
    megabytes: float  # sent in all attempts, the losses included

    def save(self, path: Path, asked: str) -> None:
        """With a hash of what was asked for, so that nothing else is taken for it."""
        refuse_link(path.parent)
        make_folder(path.parent)
        write_json(path, with_checksum({"asked": asked, **asdict(self)}), indent=None)

    @staticmethod
    def load(path: Path, asked: str) -> Tried:
        try:
            kept = read_kept(path)
            same = kept.pop("asked") == asked
            losses = tuple(math.inf if one is None else float(one) for one in kept["losses"])
            training = math.inf if kept["training"] is None else kept["training"]
            tried = Tried(**{**kept, "losses": losses, "training": training})
        except CoterieError as problem:
            raise CoterieError(f"{problem}; remove it, and that number is tried again") from problem
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CoterieError(f"{path} holds nothing that was tried; allowed is to start over") from problem
        if not same:
            raise CoterieError(
                f"{path} was tried with other settings; allowed is to start over, or elsewhere"
            )
        return tried


def file_of(folder: Path, clusters: int) -> Path:
    return folder / TRIED / f"{clusters}.json"


@dataclass(frozen=True)
class Line:
    """What one number of clusters gives; losses are means over clients."""

    n_clusters: int
    training_loss: float
    held_out_loss: float
    standard_error: float  # of the held-out loss, over clients
    excess: float  # of the held-out loss over the least
    excess_error: float  # its standard error: clients are compared with themselves
    allowed: float  # the excess up to which it counts as good as the best
    parameters: int
    megabytes: float
    chosen: bool


@dataclass(frozen=True)
class Choice:
    """The number chosen, and what every number gives."""

    n_clusters: int
    lines: tuple[Line, ...]

    @staticmethod
    def among(found: Sequence[Tried], gain: float) -> Choice:
        """The fewest clusters as good as the best."""
        found = sorted(found, key=lambda one: one.n_clusters)
        losses = torch.tensor([one.losses for one in found], dtype=torch.float64)
        beside = compare(losses, gain)
        at = int((beside.excess <= beside.allowed).nonzero()[0])
        lines = [
            Line(
                one.n_clusters,
                one.training,
                float(losses[i].mean()),
                float(standard_error(losses[i])),
                float(beside.excess[i]),
                float(beside.error[i]),
                float(beside.allowed[i]),
                one.parameters,
                one.megabytes,
                i == at,
            )
            for i, one in enumerate(found)
        ]
        return Choice(found[at].n_clusters, tuple(lines))

    def why(self) -> str:
        """In a sentence."""
        line, best = self._chosen(), min(self.lines, key=lambda one: one.held_out_loss)
        says = f"{_are(line.n_clusters)} chosen: "
        if line is not best:
            return says + (
                f"the fewest whose held-out loss, {line.held_out_loss:.4g}, is within {line.allowed:.2g} of the least, "
                f"{best.held_out_loss:.4g} with {best.n_clusters}"
            )
        fewer = [one.held_out_loss for one in self.lines if one.n_clusters < line.n_clusters]
        says += f"the held-out loss, {line.held_out_loss:.4g}, is the least"
        return says + (f", and with fewer it is {min(fewer):.4g} or more" if fewer else "")

    def _chosen(self) -> Line:
        return next(line for line in self.lines if line.chosen)

    def warning(self) -> str | None:
        """The largest number tried may be too small."""
        last = self.lines[-1]
        if len(self.lines) > 1 and last.chosen:
            return f"{_are(last.n_clusters)} the most that were tried; more may be better still"
        return None

    def save(self, folder: Path) -> None:
        """choice.csv, then choice.json; each whole."""
        make_folder(folder)
        text = io.StringIO()
        table = csv.DictWriter(text, [field.name for field in fields(Line)])
        table.writeheader()
        table.writerows(asdict(line) for line in self.lines)
        write_whole(folder / CSV, text.getvalue().encode())
        lines = [asdict(line) for line in self.lines]
        write_json(folder / JSON, {"n_clusters": self.n_clusters, "why": self.why(), "tried": lines})


def anything_tried(folder: Path) -> bool:
    return (folder / TRIED).is_dir()


def forget(folder: Path) -> None:
    """The choice in this folder and what was tried for it, and nothing else that lies there."""
    tried = folder / TRIED
    for path in (
        *(() if tried.is_symlink() else tried.glob("*.json")),
        *(folder / name for name in (JSON, CSV, PLOT)),
    ):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or not there
        tried.rmdir()


@dataclass(frozen=True)
class Compared:
    """Each number of clusters beside the best one."""

    excess: Tensor  # (number,) of the mean loss over the least
    error: Tensor  # (number,) its standard error
    allowed: Tensor  # (number,)


def compare(losses: Tensor, gain: float) -> Compared:
    """Losses (number, client), fewest clusters first: how far is each from the best, and how far may it be?

    What a one-sided test of the differences, client by client, would not find is chance. With many clients even the
    least gain is certain, and two centers of one distribution are a small ensemble, which does gain a little: so a
    share `gain` of the best loss is allowed in any case.
    """
    mean = losses.mean(1)
    best = int(mean.nan_to_num(torch.inf).argmin())
    if not math.isfinite(mean[best]):
        raise CoterieError(
            "with every number of clusters some client diverged; a smaller training rate may help"
        )
    excess = mean - mean[best]
    error = standard_error(losses - losses[best]).nan_to_num(0.0)
    return Compared(excess, error, (CHANCE * error).clamp(min=gain * abs(float(mean[best]))))


def standard_error(values: Tensor) -> Tensor:
    """Of the mean over the last axis; 0 for a single value."""
    n = values.shape[-1]
    return values.std(-1) / n**0.5 if n > 1 else torch.zeros(values.shape[:-1], dtype=values.dtype)


def _are(number: int) -> str:
    return "1 cluster is" if number == 1 else f"{number} clusters are"
