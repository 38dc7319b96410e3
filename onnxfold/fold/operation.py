"""One application of an op to buffers: what the evaluators compute."""

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
"""A prefix of names that no model has."""

# Operands and results up to this many bytes each are computed at once, larger ones postponed.
EAGER_BYTES = 1 << 16

_Computed = TypeVar("_Computed")


class Operation(Deferred):
    """The op of a node with constant operands, possibly postponed.

    The captures are outer values that the node's subgraphs read; ``operands`` are the buffers of
    the inputs, then of the captures.
    """

    is_wide = False
    """Whether it is not what the model says, but part of a chain in wide precision."""

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
        """The NumPy kernel; None if there is none, or it turned out not to be exact."""

    @property
    def inputs(self) -> Sequence[Buffer | None]:
        """The operands without the captures."""
        return self.operands[: len(self.operands) - len(self.captures)]

    def awaited(self) -> list[tuple[int, Buffer]]:
        """Return the results that are still to be computed, by their index."""
        return [
            (k, buffer)
            for k, buffer in enumerate(self.results)
            if buffer is not None and buffer.deferred is self
        ]

    @property
    def opset(self) -> int:
        """Version of the op's domain."""
        return self.opsets.get(self.node.domain, 1)

    @property
    def kind(self) -> Kind:
        """What its NumPy kernel is for these operands; GENERAL if it has none.

        Raises Unfoldable for attributes that no valid model has.
        """
        if self.kernel is None:
            return Kind.GENERAL
        if self._kind is None:
            dtypes = (None if b is None else b.dtype.numpy() for b in self.operands)
            self._kind = self.kernel.kind_for(dtypes, self.attributes)
        return self._kind

    def call(
        self, arrays: Sequence[Array | None], most_bytes: int | None = None
    ) -> Sequence[Array]:
        """Return the results of the NumPy kernel, as `NumpyKernel.__call__`.

        Element-wise work on repeated elements is done once.
        """
        assert self.kernel is not None
        shape = None
        if self.kind is Kind.ELEMENTWISE:
            arrays, shape = collapse(arrays)
        outputs = len(self.node.outputs)
        computed = self.kernel(arrays, self.attributes, n_outputs=outputs, most_bytes=most_bytes)
        return computed if shape is None else [np.broadcast_to(a, shape) for a in computed]

    def to_proto(self, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
        """Return the node with other names of its inputs and outputs.

        The names begin with `OWN`, as subgraphs read the captures by their own names.
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


def postponed(buffers: Sequence[Buffer | None]) -> list[Operation]:
    """Return the postponed operations that the buffers need, operands first."""
    ends = _made_by(buffers)
    return operands_first(ends, lambda operation: _made_by(operation.operands)) if ends else []


def _made_by(buffers: Sequence[Buffer | None]) -> list[Operation]:
    return [b.deferred for b in buffers if b is not None and isinstance(b.deferred, Operation)]


def operands_first(
    ends: Sequence[_Computed], operands_of: Callable[[_Computed], Iterable[_Computed]]
) -> list[_Computed]:
    """Return computations and all that they need, each once, operands first."""
    order: list[_Computed] = []
    seen: set[_Computed] = set()
    stack = [(each, False) for each in reversed(ends)]
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
    """An op of the model on operands that have more bits than the model says."""

    is_wide = True


class Conversion(WideOperation):
    """The conversion of an operand to another dtype, for a node in wide precision.

    If it is chained, further operations on the result are computed from the operand.
    """

    def __init__(
        self, node: ir.Node, operand: Buffer, kernel: NumpyKernel, *, is_chained: bool
    ) -> None:
        super().__init__(node, [operand], {})
        self.kernel = kernel
        self.attributes = {}
        self.is_chained = is_chained


def one_element_array(buffer: Buffer) -> Array:
    """Return an array of the buffer's shape and dtype with one element of memory."""
    return np.broadcast_to(np.zeros((), buffer.dtype.numpy()), buffer.shape)


def effective_bytes(arrays: Sequence[Array | None]) -> int:
    """Return the bytes of the largest operand or result, counting repeated elements once."""
    if all(a is None or a.size <= 16 for a in arrays):
        return 8 * 16 * 16  # an estimate for scalars and the like, of which there are thousands
    present = [a for a in arrays if a is not None]
    largest = max(distinct(a).nbytes for a in present)
    if len(present) > 1:
        # small operands can have a large broadcast, as in an outer sum
        collapsed = [a for a in collapse(present)[0] if a is not None]
        shape = broadcast_shape(*(a.shape for a in collapsed))
        largest = max(largest, math.prod(shape) * max(a.itemsize for a in collapsed))
    return largest


def collapse(
    arrays: Sequence[Array | None],
) -> tuple[Sequence[Array | None], tuple[int, ...] | None]:
    """Cut axes along which no operand varies to extent 1; return the full shape if there are."""
    present = [a for a in arrays if a is not None]
    if all(a.size <= 64 for a in present):
        return arrays, None
    if not any(0 in a.strides for a in present if a.size > 64):
        return arrays, None
    shape = broadcast_shape(*(a.shape for a in present))
    constant = [
        axis
        for axis in range(-len(shape), 0)
        if shape[axis] > 1
        and all(a.ndim < -axis or a.shape[axis] == 1 or a.strides[axis] == 0 for a in present)
    ]
    if not constant:
        return arrays, None
    cut: list[Array | None] = []
    for a in arrays:
        axes = () if a is None else range(-a.ndim, 0)
        once = (*(slice(0, 1) if axis in constant else slice(None) for axis in axes), ...)
        cut.append(None if a is None else a[once])
    return cut, shape
