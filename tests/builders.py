"""What several test files build: small data, models and files; small runs are those of `coterie.testing`."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie import ALGORITHMS, Algorithm, Federation, Server, Stage, Stages, Training
from coterie.data import regressions
from coterie.engine.rows import Rows
from coterie.prng import id_keys
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.state import State
from coterie.protocol.topology import Topology
from coterie.testing.case import PLACES as PLACES
from coterie.testing.case import maker
from coterie.testing.small import CPU as CPU
from coterie.testing.small import F64 as F64
from coterie.testing.small import MOMENTUM as MOMENTUM
from coterie.testing.small import TRAINING as TRAINING
from coterie.testing.small import apart as apart
from coterie.testing.small import clients as clients
from coterie.testing.small import close as close
from coterie.testing.small import finish as finish
from coterie.testing.small import linear as linear
from coterie.testing.small import one_number_cohort as one_number_cohort
from coterie.testing.small import parts as parts
from coterie.testing.small import play as play
from coterie.testing.small import same_bits as same_bits
from coterie.testing.small import simulation as simulation

ROOT = Path(__file__).parents[1]  # of the repository

# every algorithm, at a server and over a graph

CASES = [
    (name, place)
    for name, kind in ALGORITHMS.items()
    for place in PLACES
    if place == "server" or not kind.needs_server
]


def algorithm(name: str, clusters: int = 2) -> Algorithm:
    return maker(ALGORITHMS[name])(clusters)


# regressions of ten inputs


def affine() -> nn.Module:
    return nn.Linear(10, 1)


def larger_clients(mixture: str = "10:90") -> Federation:
    return clients(mixture, sizes=(20, 40))


def trained(
    algorithm: Algorithm,
    data: Federation | None = None,
    *,
    rounds: int = 4,
    training: Training = TRAINING,
    topology: Topology | None = None,
    seed: int = 0,
) -> Coordinator:
    """A finished run of one stage."""
    data = data or regressions(clients=10, sizes=(20, 40), separation=166.0, seed=1)
    plan = Stages((Stage(algorithm, rounds, training, topology or Server()),))
    width = data.train.x.shape[1]
    return finish(simulation(plan, data, model=lambda: nn.Linear(width, 1, bias=False), seed=seed))


# tiny cases, computed by hand: rows are single numbers


def state(centers: list, clients: int, at_server: bool = True, **fields: Tensor) -> State:
    keys = id_keys(map(str, range(clients)))
    rows = Rows(nn.Linear(len(centers[0][0]), 1, bias=False))
    everyone = torch.ones(clients, dtype=torch.bool)
    return State(torch.tensor(centers, dtype=F64), keys, rows, at_server, RoundContext(0), everyone, fields)


def messages(clients: list[int], **sent: list) -> Messages:
    whole = {"drew", "size", "choice"}
    fields = {n: torch.tensor(v, dtype=torch.long if n in whole else F64) for n, v in sent.items()}
    return Messages(torch.tensor(clients), fields)


# devices for k-FED

CENTERS = 20.0 * np.eye(6)[:, :5]  # six centers in five dimensions, the last at 0


def column(*numbers: float) -> Any:
    return np.array(numbers, float)[:, None]


def devices(seed: int = 0, n: int = 20) -> tuple[list[Any], list[Any]]:
    """Nine devices with two of six clusters each: points, and the cluster of each."""
    chance = np.random.default_rng(seed)
    truth = [np.repeat([z % 3 * 2, z % 3 * 2 + 1], n) for z in range(9)]
    return [CENTERS[t] + chance.normal(size=(len(t), 5)) for t in truth], truth


def apart_by(sigmas: float, seed: int = 0, n: int = 40) -> tuple[list[Any], list[Any]]:
    """The same with the nearest centers so many standard deviations apart."""
    chance = np.random.default_rng(seed)
    truth = [np.repeat([z % 3 * 2, z % 3 * 2 + 1], n) for z in range(9)]
    centers = CENTERS / 20 * sigmas  # the last one, at 0, is so far from each other
    return [centers[t] + chance.normal(size=(len(t), 5)) for t in truth], truth


# files of data sets


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def pictures(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_idx(folder: Path, train: str = "train", test: str = "t10k", end: str = "", first: int = 0) -> None:
    for side, n in ((train, 6), (test, 4)):
        write(folder / f"{side}-images-idx3-ubyte{end}", idx(pictures(n, 28, 28, seed=n)))
        labels = (np.arange(n) % 3 + first).astype(np.uint8)
        write(folder / f"{side}-labels-idx1-ubyte{end}", idx(labels))


PLAY = """A PLAY

Persons Represented.

ACT I.

SCENE I. A room.

[Enter ANNE
and BOB.]

ANNE.
Good morrow. [To
him] How now?

BOB.
Well.

[Exit.]

And yet not well.

Messenger.
My lord!

ANNE
What news?

BOB.
None.
"""
