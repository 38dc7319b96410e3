"""Element-wise ops that others can be moved past: conditions of other rule sets (no rules here)."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.kernels.anywhere import EXACT_ANYWHERE as EXACT_ANYWHERE
from onnxfold.kernels.anywhere import ORDERING, VECTORIZED
from onnxfold.rewrite import Matched, given

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
    return unary.op_type not in ORDERING or x.dtype != ir.DataType.INT64


@given
def depends_on_place(unary: Matched, x: Matched) -> bool:
    """What the op makes of an element of x depends on the element's place.

    Args:
        unary: An op of ``EXACT_ANYWHERE`` and ``VECTORIZED``.
        x: A value with the dtype that is computed with.
    """
    return unary.op_type in VECTORIZED and x.dtype != ir.DataType.FLOAT
