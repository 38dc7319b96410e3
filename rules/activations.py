"""Activations that exporters spell out, as the standard ops that there are at the model's opset.

Every one of these ops rounds its own way, so all rules here are for level 2, and the set is used
only if it is asked for: a runtime may have no fast kernel for the younger ops.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from onnxfold.rules.numbers import near, number, number_of

from onnxfold.rewrite import (
    any_of,
    constants,
    dtype_of,
    filled,
    floating,
    is_scalar_like,
    op,
    result,
    rule,
    same_shape,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.predicates import Predicate, as_predicate

OPTIONAL = True

x = values("x")
c, d, r, k = constants("c d r k")


def _scaled_by(scaling: Any, factor: float) -> Predicate:
    """The op variable multiplies by, or divides ``r`` by the reciprocal of, the factor."""

    def scaled_by(match: Match) -> bool:
        found = number(match, r)
        if found is None or not found:
            return False
        divides = match.node(scaling).op_type == "Div"
        return math.isclose(1 / found if divides else found, factor, rel_tol=1e-3)

    return as_predicate(scaled_by)


# onnxruntime has no kernels of most of the ops for double
_whole = same_shape(x, result) & floating(x) & (dtype_of(x) != ir.DataType.DOUBLE)

# -------------------------------------------------------------------- Gelu

_scaling = op.any_of("Div", "Mul")
_erf = op.Add(op.Erf(_scaling(x, r)), filled(1))

gelu_by_erf = any_of(
    op.Mul(op.Mul(x, _erf), filled(0.5)),
    op.Mul(x, op.Mul(_erf, filled(0.5))),
    op.Mul(op.Mul(x, filled(0.5)), _erf),
)
"""x * (1 + erf(x / sqrt(2))) / 2, in any order."""

is_gelu_by_erf = _whole & _scaled_by(_scaling, math.sqrt(0.5))

_cubes = any_of(
    op.Pow(x, filled(3)),
    op.Mul(op.Mul(x, x), x),
)
_tanh = op.Add(
    op.Tanh(
        any_of(
            op.Mul(op.Add(x, op.Mul(_cubes, c)), k),
            op.Mul(op.Mul(x, k), op.Add(op.Mul(op.Mul(x, x), c), filled(1))),
            op.Mul(op.Mul(x, k), op.Add(op.Mul(op.Mul(x, c), x), filled(1))),
        )
    ),
    filled(1),
)

gelu_by_tanh = any_of(
    op.Mul(op.Mul(x, _tanh), filled(0.5)),
    op.Mul(x, op.Mul(_tanh, filled(0.5))),
    op.Mul(op.Mul(x, filled(0.5)), _tanh),
)
"""x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2, in any order."""

is_gelu_by_tanh = _whole & near(c, 0.044715) & near(k, math.sqrt(2 / math.pi))

gelu = rule(
    gelu_by_erf >> op.Gelu(x),
    where=is_gelu_by_erf,
    opset=(20, None),
    inexact=True,
    doc="Gelu, spelled out with Erf.",
)

gelu_tanh = rule(
    gelu_by_tanh >> op.Gelu(x, approximate="tanh"),
    where=is_gelu_by_tanh,
    opset=(20, None),
    inexact=True,
    doc="Gelu's approximation, spelled out with Tanh.",
)

# -------------------------------------------------------------------- sigmoids

sigmoid = rule(
    any_of(
        op.Reciprocal(op.Add(op.Exp(op.Neg(x)), filled(1))),
        op.Div(filled(1), op.Add(op.Exp(op.Neg(x)), filled(1))),
    )
    >> op.Sigmoid(x),
    where=_whole,
    inexact=True,
    doc="1 / (1 + exp(-x)).",
)

swish = rule(
    op.Mul(x, op.Sigmoid(x)) >> op.Swish(x),
    opset=(24, None),
    inexact=True,
    doc="x * sigmoid(x).",
)

swish_scaled = rule(
    op.Mul(x, op.Sigmoid(op.Mul(x, k))) >> op.Swish(x, alpha=number_of(k)),
    where=_whole & is_scalar_like(k),
    opset=(24, None),
    inexact=True,
    doc="x * sigmoid(k x).",
)

_clipped = any_of(
    op.Clip(op.Add(x, filled(3)), filled(0), filled(6)),
    op.Min(op.Max(op.Add(x, filled(3)), filled(0)), filled(6)),
    op.Min(op.Relu(op.Add(x, filled(3))), filled(6)),
)

_sixth = 1 / 6

hard_sigmoid = [
    rule(
        pattern >> op.HardSigmoid(x, alpha=_sixth, beta=0.5),
        where=_whole & condition,
        inexact=True,
        opset=(8, None),
        doc="min(max(x + 3, 0), 6) / 6.",
    )
    for pattern, condition in (
        (op.Div(_clipped, filled(6)), _whole),
        (op.Mul(_clipped, c), near(c, _sixth)),
    )
]

hard_sigmoid_of_line = rule(
    op.Clip(op.Add(op.Mul(x, c), d), filled(0), filled(1))
    >> op.HardSigmoid(x, alpha=number_of(c), beta=number_of(d)),
    where=_whole & is_scalar_like(c) & is_scalar_like(d),
    inexact=True,
    opset=(11, None),
    doc="min(max(c x + d, 0), 1).",
)

hard_swish = rule(
    op.Mul(x, op.HardSigmoid(x, alpha=_sixth, beta=0.5)) >> op.HardSwish(x),
    opset=(14, None),
    inexact=True,
    doc="x * HardSigmoid(x).",
)

hard_swish_spelled_out = [
    rule(
        pattern >> op.HardSwish(x),
        where=_whole & condition,
        opset=(14, None),
        inexact=True,
        doc="x * min(max(x + 3, 0), 6) / 6.",
    )
    for pattern, condition in (
        (op.Div(op.Mul(x, _clipped), filled(6)), _whole),
        (op.Mul(op.Mul(x, _clipped), c), near(c, _sixth)),
        (op.Mul(op.Div(x, filled(6)), _clipped), _whole),
    )
]

# -------------------------------------------------------------------- softplus and its kind

softplus = rule(
    op.Log(op.Add(op.Exp(x), filled(1))) >> op.Softplus(x),
    where=_whole,
    inexact=True,
    doc="log(1 + exp(x)); without its overflow.",
)

mish = rule(
    op.Mul(x, op.Tanh(op.Softplus(x))) >> op.Mish(x),
    opset=(18, None),
    inexact=True,
    doc="x * tanh(softplus(x)).",
)

softsign = rule(
    op.Div(x, op.Add(op.Abs(x), filled(1))) >> op.Softsign(x),
    where=_whole,
    inexact=True,
    doc="x / (1 + |x|).",
)

# -------------------------------------------------------------------- leaks


def _between_zero_and_one(match: Match) -> bool:
    found = number(match, c)
    return found is not None and 0 < found < 1


leaky_relu = rule(
    op.Where(op.Greater(x, filled(0)), x, op.Mul(x, c)) >> op.LeakyRelu(x, alpha=number_of(c)),
    where=_whole & is_scalar_like(c),
    opset=(9, None),
    inexact=True,
    doc="x where it is positive, c x elsewhere.",
)

leaky_relu_by_max = rule(
    op.Max(x, op.Mul(x, c)) >> op.LeakyRelu(x, alpha=number_of(c)),
    where=_whole & _between_zero_and_one,
    opset=(8, None),
    inexact=True,
    doc="max(x, c x) for c from 0 to 1.",
)


def _slopes(match: Match) -> bool:
    """PRelu's slope broadcasts to x and does not raise its rank."""
    shape, rank = match.static_shape(c), match.rank(x)
    return shape is not None and rank is not None and len(shape) <= rank


parametric_relu = rule(
    op.Sub(op.Relu(x), op.Mul(c, op.Relu(op.Neg(x)))) >> op.PRelu(x, c),
    where=_whole & _slopes,
    opset=(9, None),
    inexact=True,
    doc="x where it is positive, c x elsewhere.",
)

elu = rule(
    op.Where(op.Greater(x, filled(0)), x, op.Mul(op.Sub(op.Exp(x), filled(1)), c))
    >> op.Elu(x, alpha=number_of(c)),
    where=_whole & is_scalar_like(c),
    opset=(9, None),
    inexact=True,
    doc="x where it is positive, c (exp(x) - 1) elsewhere.",
)
