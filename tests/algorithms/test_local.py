"""Local training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie import Local, Stage, Stages
from coterie.data import from_arrays
from coterie.protocol.traffic import Traffic
from tests.builders import TRAINING, finish, simulation, trained


def test_local_sends_nothing() -> None:
    assert trained(Local()).traffic == Traffic()


def test_client_ids_not_positions() -> None:
    """A client does the same whoever else takes part."""
    g = torch.Generator().manual_seed(0)
    data = {n: (torch.randn(20, 10, generator=g), torch.randn(20, 1, generator=g)) for n in "abc"}

    def row_of_b(federation: dict) -> Tensor:
        plan = Stages((Stage(Local(), 2, TRAINING),))
        federation = from_arrays(federation, test_fraction=0.0, task="regression")
        run = finish(simulation(plan, federation, model=lambda: nn.Linear(10, 1), seed=0))
        return run.finish().personal.rows[federation.ids.index("b"), 0]

    alone = {"b": data["b"]}
    torch.testing.assert_close(row_of_b(data), row_of_b(alone), rtol=0, atol=1e-12)
