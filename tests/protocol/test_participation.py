"""Who takes part in a round, and whose messages arrive."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data import everyone
from coterie.errors import CoterieError
from coterie.prng import id_keys
from coterie.protocol.participation import Participation

KEYS = id_keys(f"client {i}" for i in range(50))


def test_by_default_everyone_takes_part_and_nothing_is_lost() -> None:
    assert Participation().present(KEYS, seed=0, round=0).all()
    assert Participation().in_time(KEYS, seed=0, round=0).all()


@given(
    fraction=st.floats(0.001, 1), n=st.integers(1, 50), seed=st.integers(0, 1000), round=st.integers(0, 1000)
)
@settings(deadline=None)
def test_the_fraction_is_met_in_every_round(fraction: float, n: int, seed: int, round: int) -> None:
    part = Participation(fraction)
    invited = part.present(KEYS[:n], seed, round)
    assert invited.dtype == torch.bool
    assert int(invited.sum()) == part.n_invited(n)
    assert abs(part.n_invited(n) - fraction * n) <= 0.5 or part.n_invited(n) == 1


@given(order=st.permutations(range(50)), seed=st.integers(0, 1000), round=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_permuting_clients_permutes_who_takes_part(order: list[int], seed: int, round: int) -> None:
    part = Participation(fraction=0.4, absent=0.3, stragglers=0.3)
    assert torch.equal(part.present(KEYS[order], seed, round), part.present(KEYS, seed, round)[order])
    assert torch.equal(part.in_time(KEYS[order], seed, round), part.in_time(KEYS, seed, round)[order])


def test_each_client_comes_as_often_as_asked() -> None:
    part = Participation(fraction=0.4, absent=0.25, stragglers=0.1)
    rounds = range(2000)
    present = torch.stack([part.present(KEYS, 7, t) for t in rounds]).double().mean(0)
    dropped = torch.stack([~part.in_time(KEYS, 7, t) for t in rounds]).double().mean(0)
    torch.testing.assert_close(present, torch.full_like(present, 0.4 * 0.75), atol=0.05, rtol=0)
    torch.testing.assert_close(dropped, torch.full_like(dropped, 0.1), atol=0.05, rtol=0)


def test_messages_are_lost_independently_of_who_comes() -> None:
    part = Participation(absent=0.5, stragglers=0.5)
    present = torch.stack([part.present(KEYS, 1, t) for t in range(400)])
    dropped = torch.stack([~part.in_time(KEYS, 1, t) for t in range(400)])
    assert (present & dropped).double().mean().item() == pytest.approx(0.25, abs=0.02)


def test_nobody_may_ever_come() -> None:
    for round in range(20):
        assert not Participation(absent=0.999999).present(KEYS, seed=0, round=round).any()
        assert not Participation(stragglers=0.999999).in_time(KEYS, seed=0, round=round).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fraction": 0.0}, "^fraction is 0.0; allowed is above 0 and at most 1"),
        ({"fraction": 1.1}, "^fraction is 1.1"),
        ({"absent": -0.1}, "^absent is -0.1; allowed is from 0 to below 1"),
        ({"absent": 1.0}, "^absent is 1.0; allowed is from 0 to below 1: somebody must come"),
        ({"stragglers": 1.0}, "^stragglers is 1.0; allowed is from 0 to below 1: somebody must be heard"),
        ({"stragglers": 2.0}, "^stragglers is 2.0"),
        ({"stragglers": float("nan")}, "^stragglers is nan"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Participation(**wrong)


def test_a_mask_of_everyone_is_known_without_reading_it() -> None:
    n = len(KEYS)
    all_, some = Participation().present(KEYS, 0, 0), Participation(fraction=0.5).present(KEYS, 0, 0)
    assert everyone.is_mask(all_)
    assert not everyone.is_mask(some)
    assert not everyone.is_mask(torch.ones(n, dtype=torch.bool))  # it is, but one would have to read it
    assert torch.equal(everyone.both(all_, some), some)
    assert torch.equal(everyone.both(some, all_), some)
    assert torch.equal(everyone.both(some, ~some), torch.zeros(n, dtype=torch.bool))
    assert everyone.are_positions(everyone.positions(n, KEYS.device), n)
    assert not everyone.are_positions(everyone.positions(n - 1, KEYS.device), n)
