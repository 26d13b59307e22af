"""How many clusters: the rule that chooses among losses, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import CoterieError
from coterie.model_selection.choice import Choice, Tried, compare


def _choice(losses: list[list[float]], gain: float = 0.05) -> Choice:
    tried = [Tried(s + 1, tuple(each), 0.0, 0, 0.0) for s, each in enumerate(losses)]
    return Choice.among(tried, gain)


def _chosen(losses: list[list[float]], gain: float = 0.05) -> int:
    return _choice(losses, gain).n_clusters


def test_the_elbow() -> None:
    assert _chosen([[9, 9, 9], [4, 4, 4], [1, 1, 1], [1, 1, 1], [1, 1, 1]]) == 3


def test_no_gain_at_all() -> None:
    assert _chosen([[1, 1, 1], [1, 1, 1]]) == 1


def test_too_many_clusters_do_harm() -> None:
    assert _chosen([[5, 5, 5], [1, 1, 1], [2, 2, 2]]) == 2


def test_chance_by_hand() -> None:
    # differences 0, 0.2, 0.1, 0.1: mean 0.1, deviation √(0.02/3) = 0.0816, error 0.0408, and 1.645 of these 0.0672
    losses = torch.tensor([[1.0, 1.2, 1.1, 1.1], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    found = compare(losses, 0.05)
    assert found.excess.tolist() == pytest.approx([0.1, 0.0])
    assert found.error.tolist() == pytest.approx([0.0408248, 0.0])
    assert found.allowed.tolist() == pytest.approx([0.0671568, 0.05])
    assert _chosen(losses.tolist()) == 2
    assert _chosen(losses.tolist(), gain=0.11) == 1


def test_clients_are_compared_with_themselves() -> None:
    """Their losses differ much from each other, but each has 1.2 less with two clusters."""
    two = [float(k) for k in range(1, 10)]
    assert _chosen([[loss + 1.2 for loss in two], two]) == 2


def test_one_client_that_fares_badly_is_chance_and_three_are_not() -> None:
    good = [1.0] * 20
    assert _chosen([[50.0] * 20, [60.0, *good[1:]], good]) == 2
    assert _chosen([[50.0] * 20, [60.0] * 3 + good[3:], good]) == 3


def test_a_number_that_diverged_is_not_chosen() -> None:
    assert _chosen([[5.0, 5.0], [1.0, math.inf], [2.0, 2.0]]) == 3
    with pytest.raises(CoterieError, match="diverged; a smaller training rate"):
        _chosen([[math.inf, 1.0], [1.0, math.inf]])


Table = st.integers(2, 5).flatmap(
    lambda clients: st.lists(
        st.lists(st.integers(1, 50).map(float), min_size=clients, max_size=clients), min_size=1, max_size=5
    )
)


@given(Table, st.sampled_from([0.25, 2.0, 1024.0]))
def test_scale_and_order_of_clients_change_nothing_and_the_best_bounds_the_choice(
    losses: list[list[float]], scale: float
) -> None:
    chosen = _chosen(losses)
    assert _chosen([[scale * one for one in each] for each in losses]) == chosen
    assert _chosen([each[::-1] for each in losses]) == chosen
    means = [sum(each) / len(each) for each in losses]
    assert chosen <= means.index(min(means)) + 1


def test_the_sentence_and_the_warning() -> None:
    best = _choice([[9, 9], [1, 1], [2, 2]])
    assert (
        best.why()
        == "2 clusters are chosen: the held-out loss, 1, is the least, and with fewer it is 9 or more"
    )
    assert best.warning() is None
    near = _choice([[1.04, 1.04], [1, 1]])
    assert near.why() == (
        "1 cluster is chosen: the fewest whose held-out loss, 1.04, is within 0.05 of the least, 1 with 2"
    )
    assert (
        _choice([[9, 9], [1, 1]]).warning()
        == "2 clusters are the most that were tried; more may be better still"
    )
