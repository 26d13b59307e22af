"""Corners: found at a server or by peers alone, who have the same centers then."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie
from coterie import (
    Corners,
    FedEM,
    Federation,
    FedSPD,
    Graph,
    Participation,
    Privacy,
    Server,
    Stage,
    Stages,
    Training,
    WeCFL,
)
from coterie.algorithms.initialisation import initialised
from coterie.backends.loopback import loopback
from coterie.data import regressions
from coterie.errors import CoterieError
from coterie.protocol.coordinator import Coordinator
from coterie.protocol.topology import Topology
from coterie.runs.metrics import ari
from tests.builders import TRAINING, finish, linear, simulation

EVERYBODY = Participation()


def ring(ids: tuple[str, ...], folder: Path) -> Graph:
    path = folder / "ring.txt"
    path.write_text("\n".join(f"{one} {other}" for one, other in zip(ids, ids[1:] + ids[:1], strict=True)))
    return Graph("file", path=str(path))


def star(ids: tuple[str, ...], folder: Path) -> Graph:
    path = folder / "star.txt"
    path.write_text("\n".join(f"{ids[0]} {other}" for other in ids[1:]))
    return Graph("file", path=str(path))


def data(n: int = 12, mixture: str = "random") -> Federation:
    return regressions(n, 3, mixture, sizes=(30, 60), separation=None, seed=1)


def run(
    topology: Topology, rounds: int = 5, who: Participation = EVERYBODY, about: Federation | None = None
) -> Coordinator:
    plan = Stages((Stage(Corners(3), rounds, TRAINING, topology, who),))
    return simulation(plan, about or data())


@pytest.mark.parametrize("graph", ["erdos-renyi", "random-geometric", "ring", "star"])
def test_peers_have_the_centers_and_the_importance_that_a_server_would_find(
    graph: str, tmp_path: Path
) -> None:
    """On any graph that is connected, for rows are added up exactly."""
    made = {"ring": ring, "star": star}.get(graph)
    topology = made(data().ids, tmp_path) if made else Graph(graph, degree=4.0)  # type: ignore[arg-type]
    alone, served = finish(run(topology)), finish(run(Server()))
    same = served.state.centers.expand_as(alone.state.centers)
    torch.testing.assert_close(alone.state.centers, same, rtol=0, atol=1e-9)
    torch.testing.assert_close(alone.evaluate().importance, served.evaluate().importance, rtol=0, atol=1e-9)


def test_importance_is_largest_where_the_share_is() -> None:
    """No client is pure here: corners lie within the true simplex, so importance is more extreme than the shares."""
    about = regressions(40, 3, "random", seed=1)
    training = Training(learning_rate=0.04, batch_size=20, epochs=2)
    plan = Stages((Stage(Corners(3), 5, training, Graph("erdos-renyi", degree=6.0)),))
    found = finish(simulation(plan, about)).evaluate().importance
    assert about.mixture is not None
    order = [int((found - about.mixture[:, [s]]).abs().sum(0).argmin()) for s in range(3)]
    assert sorted(order) == [0, 1, 2]
    top = about.mixture.topk(2, dim=1).values
    clear = top[:, 0] - top[:, 1] >= 0.2
    assert int(clear.sum()) > 15
    right = found[clear].argmax(1) == torch.tensor(order)[about.mixture[clear].argmax(1)]
    assert float(right.double().mean()) > 0.9


def test_bytes_by_hand() -> None:
    """Two rounds alone, the second with a flood of sketches; then one row of each peer, added up along a tree."""
    n, graph = 12, Graph("complete")
    one = run(graph, rounds=3)
    one.step()
    assert one.traffic.total() == 0
    one.step()
    sketch = 10 * 2 + 8  # ten parameters in half precision, and a key; no longer than the row itself
    passed = n * (n * (n - 1) - (n - 1))  # everybody passes on every message, but not back
    assert one.traffic.point_to_point == passed * sketch
    assert one.traffic.multicast == n * n * sketch
    one.step()
    tree = (
        2 * (n - 1) * (3 * (10 + 1 + 10) * 8 + 8)
    )  # per edge and way: centers, weights, corners; who agrees
    assert one.traffic.point_to_point == passed * sketch + tree


def test_a_wide_model_is_sketched_by_as_many_numbers_as_are_asked_for() -> None:
    wide = regressions(8, 2, sizes=(20, 30), dimension=300, seed=1)
    plan = Stages((Stage(Corners(2, numbers=64), 2, TRAINING, Graph("complete")),))
    one = simulation(plan, wide, model=lambda: nn.Linear(300, 1, bias=False))
    sent = one.step()
    assert sent.sketch.shape == (8, 64)
    assert sent.sketch.dtype == torch.float16
    row = one.clients.cohort.recall("row", one.clients.cohort.initial)  # type: ignore[attr-defined]
    moved = row - one.clients.cohort.initial  # type: ignore[attr-defined]
    far, near = torch.cdist(moved, moved), torch.cdist(sent.sketch.double(), sent.sketch.double())
    apart = far > 0
    ratio = near[apart] / far[apart]
    assert float(ratio.min()) > 0.5
    assert float(ratio.max()) < 1.5


@pytest.mark.parametrize("seed", range(3))
def test_absent_peers_and_rewired_edges_agree_in_the_end(seed: int) -> None:
    """Whoever missed the flood, or had other sketches, takes the corners that were found by the most."""
    graph = Graph("erdos-renyi", degree=3.0, rewire=0.3)
    plan = Stages((Stage(Corners(3), 7, TRAINING, graph, Participation(absent=0.25, stragglers=0.1)),))
    one = simulation(plan, data(24), seed=seed)
    for _ in range(4):
        one.step()
    before = set(one.state.agreed.tolist())
    assert len(before) > 1  # some were absent, or heard less
    finish(one)
    last = one.stage.participation.present(one.keys, seed, 6)
    agreed = one.state.agreed[last]
    usual = int((agreed == agreed.mode().values).sum())
    assert usual >= 0.9 * int(last.sum())
    assert int(agreed.mode().values) == max(before)


def test_more_corners_than_clients_are_refused() -> None:
    with pytest.raises(CoterieError, match="up to 2, the number of clients"):
        run(Graph("complete"), about=data().permuted([0, 1]))


def test_a_row_far_from_all_others_is_not_finite_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Half precision ends at 65504; who is beyond has diverged."""
    about = data()
    about.train.x[about.train.owner == 3] *= 1e6
    with caplog.at_level(logging.WARNING, "coterie"):
        one = finish(run(Graph("complete"), about=about))
    assert "what diverged clients sent is left out" in caplog.text
    assert one.state.centers.isfinite().all()


