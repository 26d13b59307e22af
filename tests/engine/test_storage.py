"""Many clients: tables on disk and blocks of clients change nothing, and cost grows with clients alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import (
    IFCA,
    CoterieError,
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
from coterie.backends.evaluation import Models, Result
from coterie.backends.simulation import Simulation
from coterie.data import regressions
from coterie.data.federation import Federation
from coterie.engine import storage
from coterie.protocol.client_state import ClientState
from coterie.protocol.cohort import Cohort, Personal
from coterie.protocol.topology import Topology
from coterie.runs.folder import pieces, read_tensors
from coterie.runs.pace import EvaluationInterval
from coterie.runs.result import Record

CPU = torch.device("cpu")


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So little that every table of rows lies on disk, and clients are computed a few at a time."""
    storage.memory.cache_clear()
    monkeypatch.setenv("COTERIE_MEMORY", f"{storage.SHARE * 600 / 2**30:.9f}")  # 600 bytes a table
    monkeypatch.setattr(storage, "NEAR", 300)
    yield
    storage.memory.cache_clear()


def linear() -> nn.Module:
    return nn.Linear(10, 1)


def play(algorithm: Any, topology: Topology, data: Federation, rounds: int = 3) -> Result:
    part = Participation(fraction=0.8, stragglers=0.1)
    stage = Stage(
        algorithm, rounds, Training(learning_rate=0.02, momentum=0.5, keep_optimizer=True), topology, part
    )
    run = Simulation(linear, data, Stages((stage,)), dtype=torch.float64)
    while not run.done:
        run.step()
    return run.result(final=True)


def tensors(result: Result) -> list[Tensor]:
    assert result.scores is not None
    found = [result.centers, result.importance, result.personal.rows, result.personal.weights]
    return [*found, result.scores.loss]


@pytest.fixture
def data() -> Federation:
    return regressions(clients=24, sizes=(8, 20), test_points=5)


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
        return coterie.run(linear, data, algorithm, topology=topology, out=tmp_path / name, **how)

    plain = run("plain")
    request.getfixturevalue("little_memory")
    on_disk = run("on disk")
    again = coterie.load(tmp_path / "on disk", linear)
    for one, other, third in zip(plain.records, on_disk.records, again.records, strict=True):
        assert other == third
        for name in set(one) - {"seconds", "seconds_evaluating"}:
            assert other[name] == pytest.approx(one[name], abs=1e-9), name
    for kept in (on_disk, again):
        rows = kept._result.personal.rows
        torch.testing.assert_close(rows, plain._result.personal.rows, rtol=0, atol=1e-10)
    assert on_disk.summary["personal"] == pytest.approx(plain.summary["personal"], abs=1e-9)


def test_tables(little_memory: None) -> None:
    small = storage.table((3, 4), torch.float32, CPU)
    large = storage.table((100, 4), torch.float32, CPU)
    assert len(storage._mapped) == 1
    assert not large.any()
    large[:] = torch.arange(100.0)[:, None]
    small += 1
    storage.put_away()
    assert large[:, 2].tolist() == list(range(100))
    at = torch.tensor([99, 0, 50] * 20)
    assert torch.equal(storage.take(large, at)[:, 0], at.float())
    assert torch.equal(storage.mean(large), torch.full((4,), 49.5))
    parts = list(storage.row_blocks(large))
    assert len(parts) > 1
    assert [i for some in parts for i in range(some.start, some.stop)] == list(range(100))
    del large, at
    assert not storage._mapped


def test_no_room_on_disk_is_said(little_memory: None) -> None:
    with pytest.raises(CoterieError, match=r"has no room in .*; TMPDIR names another folder"):
        storage.table((2**40, 2**10), torch.float32, CPU)


def test_memory_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    storage.memory.cache_clear()
    monkeypatch.setenv("COTERIE_MEMORY", "much")
    with pytest.raises(CoterieError, match="COTERIE_MEMORY is 'much'; allowed is a number of GiB above 0"):
        storage.budget(CPU)
    storage.memory.cache_clear()


