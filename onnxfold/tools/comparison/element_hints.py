"""Infer valid elements of inputs from their uses: ranges of integers, and words of strings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.ops import Trait, definition_of
from onnxfold.ops.application import constant_number
from onnxfold.ops.definition import ElementBound
from onnxfold.tools.comparison.dims import size_of

_MAX_COLUMNS = 4096  # columns of a string input that have their own words


@dataclass
class IntegerUse:
    """Properties of the elements of an integer input that follow from the graph.

    Attributes:
        minimum: The smallest element from which no negative index is computed.
        bounds: Pairs of an exclusive upper bound of indices, such as the size of an axis, and the
            constant that is added to the elements to compute these indices.
        compared: Elements for both outcomes of each comparison with a constant.
    """

    minimum: int = 0
    bounds: list[tuple[int | ir.SymbolicDim, int]] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)

    def limit(self, sizes: Mapping[str, int]) -> int | None:
        """Return the exclusive upper bound of the elements, or None if the input has no bound.

        Args:
            sizes: Sizes of dimensions, by name.
        """
        limits = [size_of(size, sizes) - offset for size, offset in self.bounds]
        return max(self.minimum + 1, min(limits)) if limits else None


def integer_use(types: SymbolicAnalysis, value: ir.Value) -> IntegerUse:
    """Return the properties of the elements of an integer input.

    The search follows the input through model-local functions and ops that move elements or add a
    constant. The search finds the tables that the elements index, and the constants with which
    the elements are compared.
    """
    use = IntegerUse()
    seen = {value}
    pending = [(value, 0)]  # a value, and the constant that was added to the input
    while pending:
        current, offset = pending.pop()
        for user, position in current.uses():
            definition = definition_of(user)
            size = _index_bound(types, user, position)
            if size is not None:
                use.bounds.append((size, offset))
                use.minimum = max(use.minimum, -offset)
            for number in definition.boundary_values(user, position):
                if number - offset not in use.compared:
                    use.compared.append(number - offset)
            added = definition.added_constant(user, position)
            outputs = carried(types.model, user, position) if added is None else user.outputs
            for output in outputs:
                if output not in seen:
                    seen.add(output)
                    pending.append((output, offset + (added or 0)))
    return use


def _index_bound(
    types: SymbolicAnalysis, node: ir.Node, position: int
) -> int | ir.SymbolicDim | None:
    """Return the exclusive upper bound of an operand whose elements are indices.

    The result is None if the elements are not indices, or if the bound is unknown.
    """
    bound = definition_of(node).index_bound(position, node)
    if bound is None:
        return None
    operand = node.inputs[bound.operand]
    if isinstance(bound, ElementBound):
        number = constant_number(operand)
        return None if number is None else int(number)
    shape = None if operand is None else types.of(operand).static_shape or operand.shape
    if not shape or not -len(shape) <= bound.axis < len(shape):
        return None
    size = shape[bound.axis]
    return None if isinstance(size, ir.SymbolicDim) and size.value is None else size


def carried(model: ir.Model, node: ir.Node, position: int) -> list[ir.Value]:
    """Return the values to which a node moves the elements of an operand.

    These are results of the node, or the input of the model-local function that the node calls.
    """
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return [function.inputs[position]] if position < len(function.inputs) else []
    return list(node.outputs) if definition_of(node).carries(position) else []


def categories(model: ir.Model, value: ir.Value) -> dict[int, list[str]]:
    """Return the words with which ops compare the elements of a string input, by column.

    A column is an index on the last axis. A column without words is not in the result. The search
    follows the input through ops that move elements or select columns. If several ops compare a
    column, the result has only the words that these ops have in common. If there are none, the
    result has all words of each op. If the number of columns is unknown, the only column is 0. At
    most the first 4096 columns are searched.
    """
    width = value.shape[-1] if value.shape else 1
    count = min(width, _MAX_COLUMNS) if isinstance(width, int) else 1
    words_by_column: dict[int, list[list[str]]] = {}
    all_columns: Mapping[int, int] = {column: column for column in range(count)}
    pending = [(value, all_columns)]  # a value, and the input's column by the value's column
    seen = {value}
    while pending:
        current, columns = pending.pop()
        for user, position in current.uses():
            definition = definition_of(user)
            words = definition.words(user, position)
            for column in set(columns.values()) if words else ():
                words_by_column.setdefault(column, []).append(words)
            is_text = Trait.TEXT in definition.traits
            outputs = list(user.outputs) if is_text else carried(model, user, position)
            after = definition.columns_after(user, position, columns)
            for output in outputs if after else ():
                if output not in seen and output.dtype in (None, ir.DataType.STRING):
                    seen.add(output)
                    pending.append((output, after))
    return {column: _common_words(lists) for column, lists in words_by_column.items()}


def _common_words(lists: list[list[str]]) -> list[str]:
    """Return the words that all lists contain, or all words if no word is in all lists."""
    common = [word for word in lists[0] if all(word in words for words in lists)]
    return common or list(dict.fromkeys(itertools.chain(*lists)))
