"""The first value, in topological order, on which two models differ.

Values have the same name in both models. Those of the main graph are looked at in groups, each a
run of both models that gives these values out; the first group with a difference holds the first.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.ir import storage
from onnxfold.ir.graphs import attribute_text, captured_values, op_name
from onnxfold.ir.symbolic import Fact
from onnxfold.tools.comparison.feeds import Feeds
from onnxfold.tools.comparison.result import FirstDifference, OutputResult
from onnxfold.tools.comparison.runners import Opener, Outputs, Subject

_GROUP = 48 << 20  # bytes of values that one run gives out
_GROUPS = 8  # of one kind of values at most: larger ones hold more bytes instead
_UNKNOWN = 1 << 16  # bytes of a value of unknown shape
_SHOWN = 20  # nodes that are listed


class Side:
    """A model to search. Files that give out other values are beside it, and share its weights."""

    def __init__(self, subject: Subject, feeds: Feeds, open: Opener) -> None:
        self.feeds = feeds
        self._open = open
        self._path = os.path.join(os.path.dirname(subject.source), "variant.onnx")
        self.model = storage.load(subject.source)
        self.graph = self.model.graph
        self.runs = 0
        """How often the model was run."""

    def values(self, wanted: Sequence[ir.Value]) -> Outputs:
        """Run the model and return these of its values by name."""
        self.runs += 1
        outputs = self.graph.outputs
        given = len(outputs)
        outputs.extend(value for value in wanted if not value.is_graph_output())
        storage.save(self.model, self._path, share_weights=True, fsync=False)
        while len(outputs) > given:  # deleting a slice would leave them marked as outputs
            outputs.pop()
        runner = self._open(self._path)
        found = runner(self.feeds)
        del runner
        gc.collect()  # the session is large, and the next one is about to be opened
        return {value.name or "": found[value.name or ""] for value in wanted}


class Search:
    """Looks for the first value that two models make differently."""

    def __init__(self, compare_values: Callable[..., list[OutputResult]], a: Side, b: Side) -> None:
        self._compare = compare_values
        self._a = a
        self._b = b
        self._facts = facts_of(a.model)
        for value in a.graph.inputs:  # they have the shapes of the feeds
            fed = a.feeds.get(value.name or "")
            if isinstance(fed, np.ndarray) and not self._facts.constness.is_constant(value):
                self._facts.types.set(value, Fact(value.dtype, fed.shape))
        values_b: dict[str, ir.Value] = dict(b.graph.initializers)
        values_b.update((v.name, v) for node in b.graph for v in node.outputs if v.name)
        self._pairs = {
            value: other
            for node in a.graph
            for value in node.outputs
            if (other := values_b.get(value.name or "")) is not None
            if _can_be_given_out(value) and _can_be_given_out(other)
        }

    def first(self) -> FirstDifference | None:
        """Return the first value that differs, or None. Values that depend on inputs come first,
        then the constants behind the first one of them: all constants would be many bytes.
        `CannotLoad` and `CannotRun` say that a model does not run once it gives out values within.
        """
        is_constant = self._facts.constness.is_constant
        variable = [value for value in self._pairs if not is_constant(value)]
        found = self._first_of(variable)
        ends = [found[0]] if found is not None else self._a.graph.outputs  # which may be constant
        behind = {value for node in _since(ends, set(variable)) for value in node.outputs}
        constants = [value for value in self._pairs if value in behind and is_constant(value)]
        found = self._first_of(constants) or found
        if found is None:
            return None
        (value, result) = found
        equal = {*variable, *constants}
        equal_b = {self._pairs[each] for each in equal}
        return FirstDifference(
            value=value.name or "",
            result=result,
            nodes_a=[_node_text(node) for node in _since([value], equal)][-_SHOWN:],
            nodes_b=[_node_text(node) for node in _since([self._pairs[value]], equal_b)][-_SHOWN:],
            ingredients=dict(self._ingredients(value, equal)),
            runs=self._a.runs + self._b.runs,
        )

    def _first_of(self, values: Sequence[ir.Value]) -> tuple[ir.Value, OutputResult] | None:
        for group in self._groups(values):
            a = self._a.values(group)
            b = self._b.values([self._pairs[value] for value in group])
            apart = self._apart(group, a, b)
            random = self._apart(apart, a, self._a.values(group)) if apart else {}
            for value, result in apart.items():
                if value not in random:
                    return value, result
        return None

    def _apart(
        self, values: Iterable[ir.Value], a: Outputs, b: Outputs
    ) -> dict[ir.Value, OutputResult]:
        """Return the first result of each value that is not within the tolerance."""
        found = {}
        for value in values:
            name = value.name or ""
            outside = [r for r in self._compare(a[name], b[name], name=name) if not r.within]
            if outside:
                found[value] = outside[0]
        return found

    def _groups(self, values: Sequence[ir.Value]) -> Iterator[Sequence[ir.Value]]:
        """Yield the values in groups of about the same bytes, in order."""
        facts = [self._facts.types.of(value) for value in values]
        nbytes = [
            _UNKNOWN
            if f.static_shape is None or f.dtype is None
            else storage.data_bytes(f.dtype, f.static_shape)
            for f in facts
        ]
        limit = max(_GROUP, sum(nbytes) // _GROUPS)
        ends = zip(values, itertools.accumulate(nbytes), strict=True)
        for _, group in itertools.groupby(ends, key=lambda end: end[1] // limit):
            yield [value for value, _ in group]

    def _ingredients(
        self, value: ir.Value, equal: Collection[ir.Value]
    ) -> Iterator[tuple[str, str]]:
        """Yield what the node of the first model reads, and how that compares."""
        node = value.producer()
        node_b = self._pairs[value].producer()
        weights_b = {} if node_b is None else {v.name: v for v in node_b.inputs if v is not None}
        for read in () if node is None else node.inputs:
            if read is None or not read.name:
                continue
            other = weights_b.get(read.name)
            x = storage.stored_or_default(read)
            y = None if other is None else storage.stored_or_default(other)
            if read in equal or (read.is_graph_input() and x is None):
                state = "equal"
            elif x is None or y is None:
                state = "in the first model only"
            else:
                results = self._compare(x.numpy(), y.numpy(), name=read.name)
                state = "equal" if all(r.bit_equal for r in results) else results[0].apart
            yield read.name, state


def _can_be_given_out(value: ir.Value) -> bool:
    """False for what onnxruntime's Python interface does not give as arrays."""
    if isinstance(value.type, (ir.OptionalType, ir.SparseTensorType)):
        return False
    return value.dtype in (None, ir.DataType.STRING) or value.dtype.bitwidth >= 8


def _since(values: Sequence[ir.Value], equal: Collection[ir.Value]) -> list[ir.Node]:
    """Return the nodes that make values from values that are equal in both models, in order."""
    found: set[ir.Node] = set()
    stack = [value.producer() for value in values]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            read = [*node.inputs, *captured_values(node)]
            stack += [v.producer() for v in read if v is not None and v not in equal]
    graph = next((node.graph for node in found), None)
    return [] if graph is None else [node for node in graph if node in found]


def _node_text(node: ir.Node) -> str:
    read = [value.name or "" if value is not None else "" for value in node.inputs]
    read += [f"{name}={attribute_text(a)}" for name, a in node.attributes.items()]
    return f"{', '.join(v.name or '' for v in node.outputs)} = {op_name(node)}({', '.join(read)})"
