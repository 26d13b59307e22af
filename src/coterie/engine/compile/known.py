"""Which graphs were compiled on this machine before, so that Inductor has them in its cache and needs about a second.

An empty file for each, beside that cache. Were it wrong, a step would be compiled that is not worth the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, fx
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir


def mark(graph: fx.GraphModule, given: Sequence[Tensor]) -> Path:
    """The file that says so of this graph, for inputs of these shapes, with this PyTorch on this device."""
    device = given[0].device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    precision = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
    settings = str((torch.__version__, where, precision, torch.are_deterministic_algorithms_enabled()))
    about = [settings, graph.code, *(f"{x.dtype} {tuple(x.shape)}" for x in given)]
    name = hashlib.blake2b("\n".join(about).encode(), digest_size=16).hexdigest()
    return Path(cache_dir()) / "coterie" / name


def bypassed() -> int:
    """How many graphs Inductor did not put into its cache."""
    return int(counters["inductor"]["fxgraph_cache_bypass"])


def put(mark: Path) -> None:
    """Nothing is lost where it cannot be written."""
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
