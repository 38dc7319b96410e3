"""Shapes that are computed more than once, or with more nodes than it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic import Expr, Fact, Number, SymbolicAnalysis
from onnxfold.analysis.symbolic.fact import list_of, of_items
from onnxfold.editing import is_used
from onnxfold.graphs import subgraphs_of
from onnxfold.onnx_ir_private import nodes_of, uses
from onnxfold.passes.shapes.edit import Edit

# Tensors remembered for each size that they have.
_MOST_SOURCES = 4


@dataclass
class _Stretch:
    """A stretch of a list of sizes that one value holds, or one new node makes."""

    length: int
    value: ir.Value | None = None
    """A list that is there already."""
    numbers: Sequence[int] = ()
    """A constant."""
    source: ir.Value | None = None
    """A tensor whose sizes from ``axis`` on these are."""
    axis: int = 0


class Sharing:
    """Visits nodes from the first to the last; later ones use what earlier ones computed.

    A list of sizes that something other than shape arithmetic reads is put together anew, from
    the shapes of tensors and from lists that are there, if that takes fewer nodes than go with it.

    Args:
        analysis: What is known of the model.
        edit: Changes it.
    """

    def __init__(self, analysis: SymbolicAnalysis, edit: Edit) -> None:
        self._analysis = analysis
        self._edit = edit
        self._values: list[dict[Fact, ir.Value]] = []
        self._sources: list[dict[Expr, list[tuple[ir.Value, int]]]] = []

    def graph(self, graph: ir.Graph) -> None:
        """Visit a graph and its subgraphs, which see what comes before their node."""
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
                if fact.is_symbolic and is_used(value) and not self._share(value, fact):
                    self._rebuild(value, fact, node)
                if is_used(value):
                    self._remember(value, fact)
        self._values.pop()
        self._sources.pop()

    def _remember(self, value: ir.Value, fact: Fact) -> None:
        """The sizes of a tensor and the elements of a list are there for what comes."""
        if fact.is_symbolic:
            self._values[-1].setdefault(fact, value)
        for axis, size in enumerate(fact.shape or ()):
            if isinstance(size, Expr):
                known = self._sources[-1].setdefault(size, [])
                if len(known) < _MOST_SOURCES:
                    known.append((value, axis))

    def _find(self, fact: Fact) -> ir.Value | None:
        """Return a value with these elements that can be read here."""
        fact = self._analysis.table.shared(fact)
        for level in self._values:
            found = level.get(fact)
            if found is not None:
                if _is_there(found):
                    return found
                del level[fact]
        return None

    def _share(self, value: ir.Value, fact: Fact) -> bool:
        first = self._find(fact)
        if first is None or first is value or value.is_graph_output():
            return False
        return self._edit.replace(value, first)

    # ---------------------------------------------------------------- putting together anew

    def _rebuild(self, value: ir.Value, fact: Fact, node: ir.Node) -> None:
        items = fact.items
        if items is None or fact.dtype != ir.DataType.INT64:
            return
        if value.is_graph_output() or items.ndim != 1 or not self._is_demanded(value):
            return
        if len(_exclusive(node, ())) < 2:  # it takes one node at least
            return
        best: list[_Stretch] | None = None
        least = 0
        for reuse in (True, False):
            parts = self._parts(list(items), reuse=reuse)
            if parts is None:
                continue
            needed = [v for p in parts for v in (p.value, p.source) if v is not None]
            change = self._cost(parts, node) - len(_exclusive(node, needed))
            if change < least:
                best, least = parts, change
        if best is not None:
            self._edit.replace(value, self._build(best, value, node))

    def _version(self, node: ir.Node) -> int:
        scope = self._analysis.scopes.find(node.graph)
        return 1 if scope is None else scope.opsets.get("", 1)

    def _is_demanded(self, value: ir.Value) -> bool:
        """Return True if something reads the list that does not compute another one from it."""
        return any(
            not self._analysis.of(output).is_symbolic
            for use in value.uses()
            for output in use.node.outputs
        )

    def _parts(self, items: list[Number], *, reuse: bool) -> list[_Stretch] | None:
        """Return the list as a few parts, taken from the front; None if one of them is
        not there.
        """
        parts: list[_Stretch] = []
        k = 0
        while k < len(items):
            part = self._part(items, k, reuse=reuse)
            if part is None:
                return None
            parts.append(part)
            k += part.length
        return parts

    def _part(self, items: list[Number], start: int, *, reuse: bool) -> _Stretch | None:
        """Return the next part: what is there comes first, or else what is longest."""
        best = self._from_shape(items, start)
        end = start
        while end < len(items) and isinstance(items[end], int):
            end += 1
        if end > start and (reuse or best is None or best.length <= end - start):
            return _Stretch(
                end - start, numbers=[n for n in items[start:end] if isinstance(n, int)]
            )
        for length in range(len(items) - start, 0, -1):
            if not reuse and best is not None and length < best.length:
                break
            found = self._find(self._list(items[start : start + length]))
            if found is not None:
                return _Stretch(length, value=found)
        return best

    def _list(self, numbers: Sequence[Number]) -> Fact:
        return of_items(list_of(numbers), ir.DataType.INT64, self._analysis.algebra)

    def _from_shape(self, items: list[Number], start: int) -> _Stretch | None:
        """Return the longest stretch of a tensor's shape that is there from ``start`` on."""
        best: _Stretch | None = None
        for place in range(start, len(items)):
            size = items[place]
            if isinstance(size, int):
                continue
            for level in self._sources:
                for source, axis in level.get(size, ()):
                    part = self._stretch(items, start, source, axis - (place - start))
                    if part is not None and (best is None or part.length > best.length):
                        best = part
            break
        return best

    def _stretch(
        self, items: list[Number], start: int, source: ir.Value, axis: int
    ) -> _Stretch | None:
        shape = self._analysis.of(source).shape or ()
        if axis < 0 or not _is_there(source):
            return None
        length = 0
        symbols = 0
        while start + length < len(items) and axis + length < len(shape):
            if items[start + length] != shape[axis + length]:
                break
            symbols += not isinstance(shape[axis + length], int)
            length += 1
        return _Stretch(length, source=source, axis=axis) if symbols else None

    def _cost(self, parts: Sequence[_Stretch], node: ir.Node) -> int:
        """New nodes; a Shape that several parts share counts once."""
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

    def _build(self, parts: Sequence[_Stretch], like: ir.Value, node: ir.Node) -> ir.Value:
        values = [self._value(part, like, node) for part in parts]
        if len(values) == 1:
            return values[0]
        fact = self._analysis.of(like)
        return self._made("Concat", values, {"axis": 0}, node, fact, like)

    def _value(self, part: _Stretch, like: ir.Value, node: ir.Node) -> ir.Value:
        if part.value is not None:
            return part.value
        if part.source is None:
            return self._edit.constant(np.array(part.numbers, np.int64), like, node)
        return self._sizes(part, part.source, like, node)

    def _sizes(self, part: _Stretch, source: ir.Value, like: ir.Value, node: ir.Node) -> ir.Value:
        shape = self._analysis.of(source).shape or ()
        fact = self._list(shape[part.axis : part.axis + part.length])
        found = self._find(fact)
        if found is not None:
            return found
        if part.length == len(shape):
            return self._made("Shape", [source], {}, node, fact, like)
        end = part.axis + part.length
        if self._version(node) >= 15:
            attributes = {"start": part.axis, "end": end}
            return self._made("Shape", [source], attributes, node, fact, like)
        whole = self._sizes(_Stretch(len(shape), source=source), source, like, node)
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
        made = self._edit.node(op_type, inputs, attributes, node, fact, like)
        self._values[-1].setdefault(self._analysis.of(made), made)
        return made


def _is_there(value: ir.Value) -> bool:
    """Return True unless the value has been taken out of its graph."""
    producer = value.producer()
    if producer is None:
        return value.graph is not None
    return producer.graph is not None


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
