"""Which values are constant, and the elements of the small ones: asked for one value at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.scopes import Scopes
from onnxfold.arrays import distinct
from onnxfold.graphs import constant_tensor, is_constant_node, is_initialized
from onnxfold.kernels.evaluator import ComputationFailed, Evaluator
from onnxfold.kernels.operation import Operation
from onnxfold.ops.numpy_kernels import Unfoldable
from onnxfold.pool import Buffer, Pool
from onnxfold.pool.blocks import boxes
from onnxfold.pool.buffer import Array
from onnxfold.storage import data_bytes

T = TypeVar("T")

READABLE_BYTES = 1 << 16
"""Constants up to this size are read (and computed) when an analysis asks for them."""

_ELEMENTS = 1 << 18  # looked at together


class KnownValues:
    """The compile-time constants of a model, found on demand and remembered."""

    def __init__(
        self,
        scopes: Scopes,
        constness: ConstnessAnalysis | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._scopes, self._functions = scopes, scopes.model.functions
        self.constness = constness or ConstnessAnalysis(scopes.model, scopes=scopes)
        self._evaluator = evaluator or Evaluator(Pool())
        self.pool = self._evaluator.pool
        self._buffers: dict[ir.Value, Buffer | None] = {}
        """Of what operations compute and read: None for what is not small."""
        self._repeated: dict[ir.Value, Array | None] = {}
        """The element that all of a constant's are; empty if they differ, None if not known."""

    def is_constant(self, value: ir.Value) -> bool:
        """Return True if the value is known when the model is compiled."""
        return self.constness.of(value) is Constness.COMPILE_TIME

    def tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the tensor of an initializer or Constant node; None for any other value."""
        node = value.producer()
        if node is None:
            return value.const_value if is_initialized(value) else None
        return constant_tensor(node) if is_constant_node(node) else None

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

    def buffer(self, value: ir.Value) -> Buffer | None:
        """Return the buffer of a constant that is stored or small; None for another one."""
        tensor = self.tensor(value)
        return self._small_buffer(value) if tensor is None else self.pool.wrap(tensor)

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

    def all_equal(self, value: ir.Value, number: float) -> bool | None:
        """Return whether every element of a constant is exactly ``number`` (-0.0 is not 0.0).

        None if the value is not constant or not computed yet. Large tensors are read by tiles.
        """
        if not self.is_constant(value):
            return None
        if value not in self._repeated:
            self._repeated[value] = self._look(value, _repeated)
        element = self._repeated[value]
        return None if element is None else element.size > 0 and is_exactly(element, number)

    def is_finite(self, value: ir.Value) -> bool | None:
        """Return whether a constant has only finite elements; None as for :meth:`all_equal`."""
        if not self.is_constant(value):
            return None
        return self._look(value, lambda whole: _passes(whole, lambda x: bool(np.isfinite(x).all())))

    def _look(self, value: ir.Value, function: Callable[[Array], T]) -> T | None:
        """Return what a function says of the elements of a constant."""
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


def is_exactly(array: Array, number: float) -> bool:
    """Return True if all elements are ``number``; zeros have the same sign."""
    kind = array.dtype.kind
    if isinstance(number, bool) != (kind == "b") or kind in "OSUc":
        return False
    with np.errstate(all="ignore"):
        converted = np.asarray(number).astype(array.dtype)
    if (converted.item() if kind in "iub" else float(converted)) != number:
        return False  # no element of that dtype is the number
    if not bool((array == converted).all()):
        return False
    if number == 0 and kind in "fV":
        return bool((np.signbit(array.astype(np.float32)) == np.signbit(float(number))).all())
    return True


def _repeated(array: Array) -> Array:
    """Return the element that all elements are, as a vector; an empty one if they differ."""
    kind = array.dtype.kind
    first: Array = array[(slice(1),) * array.ndim].reshape(-1).copy()
    if first.size == 0 or kind in "OSUc" or first[0] != array[(-1,) * array.ndim]:
        return np.empty(0)
    number = first[0].item() if kind in "iub" else float(first[0])
    alike = _passes(array, lambda part: is_exactly(part, number))
    return first[:alike]


def _passes(array: Array, test: Callable[[Array], bool]) -> bool:
    if array.size == 0:
        return False
    # an axis that is not walked in memory repeats the same elements
    array = distinct(np.atleast_1d(array))
    return all(test(array[box]) for box in boxes(array.shape, _ELEMENTS))
