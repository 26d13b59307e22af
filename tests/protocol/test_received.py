"""What an aggregator keeps, draws and received, and whom it offers something."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.errors import CoterieError
from coterie.protocol.message import RoundContext
from coterie.protocol.received import Received
from tests.builders import F64, messages, state


@pytest.mark.parametrize("shape", [(), (1, 3), (3, 4)])
def test_what_is_kept_is_per_client(shape: tuple[int, ...]) -> None:
    s = state([[[0.0]]], 4)
    with pytest.raises(CoterieError) as refused:
        s.update(velocity=torch.zeros(shape))
    assert str(refused.value) == (
        f"velocity has the shape {shape}; what an aggregator keeps besides centers is per client, "
        "so its first axis must be 4"
    )
    assert s.update(velocity=torch.zeros(4, 3)).velocity.shape == (4, 3)


def test_who_received_any_message() -> None:
    edges = torch.tensor([[0, 0, 1, 3], [0, 2, 1, 2]])  # aggregator, sender
    sent = messages([0, 2], size=[1, 1])  # client 1 sent nothing
    assert Received.by_peers(sent, 4, edges).any.tolist() == [True, False, False, True]
    assert Received.by_server(sent).any.tolist() == [True]
    assert Received.by_server(messages([], size=[])).any.tolist() == [False]


def test_draws_follow_their_chances() -> None:
    s = state([[[0.0], [0.0]]], 4)
    chance = torch.tensor([[0.7, 0.0], [0.2, 0.0], [0.1, 0.5], [0.0, 0.5]], dtype=F64)
    drawn = s.draw(chance, 4000, replacement=True)
    assert drawn.sum(0).tolist() == [4000, 4000]
    torch.testing.assert_close(drawn / 4000, chance, rtol=0, atol=0.03)
    once = s.draw(chance, 2, replacement=False)
    assert once.max() == 1
    assert once[:, 1].tolist() == [0, 0, 1, 1]


def test_draws_without_replacement_reach_everybody() -> None:
    s = state([[[0.0]]], 5)
    assert s.draw(torch.full((5, 1), 0.2), 5, replacement=False).tolist() == [[1.0]] * 5


def test_draws_differ_from_round_to_round_and_stage_to_stage() -> None:
    even = torch.full((50, 1), 0.02, dtype=F64)
    contexts = [RoundContext(0), RoundContext(0, round=1), RoundContext(0, stage=1), RoundContext(1)]
    drawn = [replace(state([[[0.0]]], 50), context=m).draw(even, 10, replacement=False) for m in contexts]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_only_the_invited_are_drawn_and_offered() -> None:
    invited = torch.tensor([True, False, True, False])
    s = replace(state([[[0.0]]], 4), invited=invited)
    drawn = s.draw(torch.full((4, 1), 0.25, dtype=F64), 4, replacement=True)
    assert drawn.sum() == 4
    assert drawn[~invited].sum() == 0
    assert s.draw(torch.full((4, 1), 0.25), 4, replacement=False)[:, 0].tolist() == [1, 0, 1, 0]
    assert s.offer(centers=s.centers).clients.tolist() == [0, 2]


def test_edge_weights_multiply_the_algorithm_s() -> None:
    sent = messages([0, 1], row=[[2.0], [8.0]])
    edges = torch.tensor([[0, 0], [0, 1]])
    received = Received.by_peers(sent, 2, edges, torch.tensor([0.75, 0.25], dtype=F64))
    before = torch.zeros(2, 1, 1, dtype=F64)
    assert float(received.mean("row", torch.ones(2, 1, dtype=F64), before)[0]) == 0.75 * 2 + 0.25 * 8
    by_size = torch.tensor([[1.0], [3.0]], dtype=F64)
    assert float(received.mean("row", by_size, before)[0]) == 5.0  # both weigh three quarters
    only = Received.by_peers(messages([1], row=[[8.0]]), 2, edges, torch.tensor([0.75, 0.25], dtype=F64))
    assert float(only.mean("row", torch.ones(1, 1, dtype=F64), before)[0]) == 8.0