def test_a_gpu_keeps_little_between_rounds() -> None:
    gpu, row = torch.device("cuda"), torch.Size([1000])
    assert storage.home(row, 100, torch.float32, gpu) == gpu
    assert storage.home(row, 100_000, torch.float32, gpu) == CPU
    assert storage.home(torch.Size([]), 100_000, torch.float32, gpu) == gpu  # one number a client


def test_memory_lies_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `meta` in the host's place, for want of a GPU: what is put there is moved, and only what is asked for."""
    monkeypatch.setattr(storage, "home", lambda *_: torch.device("meta"))
    memory = ClientState(5)
    memory.put("row", torch.tensor([1, 3]), torch.ones(2, 4))
    assert memory.values["row"].device.type == "meta"
    assert memory.values["row"].shape == (5, 4)


def test_models_of_all_clients() -> None:
    one = torch.rand(1, 1, 3)
    models = Models(6)
    for some in (slice(0, 2), slice(2, 4)):
        models.put(some, one.expand(2, -1, -1))
    assert models.rows.stride(0) == 0, "one model for all is kept once"
    models.put(slice(4, 6), 2 * one.expand(2, -1, -1))
    assert torch.equal(models.rows, torch.cat([one.expand(4, -1, -1), 2 * one.expand(2, -1, -1)]))


def test_written_in_pieces(tmp_path: Path, little_memory: None) -> None:
    written = {
        "flags": torch.tensor([True, False, True]),
        "keys": torch.arange(7),
        "rows": torch.rand(40, 2, 5),
        "number": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        "shared": torch.rand(1, 3).expand(4, -1),
    }
    assert len(list(pieces(written, {"a": "b"}))) > 10
    (tmp_path / "x").write_bytes(b"".join(pieces(written, {"a": "b"})))
    found, notes = read_tensors(tmp_path / "x")
    assert notes == {"a": "b"}
    assert found.keys() == written.keys()
    assert all(torch.equal(found[n], written[n]) for n in written)


