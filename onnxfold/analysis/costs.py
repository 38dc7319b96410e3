"""The number of operations of nodes, and estimates of the work of single and fused nodes.

Matrix products, convolutions, recurrent ops, attention and Einsum have multiply-accumulates, which
count as two operations. Biases are not counted. Ops that only move, copy, select or convert
elements have no operations. A pooling op has one operation for each element of the window and each
element of the result. All other ops of the ONNX domain have one operation for each element of the
largest operand or result, unless the number is unknown.

The work of an op is the number of bytes that could be read from memory in the same time. A compiled
kernel of several nodes saves the memory traffic between their ops, but computes matrix products
more slowly than onnxruntime. ``python -m tests.benchmarks kernels`` measures the constants for
kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.ir.symbolic.fact import MAX_TRACKED_ELEMENTS, of_array, of_type
from onnxfold.ops import Trait, Work, definition_of
from onnxfold.ops.application import INVALID_NODE_ERRORS
from onnxfold.ops.definition import OMITTED

NOMINAL = 64
"""The size of symbolic dimensions in estimates, unless the caller provides another size."""

NODE = 4096
"""Work of calling an op, in bytes. A call takes a few microseconds."""

INPUT = 3 * NODE
"""Work of feeding one more tensor to a session, in bytes.

onnxruntime looks up each input by name. A call of ``InferenceSession.run`` takes 30 to 40
microseconds more with twenty more inputs, and 10 to 15 more with twenty more small nodes."""

BYTES_PER_FLOP = 0.125
"""Work of each floating-point operation of a product in onnxruntime, in bytes."""

_PRODUCTS = Trait.MULTIPLIES | Trait.CONVOLVES

KERNEL_BYTES_PER_FLOP = 2 * BYTES_PER_FLOP
"""Work of each floating-point operation of a product in a compiled kernel, in bytes."""

# Work of running a node in onnxruntime, for each byte of its operands or results.
_ELEMENTS = 2  # ops with few operations per element
_HEAVY_ELEMENTS = 8  # ops with many operations per element (`Trait.HEAVY`)
_UNBOUNDED = 64  # ops with an unknown number of operations (`Trait.UNBOUNDED`)

HEAVY = 1.0
"""Work of the operations of Exp, Tanh and similar ops, for each byte of operands or results.

It is the same in onnxruntime and in a compiled kernel."""

Shape = tuple[int, ...]


class NominalSizes:
    """Estimated shapes of a model's values, and their sizes in bytes.

    ``nominal`` maps the names of symbolic dimensions of inputs to sizes. A dimension without a name
    has the name ``input[axis]``. All other symbolic dimensions of inputs have the size `NOMINAL`.
    """

    def __init__(self, facts: ModelFacts, nominal: Mapping[str, int] | None = None) -> None:
        self._facts = facts.new_types()
        inputs = facts.model.graph.inputs
        sizes = nominal or {}
        for value in inputs:
            if not isinstance(value.type, ir.TensorType) or value.shape is None:
                continue
            dtype = value.type.dtype
            shape = tuple(
                _nominal_size(dim, f"{value.name}[{k}]", sizes) for k, dim in enumerate(value.shape)
            )
            fact = of_type(dtype, shape, self._facts.algebra)
            is_short = math.prod(shape) <= MAX_TRACKED_ELEMENTS and dtype != ir.DataType.STRING
            if is_short and facts.constness.of(value) is Constness.RUNTIME:
                # A single integer is often a length or a count. With 0, many shapes would be empty.
                fill = NOMINAL if dtype.is_integer() and math.prod(shape) == 1 else 0
                fact = of_array(np.full(shape, fill).astype(dtype.numpy()), dtype)
            self._facts.set(value, fact)

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the nominal shape; None if it is unknown or the value is not a tensor."""
        fact = self._facts.of(value)
        return None if fact.type_proto is not None else fact.static_shape

    def nbytes(self, value: ir.Value) -> int | None:
        """Return the nominal size in bytes.

        The result is None if the size is unknown, or the value is not a numeric tensor.
        """
        shape = self.shape(value)
        dtype = self._facts.of(value).dtype
        if shape is None or dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
            return None
        return storage.data_bytes(dtype, shape)


