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
from coterie.engine.compile.kernels import _parts, add_products, products, use_products

g = torch.Generator().manual_seed(0)
SHAPES = [(10, 200, 784, 0, 1), (200, 300, 10, 1, 0), (32, 576, 25, 0, 0), (40, 60, 1600, 0, 1), (5, 1, 3, 1, 1)]
SHAPES += [(130, 70, 96, 0, 1), (70, 130, 96, 0, 0)]  # in large blocks
SHAPES += [(40, 60, 1600, 0, 0), (40, 90, 50, 1, 0), (90, 40, 50, 1, 0), (90, 40, 50, 1, 1)]  # turned or copied
for rows, columns, inner, left_turned, right_turned in SHAPES:
    a = torch.randn(3, inner, rows, generator=g).mT if left_turned else torch.randn(3, rows, inner, generator=g)
    b = torch.randn(3, columns, inner, generator=g).mT if right_turned else torch.randn(3, inner, columns, generator=g)
    right = torch.bmm(a.double(), b.double()).float()
    torch.testing.assert_close(products(a, b), right, rtol=1e-4, atol=1e-4)
    to = torch.ones_like(right)
    add_products(to, a, b)
    torch.testing.assert_close(to, 1 + right, rtol=1e-4, atol=1e-3)
assert _parts(3, 40, 60, 1600) == 3  # a long sum is cut, as was tried above
assert _parts(1000, 40, 60, 1600) == 1  # but not where there are slots enough


def work(a, b, c, d):
    return torch.bmm(a, b), torch.bmm(c, c.mT), torch.bmm(c, c), d.sum(1, True), c.sum(1, True), d.double().sum(1, True)


given = [torch.randn(2, *shape) for shape in ((10, 50), (50, 40), (52, 52), (10, 70))]
step = make_fx(work)(*given)
use_products(step)
asked = [torch.ops.coterie.products.default, torch.ops.aten.bmm.default, torch.ops.aten.sum.dim_IntList]
used = [asked.index(node.target) for node in step.graph.nodes if node.target in asked]
assert used == [0, 0, 0, 0, 2, 2], used  # thin; along the inner axis; not; a sum of few rows; of many; of doubles
for ours, right in zip(step(*given), work(*given)):
    torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-4)

torch.backends.cuda.matmul.allow_tf32 = True
step = make_fx(work)(*given)
use_products(step)
used = [asked.index(node.target) for node in step.graph.nodes if node.target in asked]
assert used == [0, 1, 1, 2, 2, 2], used  # thin alone: cuBLAS has tensor cores for the others
torch.backends.cuda.matmul.allow_tf32 = False
odd = torch.randn(2, 75, 75)
step = make_fx(torch.bmm)(odd, odd)
use_products(step)
assert any(node.target is torch.ops.aten.bmm.default for node in step.graph.nodes)

fixed = torch.randn(2, 10, 70)  # a model's constant, of which a traced step knows no shape
step = make_fx(lambda d: (fixed.sum(1, True) + d, d.sum(1, True, dtype=torch.float32)))(given[3])
use_products(step)
assert not any(node.target is torch.ops.coterie.products.default for node in step.graph.nodes)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_products_are_those_of_matrices() -> None:
    place = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
