"""The rank of adapters: an axis of weights that nothing but products of these weights see.

``(x @ a) @ b`` is the same kind of value whatever the number of columns of ``a`` and rows of ``b``
is. An axis of a weight is followed from op to op up to the product that sums over it; where both
factors come from runtime constants that way, and nobody else reads what lies between, the size may
be another one at every fold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.graphs import is_constant_node, is_initialized, tensor_of_constant
from onnxfold.onnx_ir_private import uses

Axis = tuple[ir.Value, int]
"""A value and one of its axes, counted from the end: -1 is the last."""


@dataclass
class LowRank:
    """Axes that have the same size, which may be any.

    Attributes:
        weights: The axes of weights.
        between: The axes of what is computed of these, up to the sum.
        right: The weights that are, or make, the right factor of a product that sums over it.
        scale: The number that the product is multiplied by before it is used; None if there are
            several products.
    """

    weights: list[Axis]
    between: list[Axis]
    right: list[ir.Value]
    scale: float | None


@dataclass
class _Trace:
    """Where an axis of a weight goes."""

    reached: set[Axis] = field(default_factory=set)
    sums: list[tuple[Axis, Axis, ir.Node]] = field(default_factory=list)
    """Left and right factor of a product that sums over the axis, and the product."""
    scale: float = 1.0
    ends: bool = True
    """Whether every way ends in such a product."""


def low_ranks(weights: Sequence[ir.Value]) -> list[LowRank]:
    """The ranks that a model leaves open.

    Args:
        weights: Runtime constants that are weights.
    """
    traces = {
        (weight, axis): _trace(weight, axis)
        for weight in weights
        if weight.shape is not None and len(weight.shape) >= 2
        for axis in dict.fromkeys((-1, -2, -len(weight.shape), 1 - len(weight.shape)))
    }
    source = {place: origin for origin, trace in traces.items() for place in trace.reached}
    found = []
    seen: set[Axis] = set()
    for origin in traces:
        members = _together(origin, traces, source) if origin not in seen else None
        if members is None:
            continue
        seen.update(members)
        sums = {node: (left, right) for m in members for left, right, node in traces[m].sums}
        right = [source[right][0] for _, right in sums.values()]
        scale = None
        if len(sums) == 1:
            (node,) = sums
            scale = math.prod(traces[member].scale for member in members)
            scale *= node.attributes.get_float("alpha", 1.0) * _scale_behind(node.outputs[0])
        between = [place for m in members for place in traces[m].reached if place not in traces]
        found.append(LowRank(list(members), between, list(dict.fromkeys(right)), scale))
    return found


def _together(
    origin: Axis, traces: dict[Axis, _Trace], source: dict[Axis, Axis]
) -> dict[Axis, None] | None:
    """The axes that are summed over together with one; None if one of them must keep its size."""
    members = {origin: None}
    pending = [origin]
    while pending:
        trace = traces[pending.pop()]
        if not trace.ends or not trace.sums:
            return None
        for left, right, _ in trace.sums:
            for factor in (left, right):
                other = source.get(factor)
                if other is None:
                    return None
                if other not in members:
                    members[other] = None
                    pending.append(other)
    return members


def _trace(weight: ir.Value, axis: int) -> _Trace:
    trace = _Trace()
    pending = [(weight, axis)]
    while pending and trace.ends:
        place = pending.pop()
        trace.reached.add(place)
        value, at = place
        trace.ends = not value.is_graph_output()
        for use in uses(value):
            after = _follow(use.node, use.idx, at, trace)
            if after is None:
                trace.ends = False
            elif after:
                pending.append((use.node.outputs[0], after))
    return trace


def _follow(node: ir.Node, operand: int, axis: int, trace: _Trace) -> int | None:
    """The axis of the result that one of an operand becomes; 0 for a sum, None for neither."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("Cast", "Identity"):
        return axis
    if node.op_type in ("Mul", "Div"):
        factor = _factor(node, operand)
        trace.scale *= factor or 1
        return None if factor is None else axis
    if node.op_type == "Transpose":
        perm = node.attributes.get_ints("perm")
        return None if perm is None else list(perm).index(axis % len(perm)) - len(perm)
    if node.op_type == "Conv" and operand < 2:
        return _through_conv(node, operand, axis, trace)
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and operand < 2):
        turned = ("transA", "transB")[operand]
        if node.attributes.get_int(turned, 0):
            axis = -3 - axis
        if axis == (-1, -2)[operand]:
            left, right = node.inputs[:2]
            if left is None or right is None:
                return None
            turns = [node.attributes.get_int(name, 0) for name in ("transA", "transB")]
            factors = (left, -2 if turns[0] else -1), (right, -1 if turns[1] else -2)
            trace.sums.append((*factors, node))
            return 0
        trace.scale *= node.attributes.get_float("alpha", 1.0)
        return None if node.op_type == "Gemm" and len(node.inputs) > 2 else axis
    return None


def _through_conv(node: ir.Node, operand: int, axis: int, trace: _Trace) -> int | None:
    """The same for a convolution, which sums over channels: the first but one axes of both."""
    data, weight = node.inputs[:2]
    if data is None or weight is None or weight.shape is None:
        return None
    rank = len(weight.shape)
    channels = 1 - rank
    if axis == channels and node.attributes.get_int("group", 1) == 1:
        trace.sums.append(((data, channels), (weight, channels), node))
        return 0
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    return channels if operand == 1 and axis == -rank and not has_bias else None


def _scale_behind(value: ir.Value) -> float:
    """The number that a product is multiplied by."""
    scale = 1.0
    while len(uses(value)) == 1 and not value.is_graph_output():
        use = next(iter(uses(value)))
        factor = 1.0 if use.node.op_type in ("Cast", "Identity") else _factor(use.node, use.idx)
        if factor is None:
            break
        scale *= factor
        value = use.node.outputs[0]
    return scale


def _factor(node: ir.Node, operand: int) -> float | None:
    """The number by which a Mul or Div multiplies an operand; None for other nodes."""
    if node.op_type == "Mul":
        return _number(node.inputs[1 - operand])
    number = _number(node.inputs[1]) if node.op_type == "Div" and operand == 0 else None
    return 1 / number if number else None


def _number(value: ir.Value | None) -> float | None:
    """The one element of a constant."""
    if value is None:
        return None
    producer = value.producer()
    tensor = None
    if producer is not None and is_constant_node(producer):
        tensor = tensor_of_constant(producer)
    elif is_initialized(value):
        tensor = value.const_value
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().item())
