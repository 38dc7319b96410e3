"""Count the operations of nodes; estimate their work, run one by one or fused to a kernel.

Multiply-accumulates are those of matrix products, convolutions, recurrent ops, attention and
Einsum, without biases, and count as two operations. Ops that only move, copy, select or convert
elements count none. All others count one operation per element that they read or write, whichever
is more; pooling ops count one per element of the window.

Work is measured in bytes that could be read from memory in the same time. A kernel saves the
traffic between ops, and is slower at matrix products; the constants about kernels are measured by
``python -m tests.benchmarks kernels``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import cast

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.symbolic.fact import MOST_ELEMENTS, of_array, of_type
from onnxfold.ops import Trait, ops

NOMINAL = 64
"""Default size of a symbolic dimension."""

NODE = 4096
"""Work of calling an op, which takes a few microseconds, in bytes."""

INPUT = 3 * NODE
"""Work of feeding one more tensor to a session, in bytes, as onnxruntime finds it by its name.
Twenty more inputs make a call of ``InferenceSession.run`` 30 to 40 microseconds longer;
twenty more small nodes 10 to 15."""

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

Shape = tuple[int, ...]
Shapes = list[Shape]

_RECURRENT = ("GRU", "LSTM", "RNN")
_MOVING = (
    *(op for trait in (Trait.MOVES, Trait.REPEATS, Trait.SELECTS, Trait.FREE) for op in ops(trait)),
    *("Cast", "CastLike", "Compress", "DepthToSpace", "ReverseSequence", "SpaceToDepth", "Trilu"),
    *("NonZero", "Scatter", "ScatterElements", "ScatterND", "Where"),
)


class NominalSizes:
    """Shapes and bytes of a model's values.

    Sizes of symbolic dimensions are given by name; the others are `NOMINAL`.
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
                d
                if isinstance(d, int) and d >= 0  # some exporters write -1 for unknown sizes
                else sizes.get(getattr(d, "value", None) or f"{value.name}[{k}]", NOMINAL)
                for k, d in enumerate(value.shape)
            )
            fact = of_type(dtype, shape, self._facts.algebra)
            is_short = math.prod(shape) <= MOST_ELEMENTS and dtype != ir.DataType.STRING
            if is_short and facts.constness.of(value) is Constness.RUNTIME:
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
    return NODE + (8 if node.op_type in _HEAVY else 2) * max(nbytes, _bytes(node.inputs, sizes))


def is_expanding(node: ir.Node, sizes: NominalSizes) -> bool:
    """Return whether the node only repeats elements and so makes more bytes than it reads."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _SELECTING:
        return _bytes(node.outputs, sizes) > _bytes(node.inputs, sizes)
    return node.op_type in _EXPANDING


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
        before, after = _bytes(node.inputs, sizes), _bytes(node.outputs, sizes)
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


def operations_of(
    node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
) -> tuple[int, int] | None:
    """Return the multiply-accumulates and the operations of an ONNX op, if its sizes are known."""
    if node.domain != "":
        return None
    if node.op_type in _MOVING:
        return 0, 0
    read = [None if v is None else shape_of(v) for v in node.inputs]
    made = [shape_of(v) for v in node.outputs]
    try:
        macs = _multiplied(node, cast(Shapes, read), cast(Shapes, made))
    except (IndexError, TypeError, ValueError):  # a shape is unknown, or an operand is missing
        return None
    if macs is not None:
        return macs, 2 * macs
    there = [v is not None and bool(v.name) for v in (*node.inputs, *node.outputs)]
    shapes = [shape for shape, is_there in zip((*read, *made), there, strict=True) if is_there]
    counts = [math.prod(shape) for shape in shapes if shape is not None]
    if node.op_type in ops(Trait.UNBOUNDED) or len(counts) < len(shapes):
        return None
    if node.op_type in ops(Trait.POOLS):
        return 0, math.prod(made[0] or ()) * math.prod(node.attributes["kernel_shape"].as_ints())
    return 0, max(counts)


def _multiplied(node: ir.Node, read: Shapes, made: Shapes) -> int | None:
    """Return the multiply-accumulates; None for an op without any."""
    op = node.op_type
    if op in ops(Trait.MULTIPLIES):  # each element of the result is a sum of this many products
        axis = 0 if node.attributes.get_int("transA", 0) else -1
        return math.prod(made[0]) * read[0][axis]
    if op == "ConvTranspose":  # each operand element is multiplied by its channel's weights
        return math.prod(read[0]) * math.prod(read[1][1:])
    if op in ops(Trait.CONVOLVES) or op == "DeformConv":
        return math.prod(made[0]) * math.prod(read[3 if op == "QLinearConv" else 1][1:])
    if op in _RECURRENT:  # at each step, each row is multiplied by all weights of W and R
        return math.prod(read[0][:2]) * (math.prod(read[1]) + math.prod(read[2]))
    if op == "Attention":  # elements of queries and results are multiplied by all keys or values
        past = read[4][-2] if len(read) > 4 and node.inputs[4] is not None else 0
        return (math.prod(read[0]) + math.prod(made[0])) * (read[1][-2] + past)
    if op == "Einsum":  # the product of all index ranges; one operand needs no multiplication
        equation = node.attributes["equation"].as_string().replace(" ", "")
        labels = equation.partition("->")[0].split(",")
        sizes: dict[str, int] = {}
        for term, shape in zip(labels, read, strict=True):
            sizes.update(zip(term, shape, strict=True))
        return math.prod(sizes.values()) if len(labels) > 1 else 0
    return None
