"""How many multiply-accumulates and floating point operations a run of a node takes.

Multiply-accumulates are those of matrix products, convolutions, recurrent ops, attention and
Einsum, without biases. Each is two operations. Ops that only move, copy, select or convert elements
take none. All others take one operation for each element that they read or make, whichever are
more; a pooling op takes one for each element of its window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import onnx_ir as ir

from onnxfold.ops import Trait, ops

Shape = tuple[int, ...]
Shapes = list[Shape]

_CONVOLUTIONS = (*ops(Trait.CONVOLVES), "DeformConv")
_RECURRENT = ("GRU", "LSTM", "RNN")
_MOVING = (
    *(op for trait in (Trait.MOVES, Trait.REPEATS, Trait.SELECTS, Trait.FREE) for op in ops(trait)),
    *("Cast", "CastLike", "Compress", "DepthToSpace", "ReverseSequence", "SpaceToDepth", "Trilu"),
    *("NonZero", "Scatter", "ScatterElements", "ScatterND", "Where"),
)


def macs_of(node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]) -> int | None:
    """Return the multiply-accumulates of a node; None if a size is not known.

    Args:
        node: A node of ONNX's own domain.
        shape_of: Returns the shape of a value, or None.
    """
    op = node.op_type
    if op not in _COUNTED:
        return 0
    shapes = [None if value is None else shape_of(value) for value in node.inputs]
    made = [shape_of(value) for value in node.outputs]
    try:
        return _COUNTED[op](node, cast(Shapes, shapes), cast(Shapes, made))
    except (IndexError, TypeError, ValueError):  # a shape is None, or an operand is missing
        return None


def flops_of(node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]) -> int | None:
    """Return the floating point operations of a node; None if they are not known.

    Args:
        node: A node.
        shape_of: Returns the shape of a value, or None.
    """
    if node.domain != "":
        return None
    if node.op_type in _COUNTED:
        macs = macs_of(node, shape_of)
        return None if macs is None else 2 * macs
    if node.op_type in _MOVING:
        return 0
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    shapes = [shape_of(value) for value in values]
    if node.op_type in ops(Trait.UNBOUNDED) or None in shapes:
        return None
    if node.op_type in ops(Trait.POOLS):
        window = node.attributes["kernel_shape"].as_ints()
        return math.prod(shape_of(node.outputs[0]) or ()) * math.prod(window)
    return max(math.prod(shape or ()) for shape in shapes)


def _product(node: ir.Node, shapes: Shapes, made: Shapes) -> int:
    """Each element of the result is a sum of so many products."""
    transposed = node.attributes.get("transA")
    axis = 0 if transposed is not None and transposed.value else -1
    return math.prod(made[0]) * shapes[0][axis]


def _convolution(node: ir.Node, shapes: Shapes, made: Shapes) -> int:
    weight = shapes[3 if node.op_type == "QLinearConv" else 1]
    return math.prod(made[0]) * math.prod(weight[1:])


def _transposed_convolution(node: ir.Node, shapes: Shapes, made: Shapes) -> int:
    """Each element of the operand meets all weights of its channel."""
    return math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _recurrence(node: ir.Node, shapes: Shapes, made: Shapes) -> int:
    """At each step, each row meets all weights of W and R."""
    return math.prod(shapes[0][:2]) * (math.prod(shapes[1]) + math.prod(shapes[2]))


def _attention(node: ir.Node, shapes: Shapes, made: Shapes) -> int:
    """Each element of the queries, and of the result, meets as many keys or values as there are."""
    past = shapes[4][-2] if len(shapes) > 4 and node.inputs[4] is not None else 0
    return (math.prod(shapes[0]) + math.prod(made[0])) * (shapes[1][-2] + past)


def _einsum(node: ir.Node, shapes: Shapes, made: Shapes) -> int:
    """All indices take all their values; with one operand there is nothing to multiply."""
    equation = node.attributes["equation"].as_string().replace(" ", "")
    labels = [list(term) for term in equation.partition("->")[0].split(",")]
    sizes: dict[str, int] = {}
    for term, shape in zip(labels, shapes, strict=True):
        sizes.update(zip(term, shape, strict=True))
    return math.prod(sizes.values()) if len(labels) > 1 else 0


_COUNTED: dict[str, Callable[..., int]] = {
    **dict.fromkeys(ops(Trait.MULTIPLIES), _product),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_RECURRENT, _recurrence),
    "ConvTranspose": _transposed_convolution,
    "Attention": _attention,
    "Einsum": _einsum,
}
