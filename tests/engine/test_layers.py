"""Layers that stand in for PyTorch's own have its numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.engine.layers import Prepared, SlicedMaxPool2d

REPLACED = [nn.MaxPool2d(2), nn.MaxPool2d(3), nn.MaxPool2d((2, 3)), nn.MaxPool2d(2, stride=2)]
KEPT = [
    nn.MaxPool2d(3, stride=2),
    nn.MaxPool2d(2, padding=1),
    nn.MaxPool2d(2, dilation=2),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(2, return_indices=True),
]


def of_pool(layer: nn.Module, on_gpu: bool = False) -> nn.Module:
    return Prepared(nn.Sequential(layer), on_gpu=on_gpu).module[0]


@pytest.mark.parametrize("pool", REPLACED, ids=str)
def test_pooling_in_evaluation_has_the_numbers_of_pytorch(pool: nn.MaxPool2d) -> None:
    x = torch.randn(4, 3, 11, 8).relu()  # many are alike, and windows do not fill the picture
    x[0, 0, 0, 0] = torch.nan
    ours = of_pool(pool).eval()
    assert isinstance(ours, SlicedMaxPool2d)
    torch.testing.assert_close(ours(x), pool(x), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(ours(x[1]), pool(x[1]), rtol=0, atol=0)  # a picture alone


@pytest.mark.parametrize("pool", REPLACED, ids=str)
def test_pooling_in_training_has_the_gradients_of_pytorch(pool: nn.MaxPool2d) -> None:
    x = torch.randn(4, 3, 11, 8).relu().requires_grad_()
    gradients = [
        torch.autograd.grad(layer(x).square().sum(), x)[0] for layer in (pool, of_pool(pool).train())
    ]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("pool", KEPT, ids=str)
def test_other_pooling_is_left_as_it_is(pool: nn.MaxPool2d) -> None:
    assert type(of_pool(pool)) is nn.MaxPool2d


def test_a_gpu_pools_as_pytorch_does() -> None:
    assert type(of_pool(nn.MaxPool2d(2), on_gpu=True)) is nn.MaxPool2d
