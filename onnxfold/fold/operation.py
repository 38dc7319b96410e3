"""Operations: nodes with constant operands, which the evaluator computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.fold.pool import Buffer, Deferred
from onnxfold.fold.pool.buffer import Array
from onnxfold.ir.storage.encode import add_attributes
from onnxfold.ops import find
from onnxfold.ops.application import python_value
from onnxfold.ops.numpy_kernels import Kind, NumpyKernel, broadcast_shape
from onnxfold.support.arrays import distinct

OWN = "onnxfold:"
"""The prefix of names of values in generated models. Names in models do not begin with it."""

EAGER_BYTES = 1 << 16
"""Operations on operands and results of up to this many bytes are computed immediately."""

# Models have thousands of operations on scalars and short lists. If all arrays have at most this
# many elements, the bytes of the result are estimated instead of counted.
_SCALAR_SIZE = 16
# The estimate: an upper bound for the broadcast of two such arrays with elements of 8 bytes.
_SCALAR_BYTES = 8 * _SCALAR_SIZE * _SCALAR_SIZE
# Arrays are not collapsed if all of them have at most this many elements.
_COLLAPSED_SIZE = 64

_Computed = TypeVar("_Computed")


class Operation(Deferred):
    """A node with the buffers of its constant operands. The computation may be deferred.

    The captures are outer values that the node's subgraphs read. ``operands`` contains the buffers
    of the inputs, followed by those of the captures.
    """

    is_wide = False
    """Whether the operation computes in wide precision instead of the dtypes of the model."""

    def __init__(
        self,
        node: ir.Node,
        inputs: Sequence[Buffer | None],
        opsets: Mapping[str, int],
        captures: Mapping[ir.Value, Buffer] | None = None,
    ) -> None:
        super().__init__((*inputs, *captures.values()) if captures else tuple(inputs))
        self.node = node
        self.opsets = opsets
        self.captures = tuple(captures or ())
        self.results: Sequence[Buffer | None] = ()
        self.attributes = {name: python_value(a) for name, a in node.attributes.data.items()}
        """The attributes as Python values."""
        self._kind: Kind | None = None
        self.kernel: NumpyKernel | None = find(node.op_type, node.domain, self.opset).kernel
        """The NumPy kernel; None if the op has no kernel, or the kernel must not be used."""

    @property
    def inputs(self) -> Sequence[Buffer | None]:
        """The operands without the captures."""
        return self.operands[: len(self.operands) - len(self.captures)]

    def pending_results(self) -> list[tuple[int, Buffer]]:
        """Return the indices and buffers of the results that are not computed yet."""
        return [
            (k, buffer)
            for k, buffer in enumerate(self.results)
            if buffer is not None and buffer.deferred is self
        ]

    @property
    def opset(self) -> int:
        """The version of the op's domain; 1 if the domain is not imported."""
        return self.opsets.get(self.node.domain, 1)

    @property
    def kind(self) -> Kind:
        """The kind of the NumPy kernel for these operands; GENERAL without a kernel.

        Raises:
            Unfoldable: An attribute is invalid.
        """
        if self.kernel is None:
            return Kind.GENERAL
        if self._kind is None:
            dtypes = (None if b is None else b.dtype.numpy() for b in self.operands)
            self._kind = self.kernel.kind_for(dtypes, self.attributes)
        return self._kind

    def call(self, arrays: Sequence[Array | None], max_bytes: int | None = None) -> Sequence[Array]:
        """Return the results of the NumPy kernel, which must exist.

        Element-wise kernels compute repeated elements only once. `NumpyKernel.__call__` describes
        the arguments and the exceptions.
        """
        assert self.kernel is not None
        shape = None
        if self.kind is Kind.ELEMENTWISE:
            arrays, shape = collapse(arrays)
        n_outputs = len(self.node.outputs)
        computed = self.kernel(arrays, self.attributes, n_outputs=n_outputs, max_bytes=max_bytes)
        return computed if shape is None else [np.broadcast_to(a, shape) for a in computed]

    def to_proto(self, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
        """Return the node as a protobuf message with these names of the inputs and outputs.

        The names must differ from the names of the captures, which the subgraphs read. Therefore,
        they begin with `OWN`.
        """
        proto = onnx.NodeProto(
            op_type=self.node.op_type,
            domain=self.node.domain,
            overload=self.node.overload,
            input=inputs,
            output=outputs,
        )
        add_attributes(proto.attribute, self.node)
        return proto


def deferred_operations(buffers: Sequence[Buffer | None]) -> list[Operation]:
    """Return the deferred operations on which the buffers depend, each once, operands first."""
    roots = _producers(buffers)
    if not roots:
        return []
    return operands_first(roots, lambda operation: _producers(operation.operands))


def _producers(buffers: Sequence[Buffer | None]) -> list[Operation]:
    return [b.deferred for b in buffers if b is not None and isinstance(b.deferred, Operation)]


def operands_first(
    roots: Sequence[_Computed], operands_of: Callable[[_Computed], Iterable[_Computed]]
) -> list[_Computed]:
    """Return ``roots`` and all computations on which they depend, each once, operands first."""
    order: list[_Computed] = []
    seen: set[_Computed] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        current, is_expanded = stack.pop()
        if is_expanded:
            order.append(current)
        elif current not in seen:
            seen.add(current)
            stack.append((current, True))
            stack += [(operand, False) for operand in operands_of(current)]
    return order


class WideOperation(Operation):
    """An operation on operands that have elements of 64 bits instead of the declared dtypes."""

    is_wide = True


class Conversion(WideOperation):
    """A conversion between a wide dtype and the declared dtype of an operand or result.

    If ``is_chained``, consumers in wide precision read the operand of the conversion instead of
    the result.
    """

    def __init__(
        self, node: ir.Node, operand: Buffer, kernel: NumpyKernel, *, is_chained: bool
    ) -> None:
        super().__init__(node, [operand], {})
        self.kernel = kernel
        self.attributes = {}
        self.is_chained = is_chained


def one_element_array(buffer: Buffer) -> Array:
    """Return an array with the buffer's shape and dtype that repeats one element."""
    return np.broadcast_to(np.zeros((), buffer.dtype.numpy()), buffer.shape)


def effective_bytes(arrays: Sequence[Array | None]) -> int:
    """Return the bytes of the largest operand or result, counting repeated elements once.

    The number is an estimate for scalars and short lists.
    """
    if all(a is None or a.size <= _SCALAR_SIZE for a in arrays):
        return _SCALAR_BYTES
    present = [a for a in arrays if a is not None]
    largest = max(distinct(a).nbytes for a in present)
    if len(present) > 1:
        # the result of a broadcast can be larger than the operands, for example in an outer sum
        collapsed = [a for a in collapse(present)[0] if a is not None]
        shape = broadcast_shape(*(a.shape for a in collapsed))
        largest = max(largest, math.prod(shape) * max(a.itemsize for a in collapsed))
    return largest


def collapse(
    arrays: Sequence[Array | None],
) -> tuple[Sequence[Array | None], tuple[int, ...] | None]:
    """Reduce axes along which no operand varies to extent 1.

    Returns the arrays and the original broadcast shape. The shape is None if no axis is reduced,
    for example because all arrays are small.
    """
    present = [a for a in arrays if a is not None]
    if all(a.size <= _COLLAPSED_SIZE for a in present):
        return arrays, None
    if not any(0 in a.strides for a in present if a.size > _COLLAPSED_SIZE):
        return arrays, None
    shape = broadcast_shape(*(a.shape for a in present))
    repeated_axes = {
        axis
        for axis in range(-len(shape), 0)
        if shape[axis] > 1 and all(_repeats_along(a, axis) for a in present)
    }
    if not repeated_axes:
        return arrays, None
    collapsed: list[Array | None] = []
    for a in arrays:
        if a is None:
            collapsed.append(None)
            continue
        axes = range(-a.ndim, 0)
        slices = [slice(0, 1) if axis in repeated_axes else slice(None) for axis in axes]
        # with the ellipsis, NumPy returns an array instead of a scalar
        index = (*slices, ...)
        collapsed.append(a[index])
    return collapsed, shape


def _repeats_along(array: Array, axis: int) -> bool:
    """Return whether the elements repeat along a negative axis of the broadcast shape."""
    return array.ndim < -axis or array.shape[axis] == 1 or array.strides[axis] == 0
