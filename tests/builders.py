"""What several test files build: small data, models and files, and simulations of them in float64 on the CPU."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie import ALGORITHMS, Algorithm, Federation, Graph, Server, Stage, Stages, Training
from coterie.backends.loopback import loopback
from coterie.backends.simulation import simulate
from coterie.data import regressions
from coterie.data.federation import Points
from coterie.engine.model import FunctionalModel, squared_error
from coterie.engine.rows import Build, Rows
from coterie.prng import id_keys
from coterie.protocol.cohort import Cohort
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.message import Messages, RoundContext
from coterie.protocol.result import Result
from coterie.protocol.state import State
from coterie.protocol.topology import Topology
from coterie.protocol.traffic import Traffic

ROOT = Path(__file__).parents[1]  # of the repository
F64, CPU = torch.float64, torch.device("cpu")
TRAINING = Training(learning_rate=0.02, batch_size=10, epochs=2)
MOMENTUM = Training(learning_rate=0.02, batch_size=10, epochs=1, momentum=0.5, keep_optimizer=True)

# every algorithm, at a server and over a graph

PLACES = {"server": Server(), "graph": Graph("erdos-renyi", degree=3.0)}
CASES = [
    (name, place)
    for name, kind in ALGORITHMS.items()
    for place in PLACES
    if place == "server" or not kind.needs_server
]


def algorithm(name: str, clusters: int = 2) -> Algorithm:
    kind = ALGORITHMS[name]
    return kind(n_clusters=clusters) if "n_clusters" in {f.name for f in fields(kind)} else kind()


# regressions of ten inputs: clients, model, simulations


def linear() -> nn.Module:
    return nn.Linear(10, 1, bias=False)


def affine() -> nn.Module:
    return nn.Linear(10, 1)


def clients(mixture: str = "10:90", *, n: int = 12, sizes: tuple[int, int] = (15, 40)) -> Federation:
    return regressions(n, 2, mixture, sizes=sizes, separation=166.0, test_points=5, seed=7)


def larger_clients(mixture: str = "10:90") -> Federation:
    return clients(mixture, sizes=(20, 40))


def simulation(
    plan: Stages,
    data: Federation | None = None,
    *,
    model: Build = linear,
    seed: int = 3,
    chunk: int | None = None,
) -> Coordinator:
    data = clients() if data is None else data
    return simulate(model, data, plan, seed=seed, dtype=F64, chunk=chunk, device=CPU)


def finish(run: Coordinator) -> Coordinator:
    while not run.done:
        run.step()
    return run


def play(
    plan: Stages, data: Federation, chunk: int | None = None, seed: int = 3
) -> tuple[Coordinator, Result]:
    run = finish(simulation(plan, data, seed=seed, chunk=chunk))
    return run, run.finish()


def apart(build: Build, data: Federation, plan: Stages, seed: int = 0) -> tuple[Result, Traffic]:
    """The same over clients that are computed one by one, everything between them as bytes."""
    run = finish(loopback(build, data, plan, seed=seed))
    return run.finish(), run.traffic


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


def parts(result: Result) -> list[Tensor]:
    return [result.centers, result.importance, result.personal.rows, result.personal.weights]


def same_bits(a: Result, b: Result) -> bool:
    return all(torch.equal(x, y) for x, y in zip(parts(a), parts(b), strict=True))


def close(a: Result, b: Result) -> None:
    for x, y in zip(parts(a), parts(b), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-8)


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


def one_number_cohort(*clients: tuple[list[float], list[float]], training: Training = TRAINING) -> Cohort:
    """Clients of (x, y) for the model y = w·x."""
    model = FunctionalModel(lambda: nn.Linear(1, 1, bias=False), squared_error, device=CPU, dtype=F64)
    points = [(torch.tensor(x, dtype=F64)[:, None], torch.tensor(y, dtype=F64)) for x, y in clients]
    keys = id_keys(map(str, range(len(clients))))
    return Cohort.whole(model, training, Points.of(points), keys, "regression", 0)


# devices for k-FED

CENTERS = 20.0 * np.eye(6)[:, :5]  # six centers in five dimensions, the last at 0


def column(*numbers: float) -> Any:
    return np.array(numbers, float)[:, None]


def devices(seed: int = 0, n: int = 20) -> tuple[list[Any], list[Any]]:
    """Nine devices with two of six clusters each: points, and the cluster of each."""
    chance = np.random.default_rng(seed)
    truth = [np.repeat([z % 3 * 2, z % 3 * 2 + 1], n) for z in range(9)]
    return [CENTERS[t] + chance.normal(size=(len(t), 5)) for t in truth], truth


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
