"""Products of clients' own matrices for a GPU, by Triton's interpreter; benchmarks/products.py asks a GPU itself."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

ASKED = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from coterie.products import _parts, add_products, products, use_products

g = torch.Generator().manual_seed(0)
SHAPES = [(10, 200, 784, 0, 1), (200, 300, 10, 1, 0), (32, 576, 25, 0, 0), (40, 60, 1600, 0, 1), (5, 1, 3, 1, 1)]
for rows, columns, inner, left_turned, right_turned in SHAPES:
    a = torch.randn(3, inner, rows, generator=g).mT if left_turned else torch.randn(3, rows, inner, generator=g)
    b = torch.randn(3, columns, inner, generator=g).mT if right_turned else torch.randn(3, inner, columns, generator=g)
    right = torch.bmm(a.double(), b.double()).float()
    torch.testing.assert_close(products(a, b), right, rtol=1e-4, atol=1e-4)
    to = torch.ones_like(right)
    add_products(to, a, b)
    torch.testing.assert_close(to, 1 + right, rtol=1e-4, atol=1e-3)
assert _parts(3, 40, 60, 1600) == 3  # a long sum is cut, as was tried above
assert _parts(1000, 40, 60, 1600) == 1  # but not where there are lanes enough


def work(a, b, c):
    return torch.bmm(a, b), torch.bmm(c, c.mT), torch.bmm(c, c)


step = make_fx(work)(torch.randn(2, 10, 50), torch.randn(2, 50, 40), torch.randn(2, 50, 50))
use_products(step)
used = [node.target is torch.ops.coterie.products.default for node in step.graph.nodes if node.op == "call_function"]
assert used == [True, False, True, False], used  # a transpose; thin; along the inner axis; neither
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_products_are_those_of_matrices() -> None:
    place = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
