"""Constness of values, and the elements of compile-time constants.

This is a forward dataflow analysis over the lattice
``variable < runtime constant < compile-time constant``. Stored tensors are compile-time constants,
and selected inputs are runtime constants. The result of a deterministic op has the minimum
constness of the op's operands, which include the values that subgraphs of the node capture. All
other values are variable.

The level `Constness.BROADCAST` describes values whose sizes depend on inputs, but whose elements do
not. Finding these values requires shapes, so `onnxfold.analysis.broadcasts` finds them.
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
"""Maximum number of bytes of small constants. Analyses read or compute their elements on demand."""

RECORD_KEY = "onnxfold.runtime_constants"
"""The key of the model's metadata that contains a JSON list of names of runtime constants."""


class Constness(enum.IntEnum):
    """The levels of constness, in the order of the lattice. The meet of levels is their minimum."""

    VARIABLE = 0
    """The value may differ between runs."""
    RUNTIME = 1
    """The value is not known before the model runs, but is equal in many runs."""
    BROADCAST = 2
    """The value is constant up to a broadcast. Only `ModelFacts.level_of` returns this level.
    `ConstnessAnalysis` returns `VARIABLE` for these values."""
    COMPILE_TIME = 3
    """The value is stored in the model, or computed from stored values."""


def select_runtime_constants(
    model: ir.Model, names: Collection[str] = (), *, overridable: bool = False
) -> list[ir.Value]:
    """Return the model inputs that are runtime constants, in the order of the model's inputs.

    Args:
        model: The model.
        names: Names of inputs, or glob patterns. The inputs that are recorded in the model's
            metadata (see `recorded`) are selected, too.
        overridable: Whether to select all inputs with a default value, too.

    Raises:
        UsageError: A name or pattern matches no input, or is not a string.
        ModelError: The record in the metadata is invalid.
    """
    if not names and not overridable and RECORD_KEY not in model.metadata_props:
        return []
    inputs = {value.name: value for value in model.graph.inputs if value.name}
    selected: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"runtime constants are given by name, got {name!r}")
        matches = {name} if name in inputs else set(fnmatch.filter(inputs, name))
        if not matches and name in model.graph.initializers:
            raise UsageError(
                f"{name!r} is a weight in the file, not an input: it is a compile-time constant"
            )
        if not matches:
            raise UsageError(f"no input is called {name!r}{suggestion(name, list(inputs))}")
        selected |= matches
    selected |= recorded(model) & set(inputs)
    if overridable:
        selected |= set(inputs) & set(model.graph.initializers)
    return [value for name, value in inputs.items() if name in selected]