def _nominal_size(dim: int | ir.SymbolicDim, default_name: str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int) and dim >= 0:  # some exporters write -1 for unknown sizes
        return dim
    return sizes.get(getattr(dim, "value", None) or default_name, NOMINAL)


def work_of(node: ir.Node, sizes: NominalSizes) -> float:
    """Return the work of running the node once in onnxruntime, in bytes."""
    traits = definition_of(node).traits
    nbytes = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    if is_expanding(node, sizes) or Trait.FREE in traits:
        return NODE
    if traits & _PRODUCTS:
        return NODE + nbytes + BYTES_PER_FLOP * _flops(node, sizes)
    if Trait.UNBOUNDED in traits:
        return NODE + _UNBOUNDED * nbytes
    if Trait.SELECTS in traits:  # only the selected elements of the operand are read
        return NODE + _ELEMENTS * nbytes
    factor = _HEAVY_ELEMENTS if Trait.HEAVY in traits else _ELEMENTS
    return NODE + factor * max(nbytes, _bytes(node.inputs, sizes))


def _flops(node: ir.Node, sizes: NominalSizes) -> int:
    """Return the number of operations of a node; 0 if the number is unknown."""
    work = operations_of(node, sizes.shape)
    return 0 if work is None else work.operations


def is_expanding(node: ir.Node, sizes: NominalSizes) -> bool:
    """Return whether the node repeats elements.

    A node that selects elements repeats some of them if it writes more bytes than it reads.
    """
    traits = definition_of(node).traits
    if Trait.SELECTS in traits:
        return _bytes(node.outputs, sizes) > _bytes(node.inputs, sizes)
    return Trait.REPEATS in traits


def work_fused(
    nodes: Collection[ir.Node],
    read: Iterable[ir.Value],
    outputs: Iterable[ir.Value],
    sizes: NominalSizes,
) -> tuple[float, float]:
    """Return the work of nodes in onnxruntime, and of a compiled kernel that fuses them, in bytes.

    The work of calls is not included. The kernel reads the values in ``read`` and writes the
    outputs. Both numbers are infinite if the number of operations of a node is unknown.
    """
    if any(Trait.UNBOUNDED in definition_of(node).traits for node in nodes):
        return math.inf, math.inf
    single = 0.0
    fused = float(_bytes(read, sizes) + _bytes(outputs, sizes))
    for node in nodes:
        traits = definition_of(node).traits
        if Trait.FREE in traits:
            continue
        before = _bytes(node.inputs, sizes)
        after = _bytes(node.outputs, sizes)
        # Results count twice, because onnxruntime writes them into new memory. A kernel reuses the
        # memory of earlier results.
        single += before + 2 * after
        fused += before if Trait.REREADS in traits else 0
        if traits & _PRODUCTS:
            flops = _flops(node, sizes)
            single += BYTES_PER_FLOP * flops
            fused += KERNEL_BYTES_PER_FLOP * flops
        elif Trait.HEAVY in traits:
            single += HEAVY * max(before, after)
            fused += HEAVY * max(before, after)
    return single, fused


def _bytes(values: Iterable[ir.Value | None], sizes: NominalSizes) -> int:
    return sum(sizes.nbytes(v) or 0 for v in values if v is not None)


def operations_of(node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]) -> Work | None:
    """Return the number of operations of a node.

    The result is None if a required shape or the number is unknown, or the node is invalid.
    """
    inputs = [_shape(value, shape_of) for value in node.inputs]
    outputs = [_shape(value, shape_of) for value in node.outputs]
    try:
        # an unknown shape is None, so a definition that reads it raises TypeError
        return definition_of(node).cost(
            cast(list[Shape], inputs), cast(list[Shape], outputs), node.attributes
        )
    except INVALID_NODE_ERRORS:
        return None


def _shape(value: ir.Value | None, shape_of: Callable[[ir.Value], Shape | None]) -> Shape | None:
    return shape_of(value) if value is not None and value.name else OMITTED
