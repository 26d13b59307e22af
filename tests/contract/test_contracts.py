"""What every algorithm must hold to. An algorithm in the list is tested here without another line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie import ALGORITHMS, Graph, Participation, Server, Stage, Stages, Training
from coterie.data import digits, from_arrays
from coterie.protocol.result import Result
from tests.builders import (
    CASES,
    F64,
    MOMENTUM,
    PLACES,
    algorithm,
    apart,
    clients,
    close,
    finish,
    linear,
    parts,
    play,
    same_bits,
    simulation,
)


def applies(name: str, contract: str) -> None:
    reason = ALGORITHMS[name].exempt.get(contract)
    if reason:
        pytest.skip(f"{name}: {reason}")


def stages(name: str, place: str, rounds: int = 3, clusters: int = 2, **participation: float) -> Stages:
    stage = Stage(algorithm(name, clusters), rounds, MOMENTUM, PLACES[place], Participation(**participation))
    return Stages((stage,))


@pytest.mark.parametrize(("name", "place"), CASES)
def test_same_seed_same_bits(name: str, place: str) -> None:
    applies(name, "same seed, same bits")
    first, second, other = (play(stages(name, place), clients(), seed=s)[1] for s in (3, 3, 4))
    assert same_bits(first, second)
    assert not same_bits(first, other)


@pytest.mark.parametrize(("name", "place"), CASES)
def test_chunk_size_does_not_matter(name: str, place: str) -> None:
    applies(name, "chunk size")
    close(play(stages(name, place), clients(), chunk=1)[1], play(stages(name, place), clients())[1])


@pytest.mark.parametrize(("name", "place"), CASES)
def test_order_of_clients_does_not_matter(name: str, place: str) -> None:
    applies(name, "order of clients")
    order = [5, 2, 11, 0, 9, 1, 3, 10, 4, 8, 6, 7]
    straight, permuted = (play(stages(name, place), d)[1] for d in (clients(), clients().permuted(order)))
    personal = replace(
        straight.personal, rows=straight.personal.rows[order], weights=straight.personal.weights[order]
    )
    close(permuted, Result(straight.centers, straight.importance[order], personal))


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize(("name", "place"), CASES)
def test_apart_is_as_together(name: str, place: str, lossy: bool) -> None:
    applies(name, "apart")
    plan = stages(
        name, place, rounds=4, **({"fraction": 0.7, "absent": 0.3, "stragglers": 0.3} if lossy else {})
    )
    run, together = play(plan, clients())
    alone, traffic = apart(linear, clients(), plan, seed=3)
    close(alone, together)
    assert traffic == run.traffic


SELECTED = [(name, "loss") for name in ALGORITHMS] + [
    (name, select) for name in ("FedAvg", "FedSoft", "WeCFL") for select in ("size", "loss-per-cluster")
]


@pytest.mark.parametrize(("name", "select"), SELECTED)
def test_selected_apart_is_as_together_and_resumed_as_never_stopped(name: str, select: str) -> None:
    applies(name, "apart")
    more = {"candidates": 8} if select != "size" else {}
    more |= {"clusters": 3} if select == "loss-per-cluster" else {}
    how = Participation(0.4, absent=0.2, select=select, **more)  # type: ignore[arg-type]
    plan = Stages((replace(stages(name, "server", rounds=4)[0], participation=how),))
    run, together = play(plan, clients())
    alone, traffic = apart(linear, clients(), plan, seed=3)
    close(alone, together)
    assert traffic == run.traffic
    first = simulation(plan)
    first.step()
    again = simulation(plan)
    again.load(*first.save())
    finish(again)
    assert same_bits(again.finish(), together)


@pytest.mark.parametrize(("name", "place"), CASES)
def test_resumed_is_as_never_stopped(name: str, place: str) -> None:
    applies(name, "resume")
    plan = stages(name, place, rounds=5)
    straight, expected = play(plan, clients())
    first = simulation(plan)
    first.step()
    first.step()
    tensors, numbers = first.save()
    second = simulation(plan)
    second.load({n: t.clone() for n, t in tensors.items()}, numbers)
    finish(second)
    assert same_bits(second.finish(), expected)
    assert second.traffic == straight.traffic


@pytest.mark.parametrize("absent", [0.5, 1.0])
@pytest.mark.parametrize(("name", "place"), CASES)
def test_absent_clients_are_tolerated(name: str, place: str, absent: float) -> None:
    applies(name, "absent clients")
    run, result = play(stages(name, place, absent=absent, stragglers=0.2), clients())
    assert all(t.isfinite().all() for t in parts(result))
    if absent == 1.0:
        untouched = simulation(stages(name, place))
        assert torch.equal(run.state.centers, untouched.state.centers)


@pytest.mark.parametrize(("name", "place"), CASES)
def test_one_cluster(name: str, place: str) -> None:
    applies(name, "one cluster")
    _, result = play(stages(name, place, clusters=1), clients())
    assert result.centers.shape[0] == 1
    torch.testing.assert_close(result.importance, torch.ones(12, 1, dtype=F64))
    assert all(t.isfinite().all() for t in parts(result))


@pytest.mark.parametrize(("name", "place"), CASES)
def test_a_client_with_one_point(name: str, place: str) -> None:
    applies(name, "one point")
    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 10, generator=g), torch.randn(n, 1, generator=g)) for n in (1, 30, 2, 17)]
    federation = from_arrays(data, test_fraction=0.0, task="regression")
    plan = stages(name, place)
    if place == "graph":
        plan = Stages((replace(plan[0], topology=Graph("complete")),))
    _, result = play(plan, federation)
    assert all(t.isfinite().all() for t in parts(result))
    close(apart(linear, federation, plan, seed=3)[0], result)


def test_stages_hand_their_centers_on() -> None:
    """From a server to a graph and back; apart as together, and resumed as straight."""
    first, second = stages("FedSoft", "server")[0], stages("FedSPD", "graph")[0]
    plan = first.then(second).then(first)
    run, result = play(plan, clients())
    assert run.progress.planned == 9
    close(apart(linear, clients(), plan, seed=3)[0], result)
    half = simulation(plan)
    for _ in range(4):
        half.step()
    again = simulation(plan)
    again.load(*half.save())
    finish(again)
    assert same_bits(again.finish(), result)


def with_everything() -> nn.Module:
    """Layers that have to know their client."""
    layers = [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 36, 10))


@pytest.mark.parametrize(("name", "place"), CASES)
def test_norm_and_dropout_apart_and_in_any_chunk(name: str, place: str) -> None:
    """A bias before a norm, or momentum, would blow rounding up; so there is neither."""
    applies(name, "apart")
    data = digits(clients=6, image=True, train_points=12, test_points=4, seed=1)
    topology = Graph("complete") if place == "graph" else Server()
    plan = Stages((Stage(algorithm(name), 2, Training(learning_rate=0.05, batch_size=5), topology),))

    def together(chunk: int | None) -> Result:
        run = finish(simulation(plan, data, model=with_everything, seed=0, chunk=chunk))
        assert run.model.vectorised
        return run.finish()

    close(together(1), together(None))
    close(apart(with_everything, data, plan)[0], together(None))
