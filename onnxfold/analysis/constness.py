"""Constness of values, and the elements of compile-time constants.

A forward dataflow over the lattice ``variable < runtime constant < compile-time constant``. The
result of a deterministic op is as constant as its least constant operand. Values that its subgraphs
capture are operands, too. Any other value is variable.

The level between runtime and compile-time constants is for values whose sizes alone depend on
inputs. `onnxfold.analysis.broadcasts` finds these values, as that requires shapes.
"""

from __future__ import annotations

import enum
import fnmatch
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.determinism import Determinism
from onnxfold.analysis.elements import all_pass, is_exactly, repeated
from onnxfold.analysis.scopes import Scopes
from onnxfold.fold.evaluator import ComputationFailed, Evaluator
from onnxfold.fold.operation import Operation
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.fold.pool.buffer import Array
from onnxfold.ir.graphs import captured_values, has_references, is_constant_node
from onnxfold.ir.storage import data_bytes, stored_tensor
from onnxfold.ops.numpy_kernels import Unfoldable
from onnxfold.support.errors import ModelError, UsageError, suggestion
from onnxfold.support.forks import cached_property

T = TypeVar("T")

READABLE_BYTES = 1 << 16
"""Constants up to this size are read (and computed) when an analysis asks for them."""

RECORD_KEY = "onnxfold.runtime_constants"
"""Key in a model's metadata: a JSON list of the names of its runtime constants."""


