"""Find the first value, in topological order, that differs between two models.

Values are matched by name. The values of the main graph are compared in groups: both models run
with the values of a group as outputs, until a group has a difference.
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

_GROUP_BYTES = 48 << 20  # of the values that one run returns in addition to the outputs
_MAX_GROUPS = 8  # instead of more groups, the groups have more bytes
_UNKNOWN_BYTES = 1 << 16  # assumed for a value of unknown shape
_MAX_NODES = 20  # in the result, for each model


class Side:
    """A model to search.

    Variants of the model with further outputs are written into the folder of the model's file. The
    variants share the weights of this file.
    """

    def __init__(self, subject: Subject, feeds: Feeds, open: Opener) -> None:
        self.feeds = feeds
        self._open = open
        self._path = os.path.join(os.path.dirname(subject.source), "variant.onnx")
        self.model = storage.load(subject.source)
        self.graph = self.model.graph
        self.runs = 0
        """Number of runs of the model."""

    def compute(self, values: Sequence[ir.Value]) -> Outputs:
        """Run the model with further outputs, and return the values of these outputs by name.

        Raises:
            CannotLoad, CannotRun: The model does not run with these outputs.
        """
        self.runs += 1
        outputs = self.graph.outputs
        original_count = len(outputs)
        outputs.extend(value for value in values if not value.is_graph_output())
        storage.save(self.model, self._path, share_weights=True, fsync=False)
        # the deletion of a slice would leave the values marked as outputs
        while len(outputs) > original_count:
            outputs.pop()
        runner = self._open(self._path)
        results = runner(self.feeds)
        del runner
        gc.collect()  # free the large session before the next one is opened
        return {value.name or "": results[value.name or ""] for value in values}


class Search:
    """A search for the first value that differs between two models."""

    def __init__(self, compare_values: Callable[..., list[OutputResult]], a: Side, b: Side) -> None:
        self._compare = compare_values
        self._a = a
        self._b = b
        self._facts = facts_of(a.model)
        for value in a.graph.inputs:  # the shapes of the feeds determine the bytes of values
            feed = a.feeds.get(value.name or "")
            if isinstance(feed, np.ndarray) and not self._facts.constness.is_constant(value):
                self._facts.types.set(value, Fact(value.dtype, feed.shape))
        values_b: dict[str, ir.Value] = dict(b.graph.initializers)
        values_b.update((v.name, v) for node in b.graph for v in node.outputs if v.name)
        self._pairs: dict[ir.Value, ir.Value] = {}
        """The values that both models have by the same name, and that can be outputs.

        The keys are the values of the first model, in topological order.
        """
        for value in (value for node in a.graph for value in node.outputs):
            other = values_b.get(value.name or "")
            if other is not None and _can_be_output(value) and _can_be_output(other):
                self._pairs[value] = other

    def first(self) -> FirstDifference | None:
        """Return the first value that differs, or None.

        Values that depend on inputs are compared first. Then the constants that the first
        difference depends on are compared, or without a difference, the constants that the outputs
        depend on. All constants together would take too many bytes. Values that change from run to
        run in the first model are ignored.

        Raises:
            CannotLoad, CannotRun: A model does not run with intermediate values as outputs.
        """
        is_constant = self._facts.constness.is_constant
        variables = [value for value in self._pairs if not is_constant(value)]
        difference = self._first_of(variables)
        if difference is not None:
            targets: Sequence[ir.Value] = [difference[0]]
        else:
            targets = self._a.graph.outputs  # they may depend on constants only
        operands = {v for node in _nodes_between(set(variables), targets) for v in node.outputs}
        constants = [value for value in self._pairs if value in operands and is_constant(value)]
        difference = self._first_of(constants) or difference
        if difference is None:
            return None
        value, result = difference
        equal = {*variables, *constants}
        equal_b = {self._pairs[equal_value] for equal_value in equal}
        nodes_a = _nodes_between(equal, [value])
        nodes_b = _nodes_between(equal_b, [self._pairs[value]])
        return FirstDifference(
            value=value.name or "",
            result=result,
            nodes_a=[_node_text(node) for node in nodes_a[-_MAX_NODES:]],
            nodes_b=[_node_text(node) for node in nodes_b[-_MAX_NODES:]],
            ingredients=dict(self._ingredients(value, equal)),
            runs=self._a.runs + self._b.runs,
        )

    def _first_of(self, values: Sequence[ir.Value]) -> tuple[ir.Value, OutputResult] | None:
        for group in self._groups(values):
            a = self._a.compute(group)
            b = self._b.compute([self._pairs[value] for value in group])
            differences = self._differences(group, a, b)
            varying = {}
            if differences:
                varying = self._differences(differences, a, self._a.compute(group))
            for value, result in differences.items():
                if value not in varying:
                    return value, result
        return None

    def _differences(
        self, values: Iterable[ir.Value], a: Outputs, b: Outputs
    ) -> dict[ir.Value, OutputResult]:
        """Return the values that are not within the tolerance.

        Each value has the first of its results that is not within the tolerance.
        """
        differences = {}
        for value in values:
            name = value.name or ""
            outside = [r for r in self._compare(a[name], b[name], name=name) if not r.within]
            if outside:
                differences[value] = outside[0]
        return differences

    def _groups(self, values: Sequence[ir.Value]) -> Iterator[Sequence[ir.Value]]:
        """Yield the values, in order, in groups of about the same number of bytes."""
        sizes = [self._bytes_of(value) for value in values]
        limit = max(_GROUP_BYTES, sum(sizes) // _MAX_GROUPS)
        ends = zip(values, itertools.accumulate(sizes), strict=True)
        for _, group in itertools.groupby(ends, key=lambda end: end[1] // limit):
            yield [value for value, _ in group]

    def _bytes_of(self, value: ir.Value) -> int:
        fact = self._facts.types.of(value)
        if fact.static_shape is None or fact.dtype is None:
            return _UNKNOWN_BYTES
        return storage.data_bytes(fact.dtype, fact.static_shape)

    def _ingredients(
        self, value: ir.Value, equal: Collection[ir.Value]
    ) -> Iterator[tuple[str, str]]:
        """Yield the operands of the node that computes a value in the first model.

        Yields:
            The name of an operand, and its state as in `FirstDifference.ingredients`.
        """
        node = value.producer()
        node_b = self._pairs[value].producer()
        operands_b = {} if node_b is None else {v.name: v for v in node_b.inputs if v is not None}
        for operand in () if node is None else node.inputs:
            if operand is None or not operand.name:
                continue
            other = operands_b.get(operand.name)
            x = storage.stored_or_default(operand)
            y = None if other is None else storage.stored_or_default(other)
            if operand in equal or (operand.is_graph_input() and x is None):
                state = "equal"
            elif x is None or y is None:
                state = "in the first model only"
            else:
                results = self._compare(x.numpy(), y.numpy(), name=operand.name)
                state = "equal" if all(r.bit_equal for r in results) else results[0].difference_text
            yield operand.name, state


def _can_be_output(value: ir.Value) -> bool:
    """Return whether onnxruntime's Python interface can return the value as an output."""
    if isinstance(value.type, (ir.OptionalType, ir.SparseTensorType)):
        return False
    return value.dtype in (None, ir.DataType.STRING) or value.dtype.bitwidth >= 8


def _nodes_between(sources: Collection[ir.Value], targets: Sequence[ir.Value]) -> list[ir.Node]:
    """Return the nodes that compute the targets from the sources, in graph order."""
    selected: set[ir.Node] = set()
    stack = [value.producer() for value in targets]
    while stack:
        node = stack.pop()
        if node is not None and node not in selected:
            selected.add(node)
            operands = [*node.inputs, *captured_values(node)]
            stack += [v.producer() for v in operands if v is not None and v not in sources]
    graph = next((node.graph for node in selected), None)
    return [] if graph is None else [node for node in graph if node in selected]


def _node_text(node: ir.Node) -> str:
    arguments = [value.name or "" if value is not None else "" for value in node.inputs]
    arguments += [f"{name}={attribute_text(a)}" for name, a in node.attributes.items()]
    results = ", ".join(value.name or "" for value in node.outputs)
    return f"{results} = {op_name(node)}({', '.join(arguments)})"