def test_what_is_evaluated_last_is_not_evaluated_again(
    data: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    importance = IFCA.importance
    monkeypatch.setattr(IFCA, "importance", lambda *a: calls.append(1) or importance(*a))
    run = coterie.run(linear, data, IFCA(2), rounds=3, init="random", evaluate_every=0)
    assert len(calls) == 2, "once for importance, once for the models"
    calls.clear()
    same = coterie.run(linear, data, IFCA(2), rounds=3, init="random", evaluate_every=3)
    assert len(calls) == 2
    assert same.summary["personal"] == run.summary["personal"]
    assert same.summary["traffic"] == run.summary["traffic"]
    assert same.records[-1]["test_loss"] == pytest.approx(same.summary["personal"]["loss"])
    assert same.records[-1]["test_loss_std"] == same.summary["personal"]["loss_std_over_clients"]


def test_a_final_phase_is_evaluated_by_itself(data: Federation) -> None:
    run = coterie.run(linear, data, FedSPD(2, final_epochs=5), rounds=2, init="random", evaluate_every=2)
    assert run.records[-1]["test_loss"] > run.summary["personal"]["loss"]


def test_losses_are_computed_once_for_the_same_centers(data: Federation) -> None:
    run = Simulation(linear, data, Stages((Stage(IFCA(2), 1),)))
    cohort, centers = run.clients.cohort, run.state.centers.expand(24, -1, -1)
    first = cohort.losses(centers)
    assert cohort.losses(centers) is first
    assert cohort.take(torch.arange(3)).losses(centers[:3]).shape[0] == int(cohort.sizes[:3].sum())
    centers[0, 0] += 1  # another model in the same place
    assert not torch.equal(cohort.losses(centers), first)


def test_tables_are_put_away_while_clients_are_gone_through(
    data: Federation, little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the pages of a table on disk would all be in memory at the end."""
    run = Simulation(linear, data, Stages((Stage(FedAvg(), 1),)))
    cohort, rows = run.clients.cohort, torch.randn(24, run.model.rows.width)
    run.model.chunk = 2
    calls: list[int] = []
    monkeypatch.setattr(storage, "put_away", lambda: calls.append(len(calls)))
    list(cohort.gradients(rows))
    assert calls
    calls.clear()
    cohort.score(Personal.single(rows))
    assert calls


@pytest.mark.parametrize("few", [True, False])
def test_gradients_are_made_anew_where_they_would_not_be_in_memory(
    data: Federation, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WeCFL's B is the same, whether they are kept or not."""
    made: list[slice] = []
    whole = Cohort.gradients

    def counted(cohort: Cohort, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for some, each in whole(cohort, rows):
            made.append(some)
            yield some, each

    how: dict[str, Any] = {"rounds": 2, "init": "random", "chunk": 5, "dtype": torch.float64}
    kept = coterie.run(linear, data, IFCA(2), **how)
    if few:
        monkeypatch.setattr(storage, "budget", lambda device: 400)
    monkeypatch.setattr(Cohort, "gradients", counted)
    run = coterie.run(linear, data, IFCA(2), **how)
    blocks = [slice(begin, min(begin + 5, 24)) for begin in range(0, 24, 5)]
    assert made == blocks * (2 if few else 1)
    assert run.summary["meters"]["clusterability"] == pytest.approx(kept.summary["meters"]["clusterability"])


def evaluated(run: coterie.Run) -> list[int]:
    return [record["round"] + 1 for record in run.records if "test_loss" in record]


def test_models_are_evaluated_less_often_where_few_train(data: Federation) -> None:
    """One of 24 clients in a round: half as many letters as clients have been told after 12 rounds."""
    few = Participation(fraction=1 / 24)
    assert evaluated(coterie.run(linear, data, FedAvg(), rounds=30, participation=few)) == [12, 24, 30]
    assert evaluated(coterie.run(linear, data, FedAvg(), rounds=25)) == [10, 20, 25]
    seldom = coterie.run(linear, data, FedAvg(), rounds=25, participation=few, evaluate_every=10)
    assert evaluated(seldom) == [10, 20, 25]
    assert evaluated(coterie.run(linear, data, FedAvg(), rounds=12, evaluate_every=0)) == []


def test_where_hardly_anyone_trains_models_are_evaluated_all_the_same() -> None:
    pace = EvaluationInterval("auto", 10_000)
    assert [n for n in range(1, 301) if pace.played(3)] == [100, 200, 300]


def test_a_resumed_run_is_evaluated_in_the_same_rounds(data: Federation, tmp_path: Path) -> None:
    def stop(record: Record, rounds: int) -> None:
        if record["round"] == 6:
            raise KeyboardInterrupt

    how: dict[str, Any] = {
        "rounds": 15,
        "participation": Participation(fraction=1 / 24),
        "out": tmp_path / "run",
    }
    with pytest.raises(KeyboardInterrupt):
        coterie.run(linear, data, FedAvg(), watch=stop, **how)
    assert evaluated(coterie.run(linear, data, FedAvg(), resume=True, **how)) == [12, 15]


def test_time_spent_evaluating_is_told(data: Federation) -> None:
    run = coterie.run(linear, data, FedAvg(), rounds=2)
    assert all(0 < r["seconds_evaluating"] <= r["seconds"] for r in run.records)


def test_a_graph_that_stays_is_sorted_once() -> None:
    ids = tuple(str(i) for i in range(50))
    graph = Graph("erdos-renyi", degree=8)
    assert graph.edges(ids, 0, 1) is graph.edges(ids, 0, 2)
    changing = replace(graph, rewire=0.1)
    assert not torch.equal(changing.edges(ids, 0, 1), changing.edges(ids, 0, 2))


def test_attachments_are_the_nearest() -> None:
    for clients in range(2, 40):
        for degree in (2.0, 3.7, 5.0, 11.3, clients - 1):
            if 2 * (clients - 1) / clients <= degree <= clients - 1:
                off = {m: abs(m * (clients - m) - degree * clients / 2) for m in range(1, clients // 2 + 1)}
                found = Graph("barabasi-albert", degree=degree)._attachments(clients)
                assert found == min(off, key=off.__getitem__)


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
