"""Gradients left as factors.

The gradient of a dense layer's weights is a product of two thin matrices, (outputs, batch) and (batch, inputs). With
plain gradient descent it need not be written down: the product can be added to the weights as it is made, which
saves a write and a read of a whole row at every step.
"""

from __future__ import annotations

import torch
from torch import fx

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def leave_factors(traced: fx.GraphModule, gradients: dict[str, int]) -> list[str]:
    """Change the graph's outputs: of those gradients, by place, that are such products, put out the two factors.

    They come last, two for each name that is returned; in their place the graph puts out nothing.
    """
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    outputs, found = list(output.args[0]), []
    factors: list[fx.Node] = []
    for name, place in gradients.items():
        pair = _factors(outputs[place])
        if pair is not None and _thin(*pair):
            outputs[place] = None
            found.append(name)
            factors += pair
    output.args = ([*outputs, *factors],)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return found


def _factors(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two matrices whose product this node is, if it is one; transposes on the way must cancel out."""
    wanted, turned = _shape(node), False
    while len(node.users) == 1 and node.op == "call_function":
        if node.target is torch.ops.aten.bmm.default:
            return None if turned or _shape(node) != wanted else (node.args[0], node.args[1])  # type: ignore[return-value]
        if node.target is torch.ops.aten.transpose.int and set(node.args[1:]) == {1, 2}:
            turned = not turned
        elif node.target not in _VIEWS or _shape(node) != _shape(node.args[0]):
            return None
        node = node.args[0]  # type: ignore[assignment]
    return None


def _thin(left: fx.Node, right: fx.Node) -> bool:
    """Are the factors much smaller than the product?"""
    (_, rows, inner), (_, _, columns) = _shape(left), _shape(right)
    return rows * columns > 2 * inner * (rows + columns)


def _shape(node: object) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape) if isinstance(node, fx.Node) else ()
