"""Shape functions of ops that onnxruntime defines: its optimizer and tools around it write them.

One line an op. Here are those whose sizes are an operand's, or follow from operands' sizes as an
ONNX op's do: what only a run determines stays an expression. About others onnxruntime is asked
(``schemas.py``). A test runs each of them at several sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxfold.analysis.symbolic.contraction import transposed_product, window
from onnxfold.analysis.symbolic.elementwise import broadcast_shapes, dequantize, quantize
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, of_type
from onnxfold.analysis.symbolic.generate import range_
from onnxfold.analysis.symbolic.layout import joined_shape, pad
from onnxfold.analysis.symbolic.shape_functions import (
    Application,
    ShapeFunction,
    Undecided,
    fact_of,
    shape_function,
    shape_of,
)

DOMAIN = "com.microsoft"

_Output = Callable[[Application], Fact]


def _like(k: int, dtype_of: int | None = None) -> _Output:
    """The shape of input ``k``, with its dtype or another input's."""

    def output(application: Application) -> Fact:
        dtype = fact_of(application, k if dtype_of is None else dtype_of).dtype
        return of_type(dtype, fact_of(application, k).shape, application.algebra)

    return output


def _broadcast(*operands: int) -> _Output:
    """These inputs broadcast; the result has the dtype of the last one."""

    def output(application: Application) -> Fact:
        shapes = [shape_of(application, k) for k in operands]
        dtype = fact_of(application, operands[-1]).dtype
        return of_type(dtype, broadcast_shapes(application.algebra, shapes), application.algebra)

    return output


def _product(dtype_of: int = 0, *, right: int = 1, dtype: ir.DataType | None = None) -> _Output:
    """A matrix product of the first input and another, transposed if an attribute says so."""

    def output(application: Application) -> Fact:
        shape = transposed_product(application, right)
        found = fact_of(application, dtype_of).dtype if dtype is None else dtype
        return of_type(found, shape, application.algebra)

    return output


def _columns(application: Application) -> Fact:
    """As many columns as the attribute ``N`` says."""
    shape = (*shape_of(application, 0)[:-1], _integer(application, "N"))
    return of_type(fact_of(application, 0).dtype, shape, application.algebra)


def _integer(application: Application, name: str) -> int:
    value = application.attributes.get(name)
    if not isinstance(value, int):
        raise Undecided
    return value


def _quantized_product(application: Application) -> Fact:
    """With a zero point for the result its dtype, without one that of the scales."""
    zero = application.input(8)
    return _product(dtype_of=1 if zero is None else 8, right=3)(application)


def _joined(application: Application) -> Fact:
    """Every third input, from the third on, joined along ``axis``."""
    shapes = [shape_of(application, k) for k in range(2, len(application.inputs), 3)]
    shape = joined_shape(application.algebra, shapes, _integer(application, "axis"))
    return of_type(fact_of(application, 1).dtype, shape, application.algebra)


def _outputs(*outputs: _Output | None) -> ShapeFunction:
    """A shape function that tells of these outputs; None for one of which nothing is said."""

    def apply(application: Application) -> Sequence[Fact]:
        wanted = outputs[: application.n_outputs]
        return [UNKNOWN if output is None else output(application) for output in wanted]

    return apply


SHAPE_FUNCTIONS: dict[str, ShapeFunction] = {
    "BiasGelu": _outputs(_like(0)),
    "DequantizeLinear": dequantize,
    "DynamicQuantizeMatMul": _outputs(_product()),
    "FastGelu": _outputs(_like(0)),
    "FusedConv": window,
    "FusedGemm": _outputs(_product()),
    "FusedMatMul": _outputs(_product()),
    "Gelu": _outputs(_like(0)),
    "Inverse": _outputs(_like(0)),
    "MatMulInteger16": _outputs(_product(dtype=ir.DataType.INT32)),
    "MatMulIntegerToFloat": _outputs(_product(dtype_of=2)),
    "MatMulNBits": _outputs(_columns),
    "NGramRepeatBlock": _outputs(_like(1)),
    "Pad": pad,
    "QGemm": _outputs(_quantized_product),
    "QLinearAdd": _outputs(_broadcast(0, 3)),
    "QLinearConcat": _outputs(_joined),
    "QLinearLeakyRelu": _outputs(_like(0)),
    "QLinearMul": _outputs(_broadcast(0, 3)),
    "QLinearSigmoid": _outputs(_like(0)),
    "QLinearSoftmax": _outputs(_like(0)),
    "QLinearWhere": _outputs(_broadcast(0, 1, 4)),
    "QuantizeLinear": quantize,
    "QuickGelu": _outputs(_like(0)),
    "Range": range_,
    "RotaryEmbedding": _outputs(_like(0)),
    "SkipLayerNormalization": _outputs(_like(0), None, None, _like(0)),
    "SkipSimplifiedLayerNormalization": _outputs(_like(0), None, None, _like(0)),
    "TransposeMatMul": _outputs(_product()),
    "Trilu": _outputs(_like(0)),
}
"""By op of :data:`DOMAIN`."""

for _op_type, _function in SHAPE_FUNCTIONS.items():
    shape_function(_op_type, domain=DOMAIN)(_function)
