"""Layers that stand in for PyTorch's own have its numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from coterie.engine.layers import Prepared, SlicedMaxPool2d

REPLACED = [nn.MaxPool2d(2), nn.MaxPool2d(3), nn.MaxPool2d((2, 3)), nn.MaxPool2d(2, stride=(2, 2))]
KEPT = [
    nn.MaxPool2d(3, stride=2),
    nn.MaxPool2d(2, padding=1),
    nn.MaxPool2d(2, dilation=2),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(2, return_indices=True),
    nn.MaxPool2d((2,)),
    nn.MaxPool2d(5),  # so large a window is slower in slices
]


def of_pool(layer: nn.Module, on_gpu: bool = False) -> nn.Module:
    return Prepared(nn.Sequential(layer), on_gpu=on_gpu).module[0]


def pictures() -> Tensor:
    """With many numbers alike, not all of them numbers, and of no even size."""
    x = torch.randn(4, 3, 11, 8).relu()
    x[0, 0, 0, 0] = torch.nan
    return x


@pytest.mark.parametrize("pool", REPLACED, ids=str)
def test_pooling_in_evaluation_has_the_numbers_of_pytorch(pool: nn.MaxPool2d) -> None:
    x, ours = pictures(), of_pool(pool).eval()
    assert isinstance(ours, SlicedMaxPool2d)
    with torch.no_grad():
        for found in (ours(x), torch.stack([ours(one) for one in x]), vmap(ours)(x[:, None])[:, 0]):
            torch.testing.assert_close(found, pool(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("pool", REPLACED, ids=str)
def test_pooling_has_the_gradients_of_pytorch(pool: nn.MaxPool2d, training: bool) -> None:
    x = pictures().nan_to_num().requires_grad_()
    layers = pool, of_pool(pool).train(training)
    assert torch.equal(*(torch.autograd.grad(layer(x).square().sum(), x)[0] for layer in layers))


@pytest.mark.parametrize("pool", KEPT, ids=str)
def test_other_pooling_is_left_as_it_is(pool: nn.MaxPool2d) -> None:
    assert type(of_pool(pool)) is nn.MaxPool2d


def test_pooling_with_a_hook_is_left_as_it_is() -> None:
    pool = nn.MaxPool2d(2)
    pool.register_forward_hook(lambda *_: None)
    assert type(of_pool(pool)) is nn.MaxPool2d


def test_a_model_may_ask_its_pooling_what_it_is() -> None:
    ours = of_pool(nn.MaxPool2d(3))
    assert isinstance(ours, nn.MaxPool2d)
    assert (ours.kernel_size, ours.stride) == (3, 3)


@torch.no_grad()
def test_what_does_not_fit_is_said_by_pytorch() -> None:
    with pytest.raises(RuntimeError, match="too small"):
        of_pool(nn.MaxPool2d(3)).eval()(torch.zeros(1, 1, 2, 2))


def test_a_gpu_pools_as_pytorch_does() -> None:
    assert type(of_pool(nn.MaxPool2d(2), on_gpu=True)) is nn.MaxPool2d
