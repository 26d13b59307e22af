"""One number of clusters that was tried, and the file that keeps it, so that a choice can be interrupted."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.errors import CoterieError
from coterie.files import make_folder, write_whole

FOLDER = "tried"


@dataclass(frozen=True)
class Tried:
    """A number of clusters after its best start."""

    n_clusters: int
    losses: tuple[float, ...]  # (client,) in the order of their ids, on the points held out, if they have any
    training: float  # the mean over clients, on the points trained on
    parameters: int  # numbers in all centers together
    megabytes: float  # sent in all starts, the scores told included

    def save(self, path: Path, asked: str) -> None:
        """With what was asked for, so that nothing else is taken for it."""
        losses = [one if math.isfinite(one) else None for one in self.losses]  # JSON has no infinity
        training = self.training if math.isfinite(self.training) else None
        kept = {"asked": asked, **asdict(self), "losses": losses, "training": training}
        make_folder(path.parent)
        write_whole(path, (json.dumps(kept) + "\n").encode())

    @staticmethod
    def load(path: Path, asked: str) -> Tried:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            same = kept.pop("asked") == asked
            losses = tuple(math.inf if one is None else float(one) for one in kept["losses"])
            training = math.inf if kept["training"] is None else kept["training"]
            tried = Tried(**{**kept, "losses": losses, "training": training})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise CoterieError(f"{path} holds nothing that was tried; allowed is to start over") from problem
        if not same:
            raise CoterieError(
                f"{path} was tried with other settings; allowed is to start over, or elsewhere"
            )
        return tried


def file_of(folder: Path, clusters: int) -> Path:
    return folder / FOLDER / f"{clusters}.json"


def any_in(folder: Path) -> bool:
    return (folder / FOLDER).is_dir()


def forget(folder: Path) -> None:
    """What was tried in this folder, and nothing else that lies there."""
    tried = folder / FOLDER
    for old in tried.glob("*.json"):
        old.unlink()
    with suppress(OSError):  # not empty, or not there
        tried.rmdir()
