"""What a model says of the elements of its inputs: ranges of integers, and words of strings."""

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

_LONGEST = 4096
"""Maximum number of columns of an input that are distinguished."""


@dataclass
class IntegerUse:
    """What the graph tells of the elements of an integer input: the least value that is no negative
    index; exclusive upper bounds, each a size of a table and what the input is less than that size
    by; and values on either side of what they are compared with, in order of the graph.
    """

    least: int = 0
    bounds: list[tuple[int | ir.SymbolicDim, int]] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)

    def limit(self, sizes: Mapping[str, int]) -> int | None:
        """Return the exclusive upper bound at these sizes of dimensions, None if it is unknown."""
        limits = [size_of(size, sizes) - offset for size, offset in self.bounds]
        return max(self.least + 1, min(limits)) if limits else None


def integer_use(types: SymbolicAnalysis, value: ir.Value) -> IntegerUse:
    """Return what is done with the elements of an integer input.

    Follows the input through ops that only move elements or add a constant, into model-local
    functions too, to the tables that are indexed by it and the constants that it is compared with.
    """
    found = IntegerUse()
    seen = {value}
    work = [(value, 0)]  # with what was added on the way
    while work:
        current, offset = work.pop()
        for user, position in current.uses():
            definition = definition_of(user)
            size = _index_bound(types, user, position)
            if size is not None:
                found.bounds.append((size, offset))
                found.least = max(found.least, -offset)
            for number in definition.boundary_values(user, position):
                if number - offset not in found.compared:
                    found.compared.append(number - offset)
            added = definition.added_constant(user, position)
            following = carried(types.model, user, position) if added is None else user.outputs
            for output in following:
                if output not in seen:
                    seen.add(output)
                    work.append((output, offset + (added or 0)))
    return found


def _index_bound(
    types: SymbolicAnalysis, node: ir.Node, position: int
) -> int | ir.SymbolicDim | None:
    """Return the exclusive upper bound of indices in an input of a node; None if unknown."""
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
    """Return the values that hold the same elements after the node."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return [function.inputs[position]] if position < len(function.inputs) else []
    return list(node.outputs) if definition_of(node).carries(position) else []


def categories(model: ir.Model, value: ir.Value) -> dict[int, list[str]]:
    """Return the words that ops look up in the columns of a string input, by column.

    Follows the input through ops that move its elements or select columns, that is, positions on
    the last axis. Where several ops read a column, words that all of them know come first. The only
    column is 0 if their number is unknown.
    """
    width = value.shape[-1] if value.shape else 1
    count = min(width, _LONGEST) if isinstance(width, int) else 1
    found: dict[int, list[list[str]]] = {}
    every: Mapping[int, int] = {column: column for column in range(count)}
    work = [(value, every)]  # of each position, the column
    seen = {value}
    while work:
        current, columns = work.pop()
        for user, position in current.uses():
            definition = definition_of(user)
            words = definition.words(user, position)
            for column in set(columns.values()) if words else ():
                found.setdefault(column, []).append(words)
            is_text = Trait.TEXT in definition.traits
            outputs = list(user.outputs) if is_text else carried(model, user, position)
            after = definition.columns_after(user, position, columns)
            for output in outputs if after else ():
                if output not in seen and output.dtype in (None, ir.DataType.STRING):
                    seen.add(output)
                    work.append((output, after))
    common = {k: [w for w in of[0] if all(w in words for words in of)] for k, of in found.items()}
    return {k: common[k] or list(dict.fromkeys(itertools.chain(*found[k]))) for k in found}
