"""Randomness is a function of its purpose."""

from __future__ import annotations

import torch

from coterie.prng import gumbel, id_keys, mix, uniform, word_key


def test_the_same_on_every_machine() -> None:
    """Computed once and written down: a change here changes every run ever made."""
    assert word_key("client") == 1760354825606609250
    assert mix(7, "order", torch.tensor([0, 1])).tolist() == [-2539029691301679608, -8427888184539822112]


def test_uniform_and_independent_of_neighbouring_keys() -> None:
    u = uniform(mix(0, "x", torch.arange(200_000)))
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.003
    assert abs(float(u.var()) - 1 / 12) < 0.001
    assert abs(float(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1])) < 0.01
    other = uniform(mix(0, "y", torch.arange(200_000)))
    assert abs(float(torch.corrcoef(torch.stack([u, other]))[0, 1])) < 0.01


def test_every_part_and_its_place_matter() -> None:
    keys = {
        int(mix(1, 2)),
        int(mix(2, 1)),
        int(mix(1, 2, 0)),
        int(mix(0, 1, 2)),
        int(mix("1", 2)),
        int(mix(1)),
    }
    assert len(keys) == 6
    assert len(set(id_keys(map(str, range(1000))).tolist())) == 1000


def test_gumbel_races_follow_the_chances() -> None:
    chance = torch.tensor([0.6, 0.3, 0.1])
    noise = gumbel(mix(3, torch.arange(30_000)[:, None], torch.arange(3)))
    won = torch.bincount((chance.log() + noise).argmax(1), minlength=3) / 30_000
    torch.testing.assert_close(won, chance, atol=0.01, rtol=0)
