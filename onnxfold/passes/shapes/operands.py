"""Operands that say a shape as constants, and ops that do nothing: one function an op.

A rewrite must hold for every size that a legal input can have, 0 and 1 included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic import Algebra, Fact, Number, SymbolicAnalysis
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.analysis.symbolic.movement import TO_THE_END, slice_ranges
from onnxfold.analysis.symbolic.shape_functions import Application, Undecided
from onnxfold.graphs import has_references
from onnxfold.passes.shapes.edit import Edit

_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
_LONGEST_CHAIN = 8
_TO_THE_END = np.iinfo(np.int64).max

Simplification = Callable[["Operands", ir.Node], bool]


class Operands:
    """Rewrites single nodes.

    Args:
        analysis: What is known of the model.
        edit: Changes it.
    """

    def __init__(self, analysis: SymbolicAnalysis, edit: Edit) -> None:
        self.analysis = analysis
        self.edit = edit
        self.algebra: Algebra = analysis.algebra

    def simplify(self, node: ir.Node) -> bool:
        """Rewrite a node if anything can be done about it."""
        function = _TABLE.get(node.op_type)
        if function is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
            return False
        if node.op_identifier() in self.analysis.model.functions:
            return False
        if has_references(node):
            return False
        return function(self, node)

    def shape(self, node: ir.Node, position: int) -> Shape | None:
        """Return the shape of an input."""
        value = node.inputs[position] if position < len(node.inputs) else None
        return None if value is None else self.analysis.of(value).shape

    def fact(self, node: ir.Node, position: int) -> Fact | None:
        """Return what is known of an input."""
        value = node.inputs[position] if position < len(node.inputs) else None
        return None if value is None else self.analysis.of(value)

    def set_constant(self, node: ir.Node, position: int, numbers: list[int]) -> bool:
        """Make an input a constant list."""
        operand = node.inputs[position]
        assert operand is not None
        dtype = self.analysis.of(operand).dtype
        if dtype not in (ir.DataType.INT64, ir.DataType.INT32):
            return False
        array = np.array(numbers, dtype.numpy())
        return self.edit.set_input(node, position, self.edit.constant(array, operand, node))

    def application(self, node: ir.Node) -> Application:
        """Return the node as the analysis sees it."""
        scope = self.analysis.scopes.find(node.graph)
        return Application(
            node.op_type,
            [None if v is None else self.analysis.of(v) for v in node.inputs],
            {name: attribute.value for name, attribute in node.attributes.items()},
            1 if scope is None else scope.opsets.get("", 1),
            len(node.outputs),
            self.algebra,
        )


def _undo(operands: Operands, node: ir.Node) -> bool:
    """Return whether a value reshaped back to a shape that it had."""
    shape = operands.analysis.of(node.outputs[0]).shape
    if shape is None:
        return False
    value: ir.Value | None = node.inputs[0]
    for _ in range(_LONGEST_CHAIN):
        if value is None:
            return False
        if operands.analysis.of(value).shape == shape:
            return operands.edit.replace(node.outputs[0], value)
        producer = value.producer()
        if producer is None or producer.op_type not in _RESHAPES or producer.domain != "":
            return False
        value = producer.inputs[0]
    return False


def _reshape(operands: Operands, node: ir.Node) -> bool:
    if _undo(operands, node):
        return True
    target = operands.fact(node, 1)
    sizes = operands.shape(node, 0)
    result = operands.analysis.of(node.outputs[0]).shape
    if target is None or not target.is_symbolic or sizes is None or result is None:
        return False
    items = tuple(target.items if target.items is not None else ())
    allow_zero = node.attributes.get("allowzero")
    template = reshape_template(
        operands.algebra,
        sizes,
        items,
        result,
        allow_zero=allow_zero is not None and bool(allow_zero.value),
    )
    if template is None or not operands.set_constant(node, 1, template):
        return False
    if "allowzero" in node.attributes:  # no size in the template is 0
        del node.attributes["allowzero"]
    return True


def reshape_template(
    algebra: Algebra,
    sizes: Shape,
    target: tuple[Number, ...],
    result: Shape,
    *,
    allow_zero: bool,
) -> list[int] | None:
    """Return a constant operand with which Reshape makes the same shape, or None.

    A 0 copies the size at its place. A -1 is for one size more, but only if no other can be 0: with
    no elements at all, a -1 has no meaning. Where the operand has a -1 already, it may stay (not
    with ``allowzero``, which the template is for the node without).
    """
    template: list[int] = []
    open_places: list[int] = []
    for k, size in enumerate(result):
        if isinstance(size, int):
            if size == 0:
                return None
            template.append(size)
        elif k < len(sizes) and sizes[k] == size:
            template.append(0)
        else:
            open_places.append(k)
            template.append(-1)
    if len(open_places) > 1:
        return None
    for place in open_places:
        others = [d for k, d in enumerate(result) if k != place]
        stays = target[place] == -1 and not allow_zero
        if not stays and not all(algebra.is_positive(d) for d in others):
            return None
    return template


def _expand(operands: Operands, node: ir.Node) -> bool:
    """Return whether the operand need not say a size that the input has."""
    value, target = node.inputs[0], operands.fact(node, 1)
    sizes = operands.shape(node, 0)
    objects = None if target is None else target.objects
    if value is None or target is None or sizes is None or objects is None or objects.ndim != 1:
        return False
    wanted = list(objects)
    offset = len(wanted) - len(sizes)
    for k in range(max(offset, 0), len(wanted)):
        if wanted[k] == sizes[k - offset]:
            wanted[k] = 1
    if offset <= 0 and all(d == 1 for d in wanted):
        return operands.edit.replace(node.outputs[0], value)
    if not target.is_symbolic or any(not isinstance(d, int) for d in wanted):
        return False
    return operands.set_constant(node, 1, wanted)


def _slice(operands: Operands, node: ir.Node) -> bool:
    """Whole axes are not sliced, and the end of an axis is the largest integer."""
    value, sizes = node.inputs[0], operands.shape(node, 0)
    if value is None or sizes is None:
        return False
    try:
        ranges = slice_ranges(operands.application(node), len(sizes))
    except Undecided:
        return False
    algebra = operands.algebra
    whole = [
        start == 0 and step == 1 and _reaches(algebra, end, sizes[axis])
        for axis, (start, end, step) in ranges.items()
    ]
    if all(whole):
        return operands.edit.replace(node.outputs[0], value)
    ends = operands.fact(node, 2)
    if ends is None or not ends.is_symbolic or "axes" in node.attributes:
        return False
    numbers = [
        _TO_THE_END if step > 0 and _reaches(algebra, end, sizes[axis]) else end
        for axis, (_, end, step) in ranges.items()
    ]
    if any(not isinstance(n, int) for n in numbers):
        return False
    if ends.dtype == ir.DataType.INT32:
        numbers = [n if n != _TO_THE_END else TO_THE_END for n in numbers]
    return operands.set_constant(node, 2, numbers)  # type: ignore[arg-type]


def _reaches(algebra: Algebra, end: Number, size: Number) -> bool:
    """Return True if an end is certainly not before the last element."""
    if isinstance(end, int) and end >= TO_THE_END:
        return True
    if isinstance(end, int) and isinstance(size, int):
        return end >= size
    return algebra.low(algebra.sub(end, size)) >= 0


_TABLE: dict[str, Simplification] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
}
