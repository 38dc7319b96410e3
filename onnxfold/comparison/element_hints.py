"""What a model says of the elements of its inputs: ranges of integers, and words of strings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxfold import storage
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.comparison.dims import size_of
from onnxfold.ops import Trait, ops

# Ops whose results hold elements of their first operand, or of all, moved or converted.
_CARRIERS = {*ops(Trait.MOVES), "Cast", "CastLike", "Clip", "GatherND", "Identity"}
_VARIADIC_CARRIERS = {"Concat", "Max", "Min", "Where"}
_INDEXED = {"Gather", "GatherElements", "ScatterElements", "ScatterND", "GatherND"}
_ORDERED = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LARGEST = 1 << 31  # of what an input is set to because it is compared with it
_WORDS = {
    "CategoryMapper": ("cats_strings",),
    "LabelEncoder": ("keys_strings", "keys_tensor"),
    "OneHotEncoder": ("cats_strings",),
    "TfIdfVectorizer": ("pool_strings",),
}
_NUMERALS = ("0", "1", "7")  # for a Cast to a number
_TEXT_OPS = {"StringNormalizer", "StringSplit", "Tokenizer"}
_LONGEST = 4096  # columns of an input that are told apart


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
            size = _table_size(types, user, position)
            if size is not None:
                found.bounds.append((size, offset))
                found.least = max(found.least, -offset)
            for number in _compared_with(user, position):
                if number - offset not in found.compared:
                    found.compared.append(number - offset)
            added = _added(user, position)
            following = carried(types.model, user, position) if added is None else user.outputs
            for output in following:
                if output not in seen:
                    seen.add(output)
                    work.append((output, offset + (added or 0)))
    return found


def _table_size(
    types: SymbolicAnalysis, node: ir.Node, position: int
) -> int | ir.SymbolicDim | None:
    """Size of the axis that input number `position` of the node indexes, where it is known."""
    if node.op_type == "OneHot" and position == 0:
        depth = constant_array(node.inputs[1])
        return None if depth is None or depth.size != 1 else int(depth.reshape(-1)[0])
    if node.op_type not in _INDEXED or position != 1:
        return None
    table = node.inputs[0]
    shape = None if table is None else types.of(table).static_shape or table.shape
    axis = 0 if node.op_type.endswith("ND") else node.attributes.get_int("axis", 0)
    if not shape or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return None if isinstance(size, ir.SymbolicDim) and size.value is None else size


def _compared_with(node: ir.Node, position: int) -> Iterator[int]:
    """Yield what decides a comparison with a constant (equal, on both sides), or runs a Loop."""
    if node.op_type == "Loop" and position == 0:
        yield 2
    if node.op_type != "Equal" and node.op_type not in _ORDERED:
        return
    constant = constant_array(node.inputs[1 - position])
    if constant is None or constant.size != 1 or constant.dtype.kind not in "iuf":
        return
    number = constant.reshape(-1)[0]
    if abs(number) < _LARGEST:
        yield from (int(number),) if node.op_type == "Equal" else (int(number) + 1, int(number) - 1)


def _added(node: ir.Node, position: int) -> int | None:
    """Return the largest constant that the node adds to the input; None if it is no such node."""
    if node.op_type not in ("Add", "Sub") or (node.op_type == "Sub" and position != 0):
        return None
    constant = constant_array(node.inputs[1 - position])
    if constant is None or constant.size == 0 or constant.dtype.kind not in "iu":
        return None
    return -int(constant.min()) if node.op_type == "Sub" else int(constant.max())


def carried(model: ir.Model, node: ir.Node, position: int) -> list[ir.Value]:
    """Return the values that hold the same elements after the node."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return [function.inputs[position]] if position < len(function.inputs) else []
    is_carrier = node.op_type in _CARRIERS and position == 0
    return list(node.outputs) if is_carrier or node.op_type in _VARIADIC_CARRIERS else []


def constant_array(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the elements of a constant, None for another value."""
    constant = storage.stored_or_default(value) if value is not None else None
    return None if constant is None else constant.numpy()


def categories(model: ir.Model, value: ir.Value) -> dict[int, list[str]]:
    """Return the words that ops look up in the columns of a string input, by column.

    Follows the input through ops that move its elements or select columns, that is, positions on
    the last axis. Where several ops read a column, words that all of them know come first. The only
    column is 0 if their number is unknown.
    """
    width = value.shape[-1] if value.shape else 1
    count = min(width, _LONGEST) if isinstance(width, int) else 1
    found: dict[int, list[list[str]]] = {}
    work = [(value, {column: column for column in range(count)})]  # of each position, the column
    seen = {value}
    while work:
        current, columns = work.pop()
        for user, position in current.uses():
            words = _looked_up(user, position)
            for column in set(columns.values()) if words else ():
                found.setdefault(column, []).append(words)
            is_text = user.op_type in _TEXT_OPS or user.op_type == "ArrayFeatureExtractor"
            outputs = list(user.outputs) if is_text else carried(model, user, position)
            after = _columns_after(user, position, columns)
            for output in outputs if after else ():
                if output not in seen and output.dtype in (None, ir.DataType.STRING):
                    seen.add(output)
                    work.append((output, after))
    common = {k: [w for w in of[0] if all(w in words for words in of)] for k, of in found.items()}
    return {k: common[k] or list(dict.fromkeys(itertools.chain(*found[k]))) for k in found}


def _looked_up(node: ir.Node, position: int) -> list[str]:
    """Return the words that a node compares the elements of an operand with."""
    if node.op_type == "Equal":
        constant = constant_array(node.inputs[1 - position])
        return [] if constant is None else _decoded(constant.reshape(-1).tolist())
    if node.op_type == "Cast":
        is_text = node.attributes.get_int("to", 0) == ir.DataType.STRING
        return [] if is_text else list(_NUMERALS)
    for name in _WORDS.get(node.op_type, ()):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.STRINGS:
            return list(attribute.as_strings())
        if attribute is not None and attribute.as_tensor().dtype == ir.DataType.STRING:
            return _decoded(attribute.as_tensor().numpy().reshape(-1).tolist())
    return []


def _decoded(words: Iterable[object]) -> list[str]:
    return [word.decode() if isinstance(word, bytes) else str(word) for word in words]


def _columns_after(node: ir.Node, position: int, columns: dict[int, int]) -> dict[int, int]:
    """Return, of each position on the last axis after a node, the column that it is from."""
    rank = len(node.inputs[position].shape or ()) or None  # type: ignore[union-attr]
    axis = node.attributes.get_int("axis", 0)
    is_last = rank is not None and axis in (-1, rank - 1) and rank > 1
    if node.op_type == "ArrayFeatureExtractor" or (node.op_type == "Gather" and is_last):
        chosen = constant_array(node.inputs[1])
        if chosen is not None and position == 0:
            selected = enumerate(int(index) for index in chosen.reshape(-1))
            return {k: columns[index] for k, index in selected if index in columns}
    if node.op_type == "Concat" and is_last:
        before = [
            v.shape[-1] if v is not None and v.shape else None for v in node.inputs[:position]
        ]
        if all(isinstance(width, int) for width in before):
            return {k + sum(before): column for k, column in columns.items()}  # type: ignore[arg-type]
    return columns
