"""Which integers an input may hold: the graph tells where it is used as an index."""

from __future__ import annotations

import onnx_ir as ir

# Ops whose output holds the elements of one input (by index), moved or converted but not changed.
_CARRIERS = {
    "Cast": 0,
    "CastLike": 0,
    "Expand": 0,
    "Flatten": 0,
    "Gather": 0,
    "GatherElements": 0,
    "GatherND": 0,
    "Identity": 0,
    "Reshape": 0,
    "Slice": 0,
    "Split": 0,
    "Squeeze": 0,
    "Tile": 0,
    "Transpose": 0,
    "Unsqueeze": 0,
}
_VARIADIC_CARRIERS = {"Concat", "Max", "Min"}
_INDEXED = {"Gather", "GatherElements", "ScatterElements", "ScatterND", "GatherND"}


def index_limit(model: ir.Model, value: ir.Value) -> int | None:
    """The exclusive upper bound of the elements of an integer input used as indices.

    Follows the value through ops that only move elements, into model-local functions too, to the
    tables it is looked up in, and takes the smallest. None where no table tells.
    """
    limits: list[int] = []
    seen = {value}
    work = [value]
    while work:
        for user, position in work.pop().uses():
            limit = _table_size(user, position)
            if limit is not None:
                limits.append(limit)
            following = [out for out in _carried(model, user, position) if out not in seen]
            seen.update(following)
            work.extend(following)
    return max(1, min(limits)) if limits else None


def _table_size(node: ir.Node, position: int) -> int | None:
    """Size of the axis that input number `position` of the node indexes, where it is known."""
    if node.op_type == "OneHot" and position == 0:
        return _scalar(node.inputs[1])
    if node.op_type not in _INDEXED or position != 1:
        return None
    table = node.inputs[0]
    if table is None or table.shape is None or len(table.shape) == 0:
        return None
    axis = 0 if node.op_type.endswith("ND") else node.attributes.get_int("axis", 0)
    if not -len(table.shape) <= axis < len(table.shape):
        return None
    size = table.shape[axis]
    return size if isinstance(size, int) else None


def _carried(model: ir.Model, node: ir.Node, position: int) -> list[ir.Value]:
    """The values that hold the same elements after the node."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return [function.inputs[position]] if position < len(function.inputs) else []
    if node.op_type in _VARIADIC_CARRIERS or _CARRIERS.get(node.op_type) == position:
        return list(node.outputs)
    return []


def _scalar(value: ir.Value | None) -> int | None:
    constant = ir.convenience.get_const_tensor(value) if value is not None else None
    if constant is None or constant.size != 1:
        return None
    return int(constant.numpy().reshape(-1)[0])