# as an initialisation


def test_sketch_needs_no_server_and_corners_has_one() -> None:
    graph = Graph("erdos-renyi", degree=4.0)
    stage = Stage(FedSPD(2), 20, topology=graph, participation=Participation(0.5))
    for init, topology in {"sketch": graph, "corners": Server()}.items():
        first, rest = initialised(stage, init)
        assert (first.algorithm, first.topology, first.rounds) == (Corners(2), topology, 7)
        assert first.participation == EVERYBODY
        assert rest == Stage(FedSPD(2), 13, topology=graph, participation=Participation(0.5))
    assert initialised(Stage(FedSPD(2), 3, topology=graph), "sketch") == (
        Stage(FedSPD(2), 3, topology=graph),
    )


def test_privacy_is_refused_with_one_sentence_and_not_chosen_beside_it() -> None:
    private = Stage(FedSPD(2), 20, topology=Graph("complete"), privacy=Privacy(noise=1.0))
    for init in ("sketch", "corners"):
        with pytest.raises(
            CoterieError, match=r"privacy is given, but Corners has every client send .* no noise covers"
        ):
            initialised(private, init)
    assert [stage.algorithm.title() for stage in initialised(private)] == ["FedSoft", "FedSPD"]
    with pytest.raises(CoterieError, match="init needs centers, but WeCFL begins at one model"):
        initialised(Stage(WeCFL(2), 9), "corners")


@pytest.mark.parametrize("algorithm", [FedSPD(3), FedEM(3)], ids=lambda a: a.title())
def test_peers_find_three_pure_regressions_with_no_server(algorithm: coterie.Algorithm) -> None:
    about = data(24, "pure")
    found = finish(simulation(initialised(Stage(algorithm, 14, TRAINING, Graph(degree=4)), "sketch"), about))
    assert about.mixture is not None
    assert ari(found.evaluate().importance, about.mixture) == 1


def test_bit_equal_over_messages() -> None:
    """Corners are found by half-precision numbers in the order of keys, so that peers agree to the last bit."""
    plan = Stages((Stage(Corners(3), 3, TRAINING, Graph("erdos-renyi", degree=4.0)),))
    together, apart = simulation(plan, data()), loopback(linear, data(), plan, seed=3)
    for one in (together, apart):
        one.step(), one.step()
    assert torch.equal(together.state.corners, apart.state.corners)
    assert torch.equal(together.state.agreed, apart.state.agreed)
    assert len(set(together.state.agreed.tolist())) == 1
