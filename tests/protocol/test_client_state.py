"""What a client keeps from round to round."""

from __future__ import annotations

import pytest
import torch

from coterie.engine import storage
from coterie.protocol.client_state import ClientState


@pytest.mark.parametrize("who", [[0, 2], [2, 0, 3], [3]], ids=["all known", "some", "nobody"])
def test_who_is_not_known_has_something_else(who: list[int]) -> None:
    memory, at = ClientState(4), torch.tensor(who)
    memory.put("row", torch.tensor([0, 2]), torch.tensor([[1.0, 1.0], [5.0, 5.0]]))
    otherwise = torch.full((1, 2), 7.0).expand(len(who), -1)
    found = memory.get("row", at, otherwise)
    assert found[:, 0].tolist() == [{0: 1.0, 2: 5.0}.get(i, 7.0) for i in who]
    found += 1  # it is a tensor of its own
    assert memory.get("row", torch.tensor([0]), otherwise[:1]).tolist() == [[1.0, 1.0]]


def test_memory_lies_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `meta` in the host's place, for want of a GPU: what is put there is moved, and only what is asked for."""
    monkeypatch.setattr(storage, "home", lambda *_: torch.device("meta"))
    memory = ClientState(5)
    memory.put("row", torch.tensor([1, 3]), torch.ones(2, 4))
    assert memory.values["row"].device.type == "meta"
    assert memory.values["row"].shape == (5, 4)
