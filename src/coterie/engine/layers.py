"""The layers that are not PyTorch's own when many clients are computed at once.

Dropout must draw its mask from a key, not from a position in a batch; batch norm must leave padding out of its
statistics and hand its new statistics back instead of writing them. What they need for a step arrives as buffers,
so it can differ from client to client under vmap. A small convolution with weights for each client is, in a GPU's
compiled steps, faster as a product of matrices; so is pooling on a CPU, in evaluation, as a maximum of shifted
pictures.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.errors import CoterieError
from coterie.prng import mix, uniform

Pair = tuple[int, int]
LONGEST_KERNEL = 1024  # numbers of a channel's kernel: to stack more takes longer than a grouped convolution
LARGEST_WINDOW = 16  # pixels of a pooling window: slicing takes longer than PyTorch's own from about 8x8 on


class KeyedDropout(nn.Module):
    """Dropout whose mask is a hash of (key of the step, layer, how often it was called in it, element)."""

    key: Tensor

    def __init__(self, p: float, layer: int, whole_channels: bool):
        super().__init__()
        self.p, self.layer, self.whole_channels = p, layer, whole_channels
        self.calls = 0  # in this forward pass: a model may use one layer several times
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        self.calls += 1
        if self.p == 1:
            return torch.zeros_like(x)
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.whole_channels else x.shape
        element = torch.arange(shape.numel(), device=x.device).view(shape)
        keep = uniform(mix(self.key, self.layer, self.calls, element)) >= self.p
        return x * keep.to(x.dtype) / (1 - self.p)


class MaskedBatchNorm(nn.Module):
    """Batch norm over the points that exist; the new running statistics are left in `after`."""

    mask: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, old: _BatchNorm):
        super().__init__()
        if old.track_running_stats and old.momentum is None:
            raise CoterieError(
                "batch norm with momentum=None cannot be averaged over clients; give it a momentum"
            )
        self.eps, self.momentum = old.eps, old.momentum or 0.0
        self.weight, self.bias = old.weight, old.bias
        self.register_buffer("running_mean", old.running_mean)
        self.register_buffer("running_var", old.running_var)
        self.register_buffer("mask", torch.ones(1), persistent=False)
        self.after: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        across = [0, *range(2, x.dim())]
        channels = (1, -1) + (1,) * (x.dim() - 2)
        mask = self._mask_like(x)
        each = mask.sum() * x.shape[2:].numel()
        mean = (x * mask).sum(across) / each
        centred = x - mean.view(channels)
        variance = (centred.square() * mask).sum(across) / each
        if self.training and self.running_mean is not None and self.running_var is not None:
            unbiased = variance * each / (each - 1)
            before = self.after or (self.running_mean, self.running_var)  # of an earlier call in this pass
            old, new = 1 - self.momentum, self.momentum
            self.after = (old * before[0] + new * mean, old * before[1] + new * unbiased)
        x = centred * torch.rsqrt(variance + self.eps).view(channels)
        if self.weight is not None:
            x = x * self.weight.view(channels) + self.bias.view(channels)
        return x

    def _mask_like(self, x: Tensor) -> Tensor:
        """One number per first-axis entry of x, which may hold several of each point (time folded into it)."""
        folded = max(1, len(x) // len(self.mask))
        return (
            self.mask.repeat_interleave(folded)
            .view((-1, *(1,) * (x.dim() - 1)))
            .to(x.dtype)
            .expand(len(x), *(1,) * (x.dim() - 1))
        )


class _Windows(torch.autograd.Function):
    """(channel and shift, point and pixel) what each number of a kernel sees of pictures (point, channel, ...).

    Forward all windows are read at once. Backward a picture's gradient is the sum of what every shift sends back, the
    derivative of pictures cut out one by one: a compiler makes one loop of that, and many need not add to one place.
    (The windows of zeros that this derivative begins with are needed for nothing, and a compiler leaves them out.)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> Tensor:
        for axis in (0, 1):
            span = dilation[axis] * (kernel[axis] - 1) + 1
            x = x.unfold(2 + axis, span, stride[axis])
        windows = x[..., :: dilation[0], :: dilation[1]].permute(1, 4, 5, 0, 2, 3)
        return windows.reshape(windows.shape[:3].numel(), -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, *ctx.settings = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        pictures = gradient.new_zeros(ctx.shape)
        (back,) = torch.func.vjp(lambda x: _one_by_one(x, *ctx.settings), pictures)[1](gradient)
        return back, None, None, None


def _one_by_one(x: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> Tensor:
    """The same windows."""
    rows, columns = (_shifts(x.shape[2 + a], kernel[a], stride[a], dilation[a]) for a in (0, 1))
    stacked = torch.stack([x[:, :, i, j] for i in rows for j in columns], 2)
    channels, shifts = stacked.shape[1:3]
    return stacked.permute(1, 2, 0, 3, 4).reshape(channels * shifts, -1)


class StackedConv2d(nn.Module):
    """A convolution that, in training, may stack shifted pictures and multiply them by the weights at once.

    What vmap makes of a convolution is a grouped one, for which GPUs have no fast program. A compiler reads the shifted
    pictures as it multiplies; without one they are written down, which takes longer than the grouped convolution does,
    except for kernels of one pixel, where there is nothing to shift.
    """

    def __init__(self, old: nn.Conv2d):
        super().__init__()
        self.weight, self.bias = old.weight, old.bias
        self.stride, self.padding, self.dilation = old.stride, old.padding, old.dilation
        self.always_stacks = self.stacks = old.kernel_size == (1, 1)

    @staticmethod
    def can_replace(layer: nn.Conv2d) -> bool:
        usual = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        hooked = layer._forward_pre_hooks or layer._forward_hooks  # spectral_norm makes its weights in one
        short = layer.kernel_size == (1, 1) or layer.weight[0].numel() <= LONGEST_KERNEL
        return usual and not hooked and short

    def windows(self, out: Tensor) -> int:
        """How many numbers it stacks to put out these."""
        return out.numel() // len(self.weight) * self.weight[0].numel()

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.stacks):
            return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)
        high, wide = (int(p) for p in self.padding)
        x = functional.pad(x, (wide, wide, high, high))
        kernel = self.weight.shape[2:]
        matrix: Tensor = _Windows.apply(x, tuple(kernel), self.stride, self.dilation)  # type: ignore[no-untyped-call]
        seen = [_seen(x.shape[2 + a], kernel[a], self.stride[a], self.dilation[a]) for a in (0, 1)]
        out = (self.weight.flatten(1) @ matrix).view(-1, len(x), *seen).transpose(0, 1)
        return out if self.bias is None else out + self.bias[:, None, None]


