"""Sizes of the values that depend on runtime constants, at nominal sizes of dynamic dimensions.

What a cut saves and costs has to be compared before any runtime constant is known. So every
symbolic dimension gets a nominal size, small runtime constants become zeros, and shapes follow.
Nothing of this decides what a model computes, only where it is cut.

The work of an op is told in the bytes of memory that could be read meanwhile: one scale for bytes
and for time lets the frontier weigh one against the other. It is coarse: a core reads about as many
bytes as it does a tenth of its floating-point operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.arithmetic import macs_of
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.analysis.symbolic.fact import MOST_ELEMENTS, UNKNOWN, Fact, of_array, of_type
from onnxfold.ops import Trait, ops

NOMINAL = 64
"""Size of a symbolic dimension that the caller names no size for."""

NODE = 4096
"""Calling an op takes a few microseconds, whatever it does."""

_BYTES_PER_FLOP = 0.125

_EXPANDING, _SELECTING, _FREE = map(ops, (Trait.REPEATS, Trait.SELECTS, Trait.FREE))
_PRODUCTS = (*ops(Trait.MULTIPLIES), *ops(Trait.CONVOLVES))
_HEAVY, _UNKNOWN = map(ops, (Trait.HEAVY, Trait.UNBOUNDED))


class NominalSizes:
    """Shapes and bytes of a model's values.

    Args:
        model: The model, sorted.
        runtime_constants: Inputs of its graph.
        nominal: Sizes of symbolic dimensions by name; the others are `NOMINAL`.
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
                # a single integer is a length or a count; zeros would make empty tables of it
                fill = NOMINAL if dtype.is_integer() and math.prod(shape) == 1 else 0
                fact = of_array(np.full(shape, fill).astype(dtype.numpy()), dtype)
            self._facts.set(value, fact)

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the nominal shape; None if it is not known or the value is no tensor."""
        fact = self._fact(value)
        return None if fact.other is not None else fact.static_shape

    def nbytes(self, value: ir.Value) -> int | None:
        """Nominal bytes; None if they are not known or the value is no tensor of numbers."""
        shape, dtype = self.shape(value), self._fact(value).dtype
        if shape is None or dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
            return None
        return storage.data_bytes(dtype, shape)

    def _fact(self, value: ir.Value) -> Fact:
        try:
            return self._facts.of(value)
        except Exception:  # an op need not take the stand-ins: an axis of 64, say
            self._facts.set(value, UNKNOWN)
            return UNKNOWN


def work_of(node: ir.Node, sizes: NominalSizes) -> float:
    """Return the bytes that weigh as much as running the node once."""
    nbytes = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    if is_expanding(node, sizes) or node.op_type in _FREE:
        return NODE
    if node.op_type in _PRODUCTS:
        return NODE + nbytes + _BYTES_PER_FLOP * 2 * (macs_of(node, sizes.shape) or 0)
    if node.op_type in _UNKNOWN:
        return NODE + 64 * nbytes
    return NODE + (8 if node.op_type in _HEAVY else 2) * max(nbytes, _read(node, sizes))


def is_expanding(node: ir.Node, sizes: NominalSizes) -> bool:
    """Return whether the node only repeats elements, and so makes more bytes than it is given."""
    if node.domain not in ("", "ai.onnx"):
        return False
    made = sum(sizes.nbytes(v) or 0 for v in node.outputs)
    selects_more = node.op_type in _SELECTING and made > _read(node, sizes)
    return node.op_type in _EXPANDING or selects_more


def _read(node: ir.Node, sizes: NominalSizes) -> int:
    return sum(sizes.nbytes(v) or 0 for v in node.inputs if v is not None)
