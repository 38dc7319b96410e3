"""The assembly of shape vectors from existing vectors, constants and shapes of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.ir.editing import insert
from onnxfold.ir.symbolic import Expr, Fact, Number
from onnxfold.ir.symbolic.fact import list_of, of_items
from onnxfold.passes.shapes.edit import Edit

# Maximum number of tensors of a graph and a constness that are recorded for a size.
_MAX_SOURCES = 4
# The first opset in which Shape has the attributes start and end.
_SHAPE_RANGE_OPSET = 15
_LEVELS = tuple(Constness)


@dataclass
class Segment:
    """A segment of a shape vector: an existing vector, a constant, or sizes of a tensor."""

    length: int
    value: ir.Value | None = None
    """The existing vector, or None."""
    numbers: Sequence[int] = ()
    """The elements of the constant."""
    source: ir.Value | None = None
    """The tensor whose ``length`` sizes from ``axis`` on are the segment, or None."""
    axis: int = 0


class ShapeVectors:
    """The values of a graph and its outer graphs from which shape vectors can be assembled.

    A vector that depends only on runtime constants is not assembled from variable values with the
    same sizes. Otherwise, the vector would have to be computed in every run.
    """

    def __init__(
        self, analysis: SymbolicAnalysis, constness: ConstnessAnalysis, edit: Edit
    ) -> None:
        self._analysis = analysis
        self._constness = constness
        self._edit = edit
        self._values: list[dict[tuple[Fact, Constness], ir.Value]] = []
        self._sources: list[dict[tuple[Expr, Constness], list[tuple[ir.Value, int]]]] = []

    def enter(self, graph: ir.Graph) -> None:
        """Start a graph. Its vectors can also be assembled from values of its outer graphs."""
        self._values.append({})
        self._sources.append({})
        for value in graph.inputs:
            self.record(value, self._analysis.of(value))

    def leave(self) -> None:
        """Drop the values of the graph that was entered last."""
        self._values.pop()
        self._sources.pop()

    def record(self, value: ir.Value, fact: Fact) -> None:
        """Record a value, so that later nodes can reuse the value or its sizes."""
        constness = self._constness.of(value)
        if fact.items is not None and fact.is_symbolic:
            self._values[-1].setdefault((fact, constness), value)
        for axis, size in enumerate(fact.shape or ()):
            if type(size) is Expr:
                sources = self._sources[-1].setdefault((size, constness), [])
                if len(sources) < _MAX_SOURCES:
                    sources.append((value, axis))

    def find(self, fact: Fact, like: ir.Value) -> ir.Value | None:
        """Return an available value with these elements that is at least as constant as ``like``.

        The result is None if there is no such value.
        """
        fact = self._analysis.table.shared(fact)
        for values, level in itertools.product(self._values, _LEVELS[self._constness.of(like) :]):
            vector = values.get((fact, level))
            if vector is not None:
                is_removed = (vector.producer() or vector).graph is None
                if not is_removed:
                    return vector
                del values[fact, level]
        return None

    def _version(self, node: ir.Node) -> int:
        scope = self._analysis.scopes.find(node.graph)
        return 1 if scope is None else scope.opsets.get("", 1)

    def segments(self, items: list[Number], reuse: bool, like: ir.Value) -> list[Segment]:
        """Split a vector into segments, starting at the first element.

        The result is empty if an element is not available.
        """
        parts: list[Segment] = []
        k = 0
        while k < len(items):
            part = self._segment(items, k, reuse, like)
            if part is None:
                return []
            parts.append(part)
            k += part.length
        return parts

    def _segment(
        self, items: list[Number], start: int, reuse: bool, like: ir.Value
    ) -> Segment | None:
        """Return the segment to use from ``start`` on; None if the first element is unavailable.

        A constant or an existing vector is used if it is at least as long as the longest segment of
        a shape. If ``reuse`` is True, it is used with any length. A constant is preferred to a
        vector.
        """
        best = self._from_shape(items, start, like)
        min_length = 1 if best is None or reuse else best.length
        ints = itertools.takewhile(lambda n: isinstance(n, int), items[start:])
        numbers = [n for n in ints if isinstance(n, int)]
        if len(numbers) >= min_length:
            return Segment(len(numbers), numbers=numbers)
        for length in range(len(items) - start, min_length - 1, -1):
            vector = self.find(self.list_of_sizes(items[start : start + length]), like)
            if vector is not None:
                return Segment(length, value=vector)
        return best

    def list_of_sizes(self, numbers: Sequence[Number]) -> Fact:
        """Return the fact of a vector of sizes."""
        return of_items(list_of(numbers), ir.DataType.INT64, self._analysis.algebra)

    def _from_shape(self, items: list[Number], start: int, like: ir.Value) -> Segment | None:
        """Return the longest segment of an existing tensor's shape from ``start`` on.

        The segment contains a symbolic size. The result is None if there is no such segment.
        """
        sizes = ((k, size) for k, size in enumerate(items[start:]) if isinstance(size, Expr))
        # the position of the first symbolic size, which the segment must contain
        position, first = next(sizes, (0, None))
        if first is None:
            return None
        levels = itertools.product(self._sources, _LEVELS[self._constness.of(like) :])
        pairs = [pair for sources, level in levels for pair in sources.get((first, level), ())]
        segments = [
            self._segment_of(items[start:], source, axis - position) for source, axis in pairs
        ]
        candidates = [part for part in segments if part is not None and part.length > position]
        return max(candidates, key=lambda part: part.length, default=None)

    def _segment_of(self, items: list[Number], source: ir.Value, axis: int) -> Segment | None:
        if axis < 0 or (source.producer() or source).graph is None:
            return None
        sizes = (self._analysis.of(source).shape or ())[axis:]
        matching = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(items, sizes, strict=False)
        )
        return Segment(len(list(matching)), source=source, axis=axis)

    def cost(self, parts: Sequence[Segment], node: ir.Node) -> int:
        """Return the number of new nodes for these segments before ``node``.

        A Shape for several segments counts once.
        """
        count = int(len(parts) > 1)
        shapes: set[object] = set()
        for part in parts:
            if part.source is None:
                continue
            shape = self._analysis.of(part.source).shape or ()
            is_complete = part.length == len(shape)
            if self._version(node) >= _SHAPE_RANGE_OPSET or is_complete:
                shapes.add((part.source, part.axis, part.length))
            else:
                count += 1
                shapes.add((part.source, 0, len(shape)))
        return count + len(shapes)

    def assemble(
        self, parts: Sequence[Segment], like: ir.Value, node: ir.Node, *, is_last: bool = True
    ) -> ir.Value:
        """Assemble a vector from segments. New nodes are inserted before ``node``.

        Args:
            parts: The segments.
            like: A value whose name is the prefix of new names.
            node: A node that can read all segments.
            is_last: Whether ``node`` can read all recorded values. If False, recorded vectors are
                not searched for sizes of a tensor, and new vectors are not recorded.

        Returns:
            The vector.
        """
        values = [self._value(part, like, node, is_last) for part in parts]
        if len(values) == 1:
            return values[0]
        items = [item for value in values for item in self._elements(value)]
        fact = self.list_of_sizes(items)
        return self._insert("Concat", values, {"axis": 0}, node, fact, like, is_last)

    def _elements(self, vector: ir.Value) -> list[Number]:
        elements = self._analysis.of(vector).objects
        assert elements is not None
        return list(elements)

    def _value(self, part: Segment, like: ir.Value, node: ir.Node, is_last: bool) -> ir.Value:
        if part.value is not None:
            return part.value
        if part.source is None:
            return self._edit.constant(np.array(part.numbers, np.int64), like, node)
        shape = self._analysis.of(part.source).shape or ()
        end = part.axis + part.length
        fact = self.list_of_sizes(shape[part.axis : end])
        vector = self.find(fact, like) if is_last else None
        if vector is not None:
            return vector
        if part.length == len(shape) or self._version(node) >= _SHAPE_RANGE_OPSET:
            attributes = {} if part.length == len(shape) else {"start": part.axis, "end": end}
            return self._insert("Shape", [part.source], attributes, node, fact, like, is_last)
        complete = self._value(Segment(len(shape), source=part.source), like, node, is_last)
        indices = self._edit.constant(np.arange(part.axis, end), like, node)
        return self._insert("Gather", [complete, indices], {}, node, fact, like, is_last)

    def _insert(
        self,
        op_type: str,
        inputs: list[ir.Value],
        attributes: Mapping[str, int],
        node: ir.Node,
        fact: Fact,
        like: ir.Value,
        is_last: bool,
    ) -> ir.Value:
        result = insert(
            node, self._edit.facts.names, op_type, inputs, attributes, name_hint=like.name
        )
        self._analysis.set(result, fact)
        if is_last:
            key = self._analysis.of(result), self._constness.of(result)
            self._values[-1].setdefault(key, result)
        return result
