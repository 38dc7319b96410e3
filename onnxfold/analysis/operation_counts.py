"""Count the multiply-accumulates and floating-point operations of a node.

Multiply-accumulates are those of matrix products, convolutions, recurrent ops, attention and
Einsum, without biases, and count as two operations. Ops that only move, copy, select or convert
elements count none. All others count one operation per element that they read or write, whichever
is more; pooling ops count one per element of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import onnx_ir as ir

from onnxfold.ops import Trait, ops

Shape = tuple[int, ...]
Shapes = list[Shape]

_RECURRENT = ("GRU", "LSTM", "RNN")
_MOVING = (
    *(op for trait in (Trait.MOVES, Trait.REPEATS, Trait.SELECTS, Trait.FREE) for op in ops(trait)),
    *("Cast", "CastLike", "Compress", "DepthToSpace", "ReverseSequence", "SpaceToDepth", "Trilu"),
    *("NonZero", "Scatter", "ScatterElements", "ScatterND", "Where"),
)


def operations_of(
    node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
) -> tuple[int, int] | None:
    """Return the multiply-accumulates and the floating-point operations of a node.

    None if a size is unknown, or the op is not one of ONNX's own.
    """
    if node.domain != "":
        return None
    if node.op_type in _MOVING:
        return 0, 0
    read = [None if v is None else shape_of(v) for v in node.inputs]
    made = [shape_of(v) for v in node.outputs]
    try:
        macs = _multiplied(node, cast(Shapes, read), cast(Shapes, made))
    except (IndexError, TypeError, ValueError):  # a shape is unknown, or an operand is missing
        return None
    if macs is not None:
        return macs, 2 * macs
    there = [v is not None and bool(v.name) for v in (*node.inputs, *node.outputs)]
    shapes = [shape for shape, is_there in zip((*read, *made), there, strict=True) if is_there]
    counts = [math.prod(shape) for shape in shapes if shape is not None]
    if node.op_type in ops(Trait.UNBOUNDED) or len(counts) < len(shapes):
        return None
    if node.op_type in ops(Trait.POOLS):
        return 0, math.prod(made[0] or ()) * math.prod(node.attributes["kernel_shape"].as_ints())
    return 0, max(counts)


def _multiplied(node: ir.Node, read: Shapes, made: Shapes) -> int | None:
    """Return the multiply-accumulates; None for an op without any."""
    op = node.op_type
    if op in ops(Trait.MULTIPLIES):  # each element of the result is a sum of this many products
        axis = 0 if node.attributes.get_int("transA", 0) else -1
        return math.prod(made[0]) * read[0][axis]
    if op == "ConvTranspose":  # each operand element is multiplied by its channel's weights
        return math.prod(read[0]) * math.prod(read[1][1:])
    if op in ops(Trait.CONVOLVES) or op == "DeformConv":
        return math.prod(made[0]) * math.prod(read[3 if op == "QLinearConv" else 1][1:])
    if op in _RECURRENT:  # at each step, each row is multiplied by all weights of W and R
        return math.prod(read[0][:2]) * (math.prod(read[1]) + math.prod(read[2]))
    if op == "Attention":  # elements of queries and results are multiplied by all keys or values
        past = read[4][-2] if len(read) > 4 and node.inputs[4] is not None else 0
        return (math.prod(read[0]) + math.prod(made[0])) * (read[1][-2] + past)
    if op == "Einsum":  # the product of all index ranges; one operand needs no multiplication
        equation = node.attributes["equation"].as_string().replace(" ", "")
        labels = equation.partition("->")[0].split(",")
        sizes: dict[str, int] = {}
        for term, shape in zip(labels, read, strict=True):
            sizes.update(zip(term, shape, strict=True))
        return math.prod(sizes.values()) if len(labels) > 1 else 0
    return None
