"""Share shapes that are computed repeatedly, and rebuild those with more nodes than necessary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.ir.editing import insert
from onnxfold.ir.graphs import subgraphs_of
from onnxfold.ir.onnx_ir_private import is_used, nodes_of, uses
from onnxfold.ir.symbolic import Expr, Fact, Number
from onnxfold.ir.symbolic.fact import list_of, of_items
from onnxfold.passes.shapes.edit import Edit

# Maximum number of tensors remembered for a size.
_MOST_SOURCES = 4
_LEVELS = tuple(Constness)


@dataclass
class _Stretch:
    """A segment of a shape vector, provided by one value or one new node."""

    length: int
    value: ir.Value | None = None
    """An existing vector."""
    numbers: Sequence[int] = ()
    """A constant vector."""
    source: ir.Value | None = None
    """A tensor whose sizes from ``axis`` on are the segment."""
    axis: int = 0


class Sharing:
    """Visits nodes from first to last; later ones reuse values computed before.

    A shape vector with users other than shape arithmetic is rebuilt from shapes of tensors and from
    existing vectors, if that takes fewer nodes than it removes.

    What depends on runtime constants only is not made to depend on other inputs that happen to have
    the same sizes: it could no longer run once.
    """

    def __init__(
        self, analysis: SymbolicAnalysis, constness: ConstnessAnalysis, edit: Edit
    ) -> None:
        self._analysis = analysis
        self._constness = constness
        self._edit = edit
        self._values: list[dict[tuple[Fact, Constness], ir.Value]] = []
        self._sources: list[dict[tuple[Expr, Constness], list[tuple[ir.Value, int]]]] = []

    def graph(self, graph: ir.Graph) -> None:
        """Visit a graph and its subgraphs, which can read earlier values."""
        self._values.append({})
        self._sources.append({})
        for value in graph.inputs:
            self._remember(value, self._analysis.of(value))
        for node in nodes_of(graph):
            if node.graph is not graph:
                continue
            if node in self._analysis.scopes.parents:
                for inner in list(subgraphs_of(node)):
                    self.graph(inner)
            for value in node.outputs:
                fact = self._analysis.of(value)
                if not is_used(value):
                    continue
                if fact.items is not None and fact.is_symbolic and not self._share(value, fact):
                    self._rebuild(value, fact, node)
                if is_used(value):
                    self._remember(value, fact)
        self._values.pop()
        self._sources.pop()

    def _remember(self, value: ir.Value, fact: Fact) -> None:
        """Record the value so that later nodes can reuse its sizes."""
        constness = self._constness.of(value)
        if fact.items is not None and fact.is_symbolic:
            self._values[-1].setdefault((fact, constness), value)
        for axis, size in enumerate(fact.shape or ()):
            if type(size) is Expr:
                known = self._sources[-1].setdefault((size, constness), [])
                if len(known) < _MOST_SOURCES:
                    known.append((value, axis))

    def _find(self, fact: Fact, like: ir.Value) -> ir.Value | None:
        """Return an available value with these elements, at least as constant as ``like``."""
        fact = self._analysis.table.shared(fact)
        for values, level in itertools.product(self._values, _LEVELS[self._constness.of(like) :]):
            found = values.get((fact, level))
            if found is not None:
                if (found.producer() or found).graph is not None:  # it has not been removed
                    return found
                del values[fact, level]
        return None

    def _share(self, value: ir.Value, fact: Fact) -> bool:
        first = self._find(fact, value)
        if first is None or first is value or value.is_graph_output():
            return False
        return self._edit.replace(value, first)

    def _rebuild(self, value: ir.Value, fact: Fact, node: ir.Node) -> None:
        items = fact.items
        if items is None or fact.dtype != ir.DataType.INT64:
            return
        if value.is_graph_output() or items.ndim != 1:
            return
        made = [output for use in uses(value) for output in use.node.outputs]
        if all(self._analysis.of(output).is_symbolic for output in made):
            return
        if len(_exclusive(node, ())) < 2:  # rebuilding takes one node at least
            return
        best: list[_Stretch] = []
        least = 0
        for reuse in (True, False):
            parts = self._parts(list(items), reuse, value)
            needed = [v for part in parts for v in (part.value, part.source) if v is not None]
            change = self._cost(parts, node) - len(_exclusive(node, needed))
            if parts and change < least:
                best, least = parts, change
        values = [self._value(part, value, node) for part in best]
        if len(values) > 1:
            values = [self._made("Concat", values, {"axis": 0}, node, fact, value)]
        if values:
            self._edit.replace(value, values[0])

    def _version(self, node: ir.Node) -> int:
        scope = self._analysis.scopes.find(node.graph)
        return 1 if scope is None else scope.opsets.get("", 1)

    def _parts(self, items: list[Number], reuse: bool, like: ir.Value) -> list[_Stretch]:
        """Split the vector into a few segments, from the front; empty if one has no value."""
        parts: list[_Stretch] = []
        k = 0
        while k < len(items):
            part = self._part(items, k, reuse, like)
            if part is None:
                return []
            parts.append(part)
            k += part.length
        return parts

    def _part(
        self, items: list[Number], start: int, reuse: bool, like: ir.Value
    ) -> _Stretch | None:
        """Return the longest next segment; in case of a tie, first a constant, then a vector.

        With ``reuse`` constants and existing vectors are preferred to a longer shape.
        """
        best = self._from_shape(items, start, like)
        least = 1 if best is None or reuse else best.length
        ints = itertools.takewhile(lambda n: isinstance(n, int), items[start:])
        numbers = [n for n in ints if isinstance(n, int)]
        if len(numbers) >= least:
            return _Stretch(len(numbers), numbers=numbers)
        for length in range(len(items) - start, least - 1, -1):
            found = self._find(self._list(items[start : start + length]), like)
            if found is not None:
                return _Stretch(length, value=found)
        return best

    def _list(self, numbers: Sequence[Number]) -> Fact:
        return of_items(list_of(numbers), ir.DataType.INT64, self._analysis.algebra)

    def _from_shape(self, items: list[Number], start: int, like: ir.Value) -> _Stretch | None:
        """Return the longest segment of an existing tensor's shape from ``start`` on."""
        sizes = ((k, size) for k, size in enumerate(items[start:]) if isinstance(size, Expr))
        place, first = next(sizes, (0, None))  # the segment must include a symbolic size
        if first is None:
            return None
        levels = itertools.product(self._sources, _LEVELS[self._constness.of(like) :])
        known = [pair for sources, level in levels for pair in sources.get((first, level), ())]
        found = [self._stretch(items[start:], source, axis - place) for source, axis in known]
        long = [part for part in found if part is not None and part.length > place]
        return max(long, key=lambda part: part.length, default=None)

    def _stretch(self, items: list[Number], source: ir.Value, axis: int) -> _Stretch | None:
        if axis < 0 or (source.producer() or source).graph is None:
            return None
        sizes = (self._analysis.of(source).shape or ())[axis:]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(items, sizes, strict=False))
        return _Stretch(len(list(same)), source=source, axis=axis)

    def _cost(self, parts: Sequence[_Stretch], node: ir.Node) -> int:
        """Return the number of new nodes; a Shape for several segments counts once."""
        count = int(len(parts) > 1)
        shapes: set[object] = set()
        for part in parts:
            if part.source is None:
                continue
            shape = self._analysis.of(part.source).shape or ()
            whole = part.length == len(shape)
            if self._version(node) >= 15 or whole:
                shapes.add((part.source, part.axis, part.length))
            else:
                count += 1
                shapes.add((part.source, 0, len(shape)))
        return count + len(shapes)

    def _value(self, part: _Stretch, like: ir.Value, node: ir.Node) -> ir.Value:
        if part.value is not None:
            return part.value
        if part.source is None:
            return self._edit.constant(np.array(part.numbers, np.int64), like, node)
        shape, end = self._analysis.of(part.source).shape or (), part.axis + part.length
        fact = self._list(shape[part.axis : end])
        found = self._find(fact, like)
        if found is not None:
            return found
        if part.length == len(shape) or self._version(node) >= 15:
            attributes = {} if part.length == len(shape) else {"start": part.axis, "end": end}
            return self._made("Shape", [part.source], attributes, node, fact, like)
        whole = self._value(_Stretch(len(shape), source=part.source), like, node)
        places = self._edit.constant(np.arange(part.axis, end), like, node)
        return self._made("Gather", [whole, places], {}, node, fact, like)

    def _made(
        self,
        op_type: str,
        inputs: list[ir.Value],
        attributes: Mapping[str, int],
        node: ir.Node,
        fact: Fact,
        like: ir.Value,
    ) -> ir.Value:
        made = insert(node, self._edit.facts.names, op_type, inputs, attributes, stem=like.name)
        self._analysis.set(made, fact)
        self._values[-1].setdefault((self._analysis.of(made), self._constness.of(made)), made)
        return made


def _exclusive(node: ir.Node, needed: Sequence[ir.Value]) -> set[ir.Node]:
    """Return the nodes that become unused with this one, except the producers of ``needed``."""
    going = {node}
    staying = {value.producer() for value in needed}
    pending = [node]
    while pending:
        for value in pending.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is None or producer in going or producer in staying:
                continue
            if producer.op_type != "Constant" and all(
                not v.is_graph_output() and all(use.node in going for use in uses(v))
                for v in producer.outputs
            ):
                going.add(producer)
                pending.append(producer)
    return going