class Constness(enum.IntEnum):
    """How constant a value is; the order is the lattice's, so `min` is its meet."""

    VARIABLE = 0
    """May change with every run."""
    RUNTIME = 1
    """Known when the model runs, then the same over many runs."""
    BROADCAST = 2
    """A constant up to a broadcast. `ModelFacts.level_of` returns this level; for
    `ConstnessAnalysis`, these values are variable."""
    COMPILE_TIME = 3
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
    """The constness of the values of a model, computed on demand and cached.

    Compile-time constants also have a value: `tensor`, `array` and `buffer` return it.

    Inputs of a loop's body or of a function are variable in it. Results stay valid while the graph
    is rewritten as long as no node changes its inputs.
    """

    def __init__(
        self,
        scopes: Scopes,
        determinism: Determinism,
        runtime_constants: Iterable[ir.Value] = (),
        evaluator: Evaluator | None = None,
    ) -> None:
        self._scopes = scopes
        self._functions = scopes.model.functions
        self._determinism = determinism
        self._shared_evaluator = evaluator
        self._found = dict.fromkeys(runtime_constants, Constness.RUNTIME)
        self._buffers: dict[ir.Value, Buffer | None] = {}
        """Small constants and their operands; None for a value that is not a small constant."""
        self._repeated: dict[ir.Value, Array | None] = {}
        """The element that a constant repeats; empty if its elements differ, None if not known."""

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
            node = current.producer()
            missing = []
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
                if node is None or is_constant_node(node):
                    is_known = self.tensor(current) is not None
                else:
                    is_known = self._may_be_computed(node)
                if not is_known:
                    level = Constness.VARIABLE
            for made in (current,) if node is None else node.outputs:
                if made not in found:
                    found[made] = level
        return found[value]

    def of_node(self, node: ir.Node) -> Constness:
        """Return the least constness among a node's results."""
        return min(map(self.of, node.outputs), default=Constness.VARIABLE)

    def is_constant(self, value: ir.Value) -> bool:
        """Return whether a value is a compile-time constant."""
        return self.of(value) is Constness.COMPILE_TIME

    def has_risen(self, value: ir.Value) -> bool:
        """Return whether other inputs have made a variable value a compile-time constant."""
        if self._found.get(value) is not Constness.VARIABLE:
            return False
        del self._found[value]
        return self.of(value) is Constness.COMPILE_TIME

    tensor = staticmethod(stored_tensor)
    """Return the tensor of a constant that is stored in the model; None for any other value."""

    def array(self, value: ir.Value) -> Array | None:
        """Return the elements of a constant that is small and computed of small ones, or None."""
        buffer = self._small_buffer(value) if self.is_constant(value) else None
        if buffer is None or buffer.is_known:
            return None if buffer is None else buffer.elements
        try:
            with np.errstate(all="ignore"):
                return buffer.array()
        except ComputationFailed:
            self._buffers[value] = None
            return None

    def buffer(self, value: ir.Value) -> Buffer | None:
        """Return the buffer of a constant that is stored or small; None for another one."""
        tensor = self.tensor(value)
        return self._small_buffer(value) if tensor is None else self.pool.wrap(tensor)

    def all_equal(self, value: ir.Value, number: float) -> bool | None:
        """Return whether every element of a constant is exactly ``number`` (-0.0 is not 0.0).

        None if the value is not constant or not computed yet. Large tensors are read by tiles.
        """
        if not self.is_constant(value):
            return None
        if value not in self._repeated:
            self._repeated[value] = self._look(value, repeated)
        element = self._repeated[value]
        return None if element is None else element.size > 0 and is_exactly(element, number)

    def is_finite(self, value: ir.Value) -> bool | None:
        """Return whether a constant has only finite elements; None as for :meth:`all_equal`."""
        if not self.is_constant(value):
            return None

        def all_finite(array: Array) -> bool:
            return all_pass(array, lambda part: bool(np.isfinite(part).all()))

        return self._look(value, all_finite)

    def results_of(self, operation: Operation) -> Sequence[Buffer | None]:
        """Return the results of a deterministic operation; none if it cannot be computed."""
        try:
            with np.errstate(all="ignore"):
                return self._evaluator.apply(operation)
        except (Unfoldable, ComputationFailed):
            return ()

    def is_computable(self, buffer: Buffer) -> bool:
        """Return whether a postponed buffer can be computed; what may fail is computed now."""
        try:
            self._evaluator.compute(self._evaluator.uncertain([buffer]))
        except ComputationFailed:
            return False
        return True

    @cached_property
    def pool(self) -> Pool:
        """The pool with the buffers of constants."""
        return self._evaluator.pool

    @cached_property
    def _evaluator(self) -> Evaluator:
        return self._shared_evaluator or Evaluator(Pool())

    def _may_be_computed(self, node: ir.Node) -> bool:
        """Return whether the results of a node are constant if all that it reads is."""
        scope = self._scopes.find(node.graph)
        if scope is None or has_references(node):
            return False
        return self._determinism.reason_not_to_fold(node, scope.opsets) is None

    def _small_buffer(self, value: ir.Value) -> Buffer | None:
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._buffers:
                pending.pop()
                continue
            node = current.producer()
            if node is None or is_constant_node(node):
                tensor = self.tensor(current)
                self._buffers[current] = None
                if tensor is not None and data_bytes(tensor.dtype, tensor.shape) <= READABLE_BYTES:
                    self._buffers[current] = self._keep(self.pool.wrap(tensor))
                continue
            missing = [v for v in node.inputs if v is not None and v not in self._buffers]
            if missing:
                pending.extend(missing)
                continue
            self._compute(node)
        return self._buffers[value]

    def _compute(self, node: ir.Node) -> None:
        for output in node.outputs:
            self._buffers[output] = None
        operands = [None if v is None else self._buffers[v] for v in node.inputs]
        if any(v is not None and b is None for v, b in zip(node.inputs, operands, strict=True)):
            return
        scope = self._scopes.find(node.graph)
        if scope is None or node in self._scopes.parents or node.op_identifier() in self._functions:
            return
        results = self.results_of(Operation(node, operands, scope.opsets))
        for output, buffer in zip(node.outputs, results, strict=False):
            if buffer is not None:
                is_small = buffer.nbytes <= READABLE_BYTES
                self._buffers[output] = self._keep(buffer) if is_small else None

    def _keep(self, buffer: Buffer) -> Buffer:
        self.pool.retain(buffer)
        return buffer

    def _look(self, value: ir.Value, function: Callable[[Array], T]) -> T | None:
        """Return the result of a function of the elements of a constant; None if not computed."""
        buffer = self._small_buffer(value)
        if buffer is None:
            buffer = self.buffer(value)
        # a deferred one is not worth the time and the memory that onnxruntime takes
        if buffer is None or not buffer.is_known:
            return None
        self._keep(buffer)
        try:
            return function(buffer.array())
        finally:
            if buffer.nbytes > READABLE_BYTES:
                buffer.release_pages()
            self.pool.release(buffer)
