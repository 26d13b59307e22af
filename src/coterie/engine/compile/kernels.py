"""Products of every client's own matrices, on a GPU's tensor cores and as accurate as fp32.

A dense layer is to each client a thin product, of which cuBLAS knows no fast way: it takes two to three times as long
as reading the weights. Tensor cores round to tf32; but a number is the sum of two in tf32, and three products of such
parts (of the fourth nothing is left in fp32) are as close to the exact one as fp32, and closer where sums are long: see
benchmarks/products.py. Larger products, of convolutions, are made so too, unless tf32 will do for them. Imported only
where there is a GPU, for it needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor, fx

THIN = 16  # rows, as few as a batch has, so that a product is bound by memory, ...
SHORT = 32  # ... or an inner axis so short
LONG = 64  # numbers, so many that adding rows of them is worth a kernel of its own
SHORTEST = 512  # part of a long inner axis
FILLS = 1024  # blocks, so many of which keep a GPU busy


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    left, right, out,  # Triton reads annotations, and knows few
    parts: tl.constexpr, part: tl.constexpr, wide: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, inner: tl.constexpr,
    left_slot: tl.constexpr, left_row: tl.constexpr, left_inner: tl.constexpr,
    right_slot: tl.constexpr, right_inner: tl.constexpr, right_column: tl.constexpr,
    out_slot: tl.constexpr, out_row: tl.constexpr, out_column: tl.constexpr,
    add: tl.constexpr, precision: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_inner: tl.constexpr,
) -> None:  # fmt: skip
    """One block of one slot's product, of one part of the inner axis, written to `out` or added to it."""
    across: tl.constexpr = tl.cdiv(columns, block_columns)
    blocks: tl.constexpr = tl.cdiv(rows, block_rows) * across
    place = tl.program_id(0) // blocks  # of a slot's part, in `out`
    slot = (place // parts).to(tl.int64)
    block = tl.program_id(0) % blocks
    row = block // across * block_rows + tl.arange(0, block_rows)[:, None]
    column = block % across * block_columns + tl.arange(0, block_columns)[None, :]
    if wide:
        row, column = row.to(tl.int64), column.to(tl.int64)
    total = tl.zeros((block_rows, block_columns), tl.float32)
    for some in range(0, part, block_inner):
        begin = place % parts * part + some
        if wide:
            begin = begin.to(tl.int64)
        down = begin + tl.arange(0, block_inner)[:, None]
        along = begin + tl.arange(0, block_inner)[None, :]
        a = tl.load(
            left + slot * left_slot + row * left_row + along * left_inner,
            mask=(row < rows) & (along < inner),
            other=0.0,
        )
        b = tl.load(
            right + slot * right_slot + down * right_inner + column * right_column,
            mask=(down < inner) & (column < columns),
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=precision)
    there = out + place.to(tl.int64) * out_slot + row * out_row + column * out_column
    inside = (row < rows) & (column < columns)
    if add:
        total += tl.load(there, mask=inside, other=0.0)
    tl.store(there, total, mask=inside)


def _shape(rows: int, columns: int, inner: int) -> tuple[int, int, int, int, int]:
    """Blocks' rows, columns and inner length, warps, and loads in flight: what was fastest on an H200."""
    short = max(16, triton.next_power_of_2(inner))
    if rows <= 16:
        return (16, 32, min(short, 64), 2, 3) if columns <= 256 else (16, 64, min(short, 64), 4, 3)
    if inner <= 16:
        return 16, 64, short, 2, 1
    if inner <= 32:
        return 32, 128, short, 4, 1
    if rows <= 32:
        return 32, 32, 32, 2, 4
    return (128, 64, 32, 8, 3) if rows >= 128 and inner > 64 else (64, 64, 32, 4, 3)


def _parts(slots: int, rows: int, columns: int, inner: int) -> int:
    """Into how many the inner axis is cut: a few long sums would leave most of the GPU idle."""
    block_rows, block_columns = _shape(rows, columns, inner)[:2]
    blocks = slots * triton.cdiv(rows, block_rows) * triton.cdiv(columns, block_columns)
    return int(max(1, min(inner // SHORTEST, FILLS // blocks)))


def _is_wide(values: Tensor) -> bool:
    """Do offsets within a slot need more than 32 bits? (Slots may be interleaved in memory.)"""
    return (
        sum((n - 1) * stride for n, stride in zip(values.shape[1:], values.stride()[1:], strict=True))
        >= 2**31
    )


def _as_read(left: Tensor, right: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same product, turned where only the left ones lie along the inner axis; if none do, the smaller are copied.

    Tensor cores read what is on the right from shared memory, in tf32 only along the inner axis; what is on the left
    goes through registers, which may lie either way.
    """
    if _is_thin(left.shape) or right.stride(1) == 1:
        return left, right, out
    if left.stride(2) != 1:
        if left[0].numel() > right[0].numel():
            return left, right.mT.contiguous().mT, out
        left = left.contiguous()
    return right.mT, left.mT, out.mT


def _is_thin(shape: Sequence[int]) -> bool:
    """Of the left matrices."""
    return shape[1] <= THIN or shape[2] <= SHORT


def _multiply(left: Tensor, right: Tensor, out: Tensor, parts: int = 1, add: bool = False) -> None:
    """Into out (slot, row, column), or with several parts (slot and part, row, column)."""
    left, right, out = _as_read(left, right, out)
    slots, rows, inner = left.shape
    columns = right.shape[2]
    block_rows, block_columns, block_inner, warps, stages = _shape(rows, columns, inner)
    blocks = triton.cdiv(rows, block_rows) * triton.cdiv(columns, block_columns)
    part = triton.cdiv(triton.cdiv(inner, parts), block_inner) * block_inner
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    wide = _is_wide(left) or _is_wide(right) or _is_wide(out)
    strides = (*left.stride(), *right.stride(), *out.stride())
    form = (add, precision, block_rows, block_columns, block_inner)
    with torch.cuda.device_of(left):  # type: ignore[no-untyped-call] # Triton knows the current one alone
        _kernel[(slots * parts * blocks,)](
            left, right, out, parts, part, wide, rows, columns, inner, *strides, *form,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip


# whatever way its matrices lie, it can read them
@torch.library.custom_op("coterie::products", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def products(left: Tensor, right: Tensor) -> Tensor:
    """(slot, row, column), as torch.bmm."""
    slots, rows, inner = left.shape
    columns = right.shape[2]
    parts = _parts(slots, rows, columns, inner)
    out = left.new_empty(slots * parts, rows, columns)
    _multiply(left, right, out, parts)
    return out if parts == 1 else out.view(slots, parts, rows, columns).sum(1)


@products.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(len(left), left.shape[1], right.shape[2])


def add_products(to: Tensor, left: Tensor, right: Tensor) -> None:
    """As to.baddbmm_(left, right)."""
    if to.dtype == torch.float32:
        _multiply(left, right, to, add=True)
    else:
        to.baddbmm_(left, right)


def use_products(step: fx.GraphModule) -> None:
    """Let a traced step have its products made here, those that are faster so."""
    for node in step.graph.nodes:
        if any("tensor_meta" not in value.meta for value in node.all_input_nodes):  # a constant of the model
            continue
        if node.target is torch.ops.aten.bmm.default and _is_faster(*node.args[:1]):
            node.target = torch.ops.coterie.products.default
        elif node.target is torch.ops.aten.sum.dim_IntList and not node.kwargs and _adds_rows(*node.args):
            _multiply_by_ones(node, *node.args[:1])
    step.recompile()


def _adds_rows(values: fx.Node, axes: list[int], keeps: bool = False) -> bool:
    """Is it a sum of few long rows, as the gradient of a bias? Inductor makes it in one with turning them, slowly."""
    it = values.meta["tensor_meta"]
    if len(it.shape) != 3 or it.dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32:
        return False
    return bool(axes == [1] and keeps and it.shape[1] <= THIN and it.shape[2] >= LONG)


def _multiply_by_ones(node: fx.Node, values: fx.Node) -> None:
    slots, rows, _ = values.meta["tensor_meta"].shape
    with node.graph.inserting_before(node):
        ones = node.graph.call_function(torch.ops.aten.new_ones.default, (values, [slots, 1, rows]))
    node.target, node.args = torch.ops.coterie.products.default, (ones, values)


def _is_faster(left: fx.Node) -> bool:
    """Thin ones are, and others that are read four numbers at a time, unless tf32 will do: cuBLAS is good at that."""
    it = left.meta["tensor_meta"]
    if it.dtype != torch.float32:
        return False
    return _is_thin(it.shape) or not (it.shape[2] % 4 or torch.backends.cuda.matmul.allow_tf32)


def are_possible(device: torch.device) -> bool:
    """Has the device tensor cores for tf32?"""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)
