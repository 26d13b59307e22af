"""Messages, and the bytes that they count."""

from __future__ import annotations

import torch

from coterie.protocol.traffic import Traffic
from tests.builders import messages


def test_traffic_by_hand() -> None:
    """Path 0 - 1 - 2, float64 rows of width 1 (8 bytes) and a choice (8 bytes): messages of 16 bytes."""
    sent = messages([0, 1, 2], row=[[2.0], [4.0], [8.0]], drew=[0, 0, 1])
    traffic = Traffic()
    traffic.between(sent, torch.tensor([1, 2, 1]), needed=torch.tensor([1, 1, 0]))
    assert traffic.messages == 3
    assert traffic.multicast == 3 * 16
    assert traffic.point_to_point == 2 * 8 + 4 * 8  # rows where needed, choices to every neighbour
