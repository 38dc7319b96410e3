"""Constness of values: does a value change between runs, between settings, or never?

A forward dataflow over the lattice ``variable < runtime constant < compile-time constant``. What a
deterministic op makes is as constant as the least constant of what it reads, values captured by
its subgraphs included. Anything else is variable.
"""

from __future__ import annotations

import enum
import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxfold.analysis.determinism import Determinism
from onnxfold.errors import ModelError, UsageError, suggestion
from onnxfold.graphs import captured_values, is_constant_node, is_initialized, subgraphs_of

RECORD_KEY = "onnxfold.runtime_constants"
"""Key in a model's metadata: a JSON list of the names of its runtime constants."""


class Constness(enum.IntEnum):
    """How constant a value is; the order is the lattice's, so `min` is its meet."""

    VARIABLE = 0
    """May change with every run."""
    RUNTIME = 1
    """Known when the model runs, then the same over many runs."""
    COMPILE_TIME = 2
    """In the model file, or made of what is."""


def select_runtime_constants(
    model: ir.Model, names: Iterable[str] = (), *, overridable: bool = False
) -> list[ir.Value]:
    """Return the model inputs that are runtime constants, in the order of the model's inputs.

    Args:
        model: The model.
        names: Names of inputs, or globs of them; the names in the model's metadata (`RECORD_KEY`)
            are added.
        overridable: Also every input that has a default value (an overridable initializer).

    Raises:
        UsageError: A name matches no input.
        ModelError: The record in the metadata cannot be read.
    """
    inputs = {value.name: value for value in model.graph.inputs if value.name}
    chosen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"runtime constants are given by name, got {name!r}")
        found = {name} if name in inputs else set(fnmatch.filter(inputs, name))
        if not found and name in model.graph.initializers:
            raise UsageError(
                f"{name!r} is a weight in the file, not an input: it is a compile-time constant"
            )
        if not found:
            raise UsageError(f"no input is called {name!r}{suggestion(name, list(inputs))}")
        chosen |= found
    chosen |= recorded(model) & set(inputs)
    if overridable:
        chosen |= set(inputs) & set(model.graph.initializers)
    return [value for name, value in inputs.items() if name in chosen]


def recorded(model: ir.Model) -> set[str]:
    """Return the names of the runtime constants that the model's metadata record.

    Raises:
        ModelError: The record is not a JSON list of strings.
    """
    text = model.metadata_props.get(RECORD_KEY)
    if text is None:
        return set()
    try:
        names = json.loads(text)
    except ValueError as error:
        raise ModelError(f"metadata {RECORD_KEY!r} is not JSON: {error}") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"metadata {RECORD_KEY!r} is not a list of names")
    return set(names)


def record(model: ir.Model, names: Sequence[str]) -> None:
    """Write the names of the runtime constants into the model's metadata."""
    model.metadata_props[RECORD_KEY] = json.dumps(list(names))


class ConstnessAnalysis:
    """The constness of every value of a model, found in one walk.

    What changes from turn to turn of a loop's body is variable there, and so is what a function is
    given, inside it.

    Args:
        model: The model; nodes must come after those they read from.
        runtime_constants: The inputs of its graph that are runtime constants.
    """

    def __init__(self, model: ir.Model, runtime_constants: Iterable[ir.Value]) -> None:
        self._opsets = model.graph.opset_imports
        self._determinism = Determinism(model)
        self._of: dict[ir.Value, Constness] = dict.fromkeys(runtime_constants, Constness.RUNTIME)
        self._graph(model.graph, self._opsets)
        for function in model.functions.values():
            self._graph(function.graph, function.opset_imports)

    def of(self, value: ir.Value) -> Constness:
        """Return the constness of a value of the model, also of one that was made since."""
        node = value.producer()
        if node is not None and value not in self._of and not subgraphs_of(node):
            for operand in node.inputs:
                if operand is not None:
                    self.of(operand)
            self._visit(node, self._opsets)
        return self._lookup(value)

    def of_node(self, node: ir.Node) -> Constness:
        """Return the least constness among a node's results."""
        return min((self.of(output) for output in node.outputs), default=Constness.VARIABLE)

    def _lookup(self, value: ir.Value) -> Constness:
        found = self._of.get(value)
        if found is not None:
            return found
        return Constness.COMPILE_TIME if is_initialized(value) else Constness.VARIABLE

    def _graph(self, graph: ir.Graph, opsets: Mapping[str, int]) -> None:
        for node in graph:
            for subgraph in subgraphs_of(node):  # a body's own inputs are unknown, and so variable
                self._graph(subgraph, opsets)
            self._visit(node, opsets)

    def _visit(self, node: ir.Node, opsets: Mapping[str, int]) -> None:
        read = [*(v for v in node.inputs if v is not None), *captured_values(node)]
        least = min(map(self._lookup, read), default=Constness.COMPILE_TIME)
        is_computed = least and not is_constant_node(node)
        if is_computed and self._determinism.reason_not_to_fold(node, opsets) is not None:
            least = Constness.VARIABLE
        self._of.update(dict.fromkeys(node.outputs, least))
