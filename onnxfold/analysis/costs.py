"""Estimate the work of nodes at nominal sizes, run one by one or fused to a compiled kernel.

Work is measured in bytes that could be read from memory in the same time. This is coarse: a core
reads one byte in the time of about ten floating-point operations. A kernel saves the traffic
between ops: it reads operands once and writes results once. It is slower at matrix products. The
constants about kernels are measured by ``python -m tests.benchmarks kernels``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.operation_counts import operations_of
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.analysis.symbolic.fact import MOST_ELEMENTS, of_array, of_type
from onnxfold.ops import Trait, ops

NOMINAL = 64
"""Default size of a symbolic dimension."""

NODE = 4096
"""Work of calling an op, which takes a few microseconds, in bytes."""

BYTES_PER_FLOP = 0.125
"""Bytes for each floating-point operation of a product."""

_EXPANDING, _SELECTING, _FREE = map(ops, (Trait.REPEATS, Trait.SELECTS, Trait.FREE))
_PRODUCTS = (*ops(Trait.MULTIPLIES), *ops(Trait.CONVOLVES))
_HEAVY, _UNKNOWN = map(ops, (Trait.HEAVY, Trait.UNBOUNDED))

KERNEL_BYTES_PER_FLOP = 2 * BYTES_PER_FLOP
"""The same in a kernel."""

HEAVY = 1.0
"""Bytes for each byte of an operand of Exp, Tanh and the like, fused or not."""

_REREAD = (*ops(Trait.REDUCES), "Transpose", "Softmax", "LogSoftmax", "LayerNormalization")
"""Ops of which a kernel reads the operand once more, or stores the result."""


class NominalSizes:
    """Shapes and bytes of a model's values.

    Sizes of symbolic dimensions are given by name; the others are `NOMINAL`.
    """

    def __init__(
        self,
        model: ir.Model,
        runtime_constants: Collection[ir.Value],
        nominal: Mapping[str, int] | None = None,
    ) -> None:
        self._facts = SymbolicAnalysis(model)
        inputs = model.graph.inputs
        sizes = nominal or {}
        for value in inputs:
            if not isinstance(value.type, ir.TensorType) or value.shape is None:
                continue
            dtype = value.type.dtype
            shape = tuple(
                d if isinstance(d, int) else sizes.get(d.value or f"{value.name}[{k}]", NOMINAL)
                for k, d in enumerate(value.shape)
            )
            fact = of_type(dtype, shape, self._facts.algebra)
            is_short = math.prod(shape) <= MOST_ELEMENTS and dtype != ir.DataType.STRING
            if value in runtime_constants and is_short:
                # a single integer is a length or a count; zero would make tables empty
                fill = NOMINAL if dtype.is_integer() and math.prod(shape) == 1 else 0
                fact = of_array(np.full(shape, fill).astype(dtype.numpy()), dtype)
            self._facts.set(value, fact)

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the nominal shape; None if it is not known or the value is no tensor."""
        fact = self._facts.of(value)
        return None if fact.other is not None else fact.static_shape

    def nbytes(self, value: ir.Value) -> int | None:
        """Return the nominal bytes; None if unknown or if the value is no tensor of numbers."""
        shape, dtype = self.shape(value), self._facts.of(value).dtype
        if shape is None or dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
            return None
        return storage.data_bytes(dtype, shape)


def work_of(node: ir.Node, sizes: NominalSizes) -> float:
    """Return the work of running the node once, in bytes."""
    nbytes = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    if is_expanding(node, sizes) or node.op_type in _FREE:
        return NODE
    if node.op_type in _PRODUCTS:
        _, flops = operations_of(node, sizes.shape) or (0, 0)
        return NODE + nbytes + BYTES_PER_FLOP * flops
    if node.op_type in _UNKNOWN:
        return NODE + 64 * nbytes
    return NODE + (8 if node.op_type in _HEAVY else 2) * max(nbytes, _read(node, sizes))


def is_expanding(node: ir.Node, sizes: NominalSizes) -> bool:
    """Return whether the node only repeats elements and so makes more bytes than it reads."""
    if node.domain not in ("", "ai.onnx"):
        return False
    made = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    selects_more = node.op_type in _SELECTING and made > _read(node, sizes)
    return node.op_type in _EXPANDING or selects_more


def _read(node: ir.Node, sizes: NominalSizes) -> int:
    return _bytes(node.inputs, sizes)


def work_fused(
    nodes: Collection[ir.Node],
    read: Iterable[ir.Value],
    outputs: Iterable[ir.Value],
    sizes: NominalSizes,
) -> tuple[float, float]:
    """Return the work of nodes that run one by one, and of a kernel that fuses them.

    Both are infinite if the work of a node is not known. The kernel reads the values in ``read``
    and writes the outputs.
    """
    if any(node.op_type in _UNKNOWN for node in nodes):
        return math.inf, math.inf
    single, fused = 0.0, float(_bytes(read, sizes) + _bytes(outputs, sizes))
    for node in (node for node in nodes if node.op_type not in _FREE):
        before, after = _read(node, sizes), _bytes(node.outputs, sizes)
        # onnxruntime writes into new memory, a kernel into the memory of earlier results
        single += before + 2 * after
        fused += before if node.op_type in _REREAD else 0
        if node.op_type in _PRODUCTS:
            _, flops = operations_of(node, sizes.shape) or (0, 0)
            single += BYTES_PER_FLOP * flops
            fused += KERNEL_BYTES_PER_FLOP * flops
        elif node.op_type in _HEAVY:
            single += HEAVY * max(before, after)
            fused += HEAVY * max(before, after)
    return single, fused


def _bytes(values: Iterable[ir.Value | None], sizes: NominalSizes) -> int:
    return sum(sizes.nbytes(v) or 0 for v in values if v is not None)
