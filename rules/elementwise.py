"""Element-wise ops that others can be moved past: conditions of other rule sets (no rules here)."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.rewrite import Matched, given

EXACT_ANYWHERE = (
    *("Abs", "Cast", "Ceil", "Floor", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sign", "Sqrt"),
)
"""Element-wise ops whose results do not depend on an element's place; but see `well_ordered`."""

VECTORIZED = ("Erf", "Exp", "Gelu", "Sigmoid", "Tanh")
"""In float32 neither do these. Log, Sin, Cos, Softplus, Elu and others do on onnxruntime: the last
few elements, which fill no vector register, are computed by other code."""

BINARY = ("Add", "Div", "Mul", "Sub")


@given
def well_ordered(x: Matched) -> bool:
    """Of two numbers of its dtype onnxruntime finds the greater one.

    Of int64 it does not always: in vector registers it takes the lower half for a signed number.
    So what Max, Min, Clip, Relu and Sign make of those depends on an element's place.
    """
    return x.dtype != ir.DataType.INT64


@given
def may_move(unary: Matched, x: Matched) -> bool:
    """The op finds no wrong order in x: see `well_ordered`."""
    return unary.op_type not in ("Relu", "Sign") or x.dtype != ir.DataType.INT64


@given
def depends_on_place(unary: Matched, x: Matched) -> bool:
    """What the op makes of an element of x depends on the element's place.

    Args:
        unary: An op of ``EXACT_ANYWHERE`` and ``VECTORIZED``.
        x: A value with the dtype that is computed with.
    """
    return unary.op_type in VECTORIZED and x.dtype != ir.DataType.FLOAT