def _seen(length: int, kernel: int, stride: int, dilation: int) -> int:
    """How many pixels each number of a kernel sees, along one side."""
    return (length - dilation * (kernel - 1) - 1) // stride + 1


def _shifts(length: int, kernel: int, stride: int, dilation: int) -> list[slice]:
    """Which ones."""
    past = stride * (_seen(length, kernel, stride, dilation) - 1) + 1
    return [slice(i * dilation, i * dilation + past, stride) for i in range(kernel)]


class SlicedMaxPool2d(nn.MaxPool2d):
    """Max pooling of small windows beside each other that, without gradients, takes the maximum of shifted pictures.

    PyTorch's own finds the places too, which takes a CPU ten times as long for windows of 2x2.
    """

    def __init__(self, old: nn.MaxPool2d):
        super().__init__(old.kernel_size)
        self.window = _pair(old.kernel_size)

    @staticmethod
    def can_replace(layer: nn.MaxPool2d) -> bool:
        window = _pair(layer.kernel_size)
        beside = layer.stride in (layer.kernel_size, window) and layer.padding in (0, (0, 0))
        usual = layer.dilation in (1, (1, 1)) and not layer.return_indices and not layer.ceil_mode
        hooked = layer._forward_pre_hooks or layer._forward_hooks
        return (
            _is_pair(window) and window[0] * window[1] <= LARGEST_WINDOW and beside and usual and not hooked
        )

    def forward(self, x: Tensor) -> Tensor:
        high, wide = self.window
        fits = x.is_floating_point() and x.dim() in (3, 4) and x.shape[-2] >= high and x.shape[-1] >= wide
        if self.training or torch.is_grad_enabled() or not fits:
            out: Tensor = super().forward(x)  # which says what does not fit
            return out
        x = x[..., : x.shape[-2] // high * high, : x.shape[-1] // wide * wide]
        return reduce(torch.maximum, [x[..., i::high, j::wide] for i in range(high) for j in range(wide)])


def _pair(setting: Any) -> Any:
    return (setting, setting) if isinstance(setting, int) else setting


def _is_pair(window: Any) -> bool:
    """PyTorch takes more, such as a list, or a tuple of one."""
    return isinstance(window, tuple) and len(window) == 2 and all(type(side) is int for side in window)


class Prepared:
    """A copy of the user's module with these layers in place, and how to speak to them."""

    def __init__(self, module: nn.Module, on_gpu: bool = False):
        self.module = copy.deepcopy(module)
        self.dropouts: list[str] = []
        self.norms: list[str] = []
        for name, layer in list(self.module.named_modules()):
            if isinstance(layer, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                whole = not isinstance(layer, nn.Dropout)
                self._replace(name, KeyedDropout(layer.p, len(self.dropouts), whole))
                self.dropouts.append(name)
            elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                self._replace(name, MaskedBatchNorm(layer))
                self.norms.append(name)
            elif on_gpu and type(layer) is nn.Conv2d and StackedConv2d.can_replace(layer):
                self._replace(name, StackedConv2d(layer))
            elif not on_gpu and type(layer) is nn.MaxPool2d and SlicedMaxPool2d.can_replace(layer):
                self._replace(name, SlicedMaxPool2d(layer))

    @contextmanager
    def stacking(self) -> Iterator[None]:
        """For a compiler: convolutions as products."""
        layers = [layer for layer in self.module.modules() if isinstance(layer, StackedConv2d)]
        for layer in layers:
            layer.stacks = True
        try:
            yield
        finally:
            for layer in layers:
                layer.stacks = layer.always_stacks

    def _replace(self, name: str, layer: nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        setattr(self.module.get_submodule(parent), child, layer)

    def context(self, key: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """What the layers need for one forward pass, as named buffers; their counts begin anew."""
        for name in (*self.dropouts, *self.norms):
            layer = self.module.get_submodule(name)
            if isinstance(layer, KeyedDropout):
                layer.calls = 0
            elif isinstance(layer, MaskedBatchNorm):
                layer.after = None
        named = {_join(n, "key"): key for n in self.dropouts}
        named.update({_join(n, "mask"): mask for n in self.norms})
        return named

    def after(self) -> dict[str, Tensor]:
        """The running statistics that the last forward pass left."""
        named: dict[str, Tensor] = {}
        for name in self.norms:
            layer = self.module.get_submodule(name)
            if isinstance(layer, MaskedBatchNorm) and layer.after is not None:
                named[_join(name, "running_mean")], named[_join(name, "running_var")] = layer.after
                layer.after = None
        return named


def _join(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name
