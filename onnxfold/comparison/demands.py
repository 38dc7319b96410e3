"""Sizes of dynamic dimensions that weights demand: another size fails in every run."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.comparison.dims import axes_of, concrete
from onnxfold.comparison.ranges import SAME_SHAPE, shape_of

_SCALED = {"Add", "Div", "Mul", "Sub"}
_RECURRENT = {"GRU", "LSTM", "RNN"}


def demanded_sizes(graph: ir.Graph, inputs: Sequence[ir.Value]) -> dict[str, int]:
    """Sizes of dynamic dimensions, by name, that the weight of a product or convolution demands.

    Follows inputs through transposes, and through ops that keep the shape. Nodes of subgraphs,
    which may not run, demand nothing.
    """
    found: dict[str, int] = {}
    for value in inputs:
        work = [(value, [names[0] if names else None for names in _plain_axes(value)])]
        seen = {value}
        while work:
            current, axes = work.pop()
            for user, position in current.uses():
                if user.graph is not graph:
                    continue
                if position == 0 and (demand := _demand(user)) is not None:
                    axis, size = demand
                    if -len(axes) <= axis < len(axes) and (name := axes[axis]) is not None:
                        found.setdefault(name, size)
                following = _following(user, position, axes)
                if following is not None and user.outputs[0] not in seen:
                    seen.add(user.outputs[0])
                    work.append((user.outputs[0], following))
    return found


def _plain_axes(value: ir.Value) -> list[list[str]]:
    """For each axis the name of its dimension, or none if it has a fixed size or an expression."""
    axes = axes_of(value)
    sizes = {name: 1000 + k for k, names in enumerate(axes) for name in names}
    shape = concrete(value, sizes)
    return [n if len(n) == 1 and sizes[n[0]] == shape[k] else [] for k, n in enumerate(axes)]


def _demand(node: ir.Node) -> tuple[int, int] | None:
    """Return an axis of the node's first input, and the size that the node's weight
    demands there.
    """
    weight = shape_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if weight is None or not all(isinstance(size, int) for size in weight):
        return None
    shape, op = tuple(int(size) for size in weight if isinstance(size, int)), node.op_type
    if op in ("Conv", "ConvInteger") and len(shape) > 2:
        return 1, shape[1] * node.attributes.get_int("group", 1)
    if op == "ConvTranspose" and len(shape) > 2:
        return 1, shape[0]
    if op == "Gemm" and len(shape) == 2 and not node.attributes.get_int("transA", 0):
        return 1, shape[1 if node.attributes.get_int("transB", 0) else 0]
    if op in ("MatMul", "MatMulInteger") and len(shape) > 1:
        return -1, shape[-2]
    if op in _RECURRENT and len(shape) == 3:
        return 2, shape[2]
    return None


def _following(node: ir.Node, position: int, axes: list[str | None]) -> list[str | None] | None:
    """Return the names of the axes of the node's output; None if they are not those of
    the input.
    """
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", tuple(reversed(range(len(axes)))))
        return [axes[k] for k in order] if len(order) == len(axes) else None
    if node.op_type in SAME_SHAPE:
        return axes if position == 0 else None
    if node.op_type in _SCALED:
        other = shape_of(node.inputs[1 - position])
        return axes if other is not None and len(other) <= len(axes) else None
    return None