def recorded(model: ir.Model) -> set[str]:
    """Return the names of the runtime constants that are recorded in the model's metadata.

    The result is empty if the metadata has no such record.

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
    """The constness of the values of a model, computed on demand and cached.

    `tensor`, `array` and `buffer` return the value of a compile-time constant.

    The inputs of a loop body or a function are variable. Results remain valid while nodes are added
    and removed. If an input of a node is replaced by an equal value, the cached levels of the
    results may be too low. `has_risen` updates them.
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
        self._levels = dict.fromkeys(runtime_constants, Constness.RUNTIME)
        self._buffers: dict[ir.Value, Buffer | None] = {}
        """The buffers of small constants; None for other values and for failed computations."""
        self._repeated: dict[ir.Value, Array | None] = {}
        """The element that each inspected constant repeats, as a vector.

        The vector is empty if the elements differ. None means that they are not computed."""

    def of(self, value: ir.Value) -> Constness:
        """Return the constness of a value."""
        levels = self._levels
        if value in levels:
            return levels[value]
        pending = [value]
        while pending:
            current = pending[-1]
            if current in levels:
                pending.pop()
                continue
            node = current.producer()
            missing = []
            level = Constness.COMPILE_TIME
            operands: Sequence[ir.Value | None] = () if node is None else node.inputs
            if node in self._scopes.parents:
                operands = (*operands, *captured_values(node))
            for operand in operands:
                if operand is None:
                    continue
                if operand not in levels:
                    missing.append(operand)
                elif levels[operand] < level:
                    level = levels[operand]
            if level is not Constness.VARIABLE:  # a variable operand decides the level
                if missing:
                    pending += missing
                    continue
                if node is None or is_constant_node(node):
                    is_known = self.tensor(current) is not None
                else:
                    is_known = self._may_be_computed(node)
                if not is_known:
                    level = Constness.VARIABLE
            for output in (current,) if node is None else node.outputs:
                if output not in levels:
                    levels[output] = level
        return levels[value]

    def of_node(self, node: ir.Node) -> Constness:
        """Return the minimum constness of a node's results; `VARIABLE` if it has no results."""
        return min(map(self.of, node.outputs), default=Constness.VARIABLE)

    def is_constant(self, value: ir.Value) -> bool:
        """Return whether a value is a compile-time constant."""
        return self.of(value) is Constness.COMPILE_TIME

    def has_risen(self, value: ir.Value) -> bool:
        """Update the level of a value after an input of its producer was replaced.

        Returns whether the cached level was `VARIABLE` and the value is now a compile-time
        constant. Other cached levels are not updated.
        """
        if self._levels.get(value) is not Constness.VARIABLE:
            return False
        del self._levels[value]
        return self.of(value) is Constness.COMPILE_TIME

    tensor = staticmethod(stored_tensor)
    """Return the tensor of a constant that is stored in the model; None for any other value."""

    def array(self, value: ir.Value) -> Array | None:
        """Return the elements of a small constant, which are computed if necessary.

        The result is None if the value is not a compile-time constant, or is not small. It is also
        None if the value cannot be computed only from small constants.
        """
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
        """Return the buffer of a compile-time constant; None if it is neither stored nor small."""
        tensor = self.tensor(value)
        return self._small_buffer(value) if tensor is None else self.pool.wrap(tensor)

    def all_equal(self, value: ir.Value, number: float) -> bool | None:
        """Return whether every element of a constant is exactly ``number``; -0.0 is not 0.0.

        The result is False for an empty tensor. It is None if the value is not a compile-time
        constant, or its elements are not computed yet. Large tensors are read in blocks.
        """
        if not self.is_constant(value):
            return None
        if value not in self._repeated:
            self._repeated[value] = self._inspect(value, repeated)
        element = self._repeated[value]
        return None if element is None else element.size > 0 and is_exactly(element, number)

    def is_finite(self, value: ir.Value) -> bool | None:
        """Return whether all elements of a constant are finite.

        The result is False for an empty tensor. It is None in the same cases as the result of
        :meth:`all_equal`.
        """
        if not self.is_constant(value):
            return None

        def all_finite(array: Array) -> bool:
            return all_pass(array, lambda part: bool(np.isfinite(part).all()))

        return self._inspect(value, all_finite)

    def results_of(self, operation: Operation) -> Sequence[Buffer | None]:
        """Return the results of a deterministic operation, or () if it cannot be computed."""
        try:
            with np.errstate(all="ignore"):
                return self._evaluator.apply(operation)
        except (Unfoldable, ComputationFailed):
            return ()

    def is_computable(self, buffer: Buffer) -> bool:
        """Return whether a deferred buffer can be computed.

        Dependencies whose computation could fail are computed now.
        """
        try:
            self._evaluator.compute(self._evaluator.fallible_buffers([buffer]))
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
        """Return whether the results of a node are constant if all its operands are constant."""
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

    def _inspect(self, value: ir.Value, function: Callable[[Array], T]) -> T | None:
        """Apply a function to the elements of a constant; return None if they are not computed."""
        buffer = self._small_buffer(value)
        if buffer is None:
            buffer = self.buffer(value)
        # the computation of a large deferred constant could take too much time and memory
        if buffer is None or not buffer.is_known:
            return None
        self._keep(buffer)
        try:
            return function(buffer.array())
        finally:
            if buffer.nbytes > READABLE_BYTES:
                buffer.release_pages()
            self.pool.release(buffer)
