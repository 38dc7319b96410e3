"""Constness of values: does a value change between runs, between settings, or never?

A forward dataflow over the lattice ``variable < runtime constant < compile-time constant``. What a
deterministic op makes is as constant as the least constant of what it reads, values captured by
its subgraphs included. Anything else is variable.
"""

from __future__ import annotations

import enum
import fnmatch
import json
from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from onnxfold.analysis.determinism import Determinism
from onnxfold.analysis.scopes import Scopes
from onnxfold.errors import ModelError, UsageError, suggestion
from onnxfold.graphs import (
    captured_values,
    constant_tensor,
    has_references,
    is_constant_node,
    is_initialized,
)

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
    model: ir.Model, names: Collection[str] = (), *, overridable: bool = False
) -> list[ir.Value]:
    """Return the model inputs that are runtime constants, in the order of the model's inputs.

    They are given by names or globs, or by the model's metadata (`RECORD_KEY`). With
    ``overridable``, every input that has a default value is one, too.
    """
    if not names and not overridable and RECORD_KEY not in model.metadata_props:
        return []
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
    """Return the names of the runtime constants that the model's metadata record."""
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
    """The constness of the values of a model, found on demand and remembered.

    Inputs of a loop's body or of a function are variable in it. Results stay valid while the graph
    is rewritten as long as no node changes its inputs.
    """

    def __init__(
        self,
        model: ir.Model,
        runtime_constants: Iterable[ir.Value] = (),
        scopes: Scopes | None = None,
        determinism: Determinism | None = None,
    ) -> None:
        self._scopes = scopes or Scopes(model)
        self._determinism = determinism or Determinism(model)
        self._found = dict.fromkeys(runtime_constants, Constness.RUNTIME)

    def of(self, value: ir.Value) -> Constness:
        """Return the constness of a value."""
        found = self._found
        if value in found:
            return found[value]
        pending = [value]
        while pending:
            current = pending[-1]
            if current in found:
                pending.pop()
                continue
            node, missing = current.producer(), []
            level = Constness.COMPILE_TIME
            values: Sequence[ir.Value | None] = () if node is None else node.inputs
            if node in self._scopes.parents:
                values = (*values, *captured_values(node))
            for read in values:
                if read is None:
                    continue
                if read not in found:
                    missing.append(read)
                elif found[read] < level:
                    level = found[read]
            if level is not Constness.VARIABLE:  # otherwise the others need not be looked at
                if missing:
                    pending += missing
                    continue
                if not (is_initialized(current) if node is None else self._may_be_computed(node)):
                    level = Constness.VARIABLE
            for made in (current,) if node is None else node.outputs:
                if made not in found:
                    found[made] = level
        return found[value]

    def of_node(self, node: ir.Node) -> Constness:
        """Return the least constness among a node's results."""
        return min(map(self.of, node.outputs), default=Constness.VARIABLE)

    def has_risen(self, value: ir.Value) -> bool:
        """Return whether other inputs have made a variable value a compile-time constant."""
        if self._found.get(value) is not Constness.VARIABLE:
            return False
        del self._found[value]
        return self.of(value) is Constness.COMPILE_TIME

    def _may_be_computed(self, node: ir.Node) -> bool:
        """Return whether the results of a node are constant if all that it reads is."""
        if is_constant_node(node):
            return constant_tensor(node) is not None
        scope = self._scopes.find(node.graph)
        if scope is None or has_references(node):
            return False
        return self._determinism.reason_not_to_fold(node, scope.opsets) is None
