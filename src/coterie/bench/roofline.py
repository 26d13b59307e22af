"""How fast a device could be at most: what a client-step must move and compute, by what the device was seen to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from coterie.bench.workloads import Workload

SIDE = 8192  # of the matrices that are multiplied
PASSES = 6  # over a client's row, see bytes_of_step


@dataclass(frozen=True)
class Ceilings:
    """What the device did in this run."""

    bytes_per_second: float  # read and written by a copy
    flops_per_second: float  # of a large matrix product, in the precision of the run


def ceilings(tf32: bool) -> Ceilings:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    source = torch.empty(2**29, device="cuda")  # 2 GiB
    target = torch.empty_like(source)
    copying = _seconds(lambda: target.copy_(source))
    moved = 2 * source.numel() * source.element_size()
    a = torch.randn(SIDE, SIDE, device="cuda")
    return Ceilings(moved / copying, 2 * SIDE**3 / _seconds(lambda: a @ a))


def _seconds(work: Callable[[], object], times: int = 10) -> float:
    found = []
    for _ in range(times + 2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return median(found[2:])


def least_seconds(work: Workload, limits: Ceilings) -> float:
    """Seconds that a client-step takes at least: the longer of moving its bytes and computing its FLOPs."""
    return max(bytes_of_step(work) / limits.bytes_per_second, flops_of_step(work) / limits.flops_per_second)


def bytes_of_step(work: Workload) -> int:
    """6 x 4 bytes for each parameter of the client's row, which is its own and cannot be shared with others.

    It is read forward, and again backward; its gradient is written, and read by the update, which reads and writes the
    row. Points and activations are left out, and a step that keeps the gradient in registers saves two passes: so this
    is what a step by known means moves, and not a law.
    """
    return PASSES * 4 * sum(p.numel() for p in work.build().parameters())


def flops_of_step(work: Workload) -> int:
    """Of one batch, forward and backward, counted by torch from the model itself."""
    model, x = work.build().train(), torch.randn(work.batch_size, *work.shape)
    y = (
        torch.zeros(work.batch_size, dtype=torch.long)
        if work.outputs > 1
        else torch.zeros(work.batch_size, 1)
    )
    with FlopCounterMode(display=False) as counter:
        output = model(x)
        loss = functional.cross_entropy(output, y) if work.outputs > 1 else functional.mse_loss(output, y)
        loss.backward()
    return int(counter.get_total_flops())
