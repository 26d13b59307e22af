"""Many clients: tables on disk and blocks of clients change nothing, and cost grows with clients alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from coterie import (
    IFCA,
    FedAvg,
    FedEM,
    FedSoft,
    FedSPD,
    Graph,
    Participation,
    Server,
    Stage,
    Stages,
    Training,
)
from coterie.backends.simulation import simulate
from coterie.data.federation import Federation
from coterie.engine import storage
from coterie.protocol.cohort import Cohort
from coterie.protocol.result import Result
from coterie.protocol.topology import Topology
from tests.builders import affine, finish, parts


def play(algorithm: Any, topology: Topology, data: Federation, rounds: int = 3) -> Result:
    part = Participation(fraction=0.8, stragglers=0.1)
    stage = Stage(
        algorithm, rounds, Training(learning_rate=0.02, momentum=0.5, keep_optimizer=True), topology, part
    )
    return finish(simulate(affine, data, Stages((stage,)), dtype=torch.float64)).finish()


def tensors(result: Result) -> list[Tensor]:
    assert result.scores is not None
    return [*parts(result), result.scores.loss]


@pytest.mark.parametrize("topology", [Server(), Graph("erdos-renyi", degree=6)], ids=["server", "graph"])
@pytest.mark.parametrize("algorithm", [FedAvg(), IFCA(2), FedSoft(2), FedSPD(2), FedEM(2)], ids=str)
def test_on_disk_as_in_memory(
    algorithm: Any, topology: Topology, data: Federation, request: pytest.FixtureRequest
) -> None:
    plain = tensors(play(algorithm, topology, data))
    assert not storage._mapped
    request.getfixturevalue("little_memory")
    made = []
    request.getfixturevalue("monkeypatch").setattr(
        storage, "_file", lambda size, file=storage._file: made.append(size) or file(size)
    )
    for one, other in zip(plain, tensors(play(algorithm, topology, data)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert made, "nothing was put on disk"


@pytest.mark.parametrize("algorithm", [FedAvg(), IFCA(2), FedSPD(2)], ids=str)
def test_a_run_on_disk_leaves_the_same(
    algorithm: Any, data: Federation, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def run(name: str, **how: Any) -> coterie.Run:
        topology = None if isinstance(algorithm, IFCA) else Graph("erdos-renyi", degree=6)
        how = {"rounds": 4, "evaluate_every": 2, "checkpoint_every": 2, "dtype": torch.float64, **how}
        return coterie.run(affine, data, algorithm, topology=topology, out=tmp_path / name, **how)

    plain = run("plain")
    request.getfixturevalue("little_memory")
    on_disk = run("on disk")
    again = coterie.load(tmp_path / "on disk", affine)
    for one, other, third in zip(plain.records, on_disk.records, again.records, strict=True):
        assert other == third
        for name in set(one) - {"seconds", "seconds_evaluating"}:
            assert other[name] == pytest.approx(one[name], abs=1e-9), name
    for kept in (on_disk, again):
        rows = kept._result.personal.rows
        torch.testing.assert_close(rows, plain._result.personal.rows, rtol=0, atol=1e-10)
    assert on_disk.summary["personal"] == pytest.approx(plain.summary["personal"], abs=1e-9)


@pytest.mark.parametrize("few", [True, False])
def test_gradients_are_made_anew_where_they_would_not_be_in_memory(
    data: Federation, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WeCFL's B is the same, whether they are kept or not."""
    made: list[int] = []
    whole = Cohort.gradients

    def counted(cohort: Cohort, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for some, each in whole(cohort, rows):
            made.append(len(each))
            yield some, each

    how: dict[str, Any] = {"rounds": 2, "init": "random", "chunk": 5, "dtype": torch.float64}
    kept = coterie.run(affine, data, IFCA(2), **how)
    if few:
        monkeypatch.setattr(storage, "budget", lambda device: 400)
    monkeypatch.setattr(Cohort, "gradients", counted)
    run = coterie.run(affine, data, IFCA(2), **how)
    assert sum(made) == 24 * (2 if few else 1)
    assert max(made) <= 5
    assert run.summary["metrics"]["clusterability"] == pytest.approx(
        kept.summary["metrics"]["clusterability"]
    )


MEMORY = """
import resource, sys, tempfile, coterie
from coterie.data import regressions
from coterie.models import build
data = regressions(clients=int(sys.argv[1]), sizes=(50, 50), test_points=10)
graph = coterie.Graph("barabasi-albert", degree=10)
with tempfile.TemporaryDirectory() as out:
    coterie.run(build("linear", (10,), 1), data, coterie.FedSPD(2, final_epochs=1), rounds=2, topology=graph,
                init="random", out=out + "/run")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_is_linear_in_clients() -> None:
    """A client of 50 points has 3 KB; a run may take ten times that, but nothing that grows faster."""

    def peak(clients: int) -> int:
        command = [sys.executable, "-c", MEMORY, str(clients)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1])

    base, some, many = peak(100), peak(10_000), peak(20_000)
    assert many - base < 20_000 * 0.05, "MiB: 50 KB a client"
    assert many - some < 3 * max(some - base, 100)
