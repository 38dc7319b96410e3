"""Element-wise ops that others can be moved past: terms of other rule sets (no rules here)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite import dtype_of
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.predicates import Predicate, as_predicate

EXACT_ANYWHERE = (
    *("Abs", "Cast", "Ceil", "Floor", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sign", "Sqrt"),
)
"""Element-wise ops whose results do not depend on an element's place; but see `well_ordered`."""

VECTORIZED = ("Erf", "Exp", "Gelu", "Sigmoid", "Tanh")
"""In float32 neither do these. Log, Sin, Cos, Softplus, Elu and others do on onnxruntime: the last
few elements, which fill no vector register, are computed by other code."""

BINARY = ("Add", "Div", "Mul", "Sub")


def well_ordered(x: Any) -> Predicate:
    """Of two numbers of its dtype onnxruntime finds the greater one.

    Of int64 it does not always: in vector registers it takes the lower half for a signed number.
    So what Max, Min, Clip, Relu and Sign make of those depends on an element's place.
    """
    return dtype_of(x) != ir.DataType.INT64


def may_move(unary: Any, x: Any) -> Predicate:
    """The op variable stands for an op that finds no wrong order in x: see `well_ordered`."""
    return as_predicate(lambda m: m.node(unary).op_type not in ("Relu", "Sign")) | well_ordered(x)


def depends_on_place(unary: Any, of: Any) -> Callable[[Match], bool]:
    """The op variable stands for an op whose results depend on an element's place, for that dtype.

    Args:
        unary: An op variable of ``EXACT_ANYWHERE`` and ``VECTORIZED``.
        of: A value with the dtype that is computed with.
    """

    def is_vectorized(match: Match) -> bool:
        node = match.node(unary)
        return node.op_type in VECTORIZED and match.dtype(of) != ir.DataType.FLOAT

    return is_vectorized
