"""Which integers an input may hold: the graph tells where they are indices, or are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxfold.compare.dims import size_of

# Ops whose output holds the elements of these inputs, moved or converted but not changed.
_CARRIERS = {
    **dict.fromkeys(("Cast", "CastLike", "Clip", "Expand", "Flatten", "Gather"), (0,)),
    **dict.fromkeys(("GatherElements", "GatherND", "Identity", "Reshape", "Slice"), (0,)),
    **dict.fromkeys(("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"), (0,)),
    "Where": (1, 2),
}
_VARIADIC_CARRIERS = {"Concat", "Max", "Min"}
_INDEXED = {"Gather", "GatherElements", "ScatterElements", "ScatterND", "GatherND"}
_ORDERED = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LARGEST = 1 << 31  # of what an input is set to because it is compared with it


@dataclass
class IntegerUse:
    """What the graph tells of the elements of an integer input.

    Attributes:
        least: The least value.
        bounds: Exclusive upper bounds: the sizes of tables.
        compared: Values on either side of what they are compared with, in order of the graph.
    """

    least: int = 0
    bounds: list[int | ir.SymbolicDim] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)

    def limit(self, sizes: Mapping[str, int]) -> int | None:
        """The exclusive upper bound at these sizes of dimensions, None where no table tells."""
        limits = [size_of(size, sizes) for size in self.bounds]
        return max(1, min(limits)) if limits else None


def integer_use(value: ir.Value) -> IntegerUse:
    """What is done with the elements of an integer input.

    Follows the input through ops that only move elements, to the tables that are indexed by it and
    the constants that it is compared with.
    """
    found = IntegerUse()
    reached = [value]
    for current in reached:
        for user, position in current.uses():
            size = _table_size(user, position)
            if size is not None:
                found.bounds.append(size)
            found.compared += _compared_with(user, position)
            carries = position in _CARRIERS.get(user.op_type, ())
            if carries or user.op_type in _VARIADIC_CARRIERS:
                reached += (output for output in user.outputs if output not in reached)
    found.compared = list(dict.fromkeys(found.compared))
    return found


def _table_size(node: ir.Node, position: int) -> int | ir.SymbolicDim | None:
    """Size of the axis that input number `position` of the node indexes, where it is known."""
    if node.op_type not in _INDEXED or position != 1:
        return None
    table = node.inputs[0]
    constant = None if table is None else ir.convenience.get_const_tensor(table)
    shape = table.shape if table is not None else None
    if constant is not None:
        shape = ir.Shape(constant.shape.numpy())
    if not shape:
        return None
    axis = 0 if node.op_type.endswith("ND") else node.attributes.get_int("axis", 0)
    if not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return None if isinstance(size, ir.SymbolicDim) and size.value is None else size


def _compared_with(node: ir.Node, position: int) -> Iterator[int]:
    """Values that decide a comparison with a constant: equal to it, or on both sides of it."""
    if node.op_type != "Equal" and node.op_type not in _ORDERED:
        return
    constant = _constant(node.inputs[1 - position])
    if constant is None or constant.size != 1 or constant.dtype.kind not in "iuf":
        return
    number = constant.reshape(-1)[0]
    if abs(number) < _LARGEST:
        yield from (int(number),) if node.op_type == "Equal" else (int(number) + 1, int(number) - 1)


def _constant(value: ir.Value | None) -> NDArray[Any] | None:
    constant = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if constant is None else constant.numpy()
