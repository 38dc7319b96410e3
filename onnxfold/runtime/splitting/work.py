"""What it saves not to run an op again, in the bytes of memory that could be read meanwhile.

One scale for bytes and for time lets the frontier weigh one against the other. It is coarse: a
core reads about as many bytes as it does a tenth of its floating-point operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.ops import Trait, ops
from onnxfold.runtime.splitting.sizes import NominalSizes

NODE = 4096
"""Calling an op takes a few microseconds, whatever it does."""

_BYTES_PER_FLOP = 0.125

_EXPANDING, _SELECTING, _FREE = map(ops, (Trait.REPEATS, Trait.SELECTS, Trait.FREE))
_MATMUL, _CONVOLUTION = map(ops, (Trait.MULTIPLIES, Trait.CONVOLVES))
_HEAVY, _UNKNOWN = map(ops, (Trait.HEAVY, Trait.UNBOUNDED))


def work_of(node: ir.Node, sizes: NominalSizes) -> float:
    """Bytes that weigh as much as running the node once."""
    made = [shape for shape in map(sizes.shape, node.outputs) if shape is not None]
    elements = sum(map(math.prod, made))
    nbytes = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    if is_expanding(node, sizes) or node.op_type in _FREE:
        return NODE
    if node.op_type in _MATMUL or node.op_type in _CONVOLUTION:
        depth = _depth(node, [None if v is None else sizes.shape(v) for v in node.inputs])
        return NODE + nbytes + _BYTES_PER_FLOP * 2 * elements * depth
    if node.op_type in _UNKNOWN:
        return NODE + 64 * nbytes
    return NODE + (8 if node.op_type in _HEAVY else 2) * max(nbytes, _read(node, sizes))


def is_expanding(node: ir.Node, sizes: NominalSizes) -> bool:
    """Whether the node only repeats elements, and so makes more bytes than it is given."""
    if node.domain not in ("", "ai.onnx"):
        return False
    made = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    selects_more = node.op_type in _SELECTING and made > _read(node, sizes)
    return node.op_type in _EXPANDING or selects_more


def _read(node: ir.Node, sizes: NominalSizes) -> int:
    return sum(sizes.nbytes(v) or 0 for v in node.inputs if v is not None)


def _depth(node: ir.Node, inputs: Sequence[tuple[int, ...] | None]) -> int:
    """Products that are summed for one element of the result."""
    first = inputs[0] if inputs else None
    if node.op_type in _CONVOLUTION:
        index = 3 if node.op_type == "QLinearConv" else 1
        weight = inputs[index] if len(inputs) > index else None
        return math.prod(weight[1:]) if weight else 1
    if not first:
        return 1
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
    return first[0] if transposed else first[-1]
