"""Activations that exporters spell out, as the standard ops that there are at the model's opset.

Every one of these ops rounds its own way, so all rules here are for level 2, and the set is used
only if it is asked for: a runtime may have no fast kernel for the younger ops.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxfold.rewrite import (
    any_of,
    constants,
    dtype_of,
    filled,
    floating,
    known,
    near,
    number,
    op,
    rank_of,
    result,
    rule,
    same_shape,
    values,
)

OPTIONAL = True

x = values("x")
c, d, k = constants("c d k")

# onnxruntime has no kernels of most of the ops for double
is_spelled_out = same_shape(x, result) & floating(x) & (dtype_of(x) != ir.DataType.DOUBLE)

# -------------------------------------------------------------------- Gelu

_root = math.sqrt(2)
_erf = op.Add(op.Erf(any_of(op.Div(x, near(_root)), op.Mul(x, near(1 / _root)))), filled(1))

gelu_by_erf = any_of(
    op.Mul(op.Mul(x, _erf), filled(0.5)),
    op.Mul(x, op.Mul(_erf, filled(0.5))),
    op.Mul(op.Mul(x, filled(0.5)), _erf),
)
"""x * (1 + erf(x / sqrt(2))) / 2, in any order."""

_cubes = any_of(
    op.Pow(x, filled(3)),
    op.Mul(op.Mul(x, x), x),
)
_third, _outer = near(0.044715), near(math.sqrt(2 / math.pi))
_tanh = op.Add(
    op.Tanh(
        any_of(
            op.Mul(op.Add(x, op.Mul(_cubes, _third)), _outer),
            op.Mul(op.Mul(x, _outer), op.Add(op.Mul(op.Mul(x, x), _third), filled(1))),
            op.Mul(op.Mul(x, _outer), op.Add(op.Mul(op.Mul(x, _third), x), filled(1))),
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

gelu = rule(
    gelu_by_erf >> op.Gelu(x),
    where=is_spelled_out,
    opset=(20, None),
    inexact=True,
    doc="Gelu, spelled out with Erf.",
)

gelu_tanh = rule(
    gelu_by_tanh >> op.Gelu(x, approximate="tanh"),
    where=is_spelled_out,
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
    where=is_spelled_out,
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
    op.Mul(x, op.Sigmoid(op.Mul(x, k))) >> op.Swish(x, alpha=number(k)),
    where=is_spelled_out & known(number(k)),
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

hard_sigmoid = rule(
    any_of(op.Div(_clipped, filled(6)), op.Mul(_clipped, near(_sixth)))
    >> op.HardSigmoid(x, alpha=_sixth, beta=0.5),
    where=is_spelled_out,
    inexact=True,
    opset=(8, None),
    doc="min(max(x + 3, 0), 6) / 6.",
)

hard_sigmoid_of_line = rule(
    op.Clip(op.Add(op.Mul(x, c), d), filled(0), filled(1))
    >> op.HardSigmoid(x, alpha=number(c), beta=number(d)),
    where=is_spelled_out & known(number(c), number(d)),
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

hard_swish_spelled_out = rule(
    any_of(
        op.Div(op.Mul(x, _clipped), filled(6)),
        op.Mul(op.Mul(x, _clipped), near(_sixth)),
        op.Mul(op.Div(x, filled(6)), _clipped),
    )
    >> op.HardSwish(x),
    where=is_spelled_out,
    opset=(14, None),
    inexact=True,
    doc="x * min(max(x + 3, 0), 6) / 6.",
)

# -------------------------------------------------------------------- softplus and its kind

softplus = rule(
    op.Log(op.Add(op.Exp(x), filled(1))) >> op.Softplus(x),
    where=is_spelled_out,
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
    where=is_spelled_out,
    inexact=True,
    doc="x / (1 + |x|).",
)

# -------------------------------------------------------------------- leaks

leaky_relu = rule(
    op.Where(op.Greater(x, filled(0)), x, op.Mul(x, c)) >> op.LeakyRelu(x, alpha=number(c)),
    where=is_spelled_out & known(number(c)),
    opset=(9, None),
    inexact=True,
    doc="x where it is positive, c x elsewhere.",
)

leaky_relu_by_max = rule(
    op.Max(x, op.Mul(x, c)) >> op.LeakyRelu(x, alpha=number(c)),
    where=is_spelled_out & (number(c) > 0) & (number(c) < 1),
    opset=(8, None),
    inexact=True,
    doc="max(x, c x) for c from 0 to 1.",
)

parametric_relu = rule(
    op.Sub(op.Relu(x), op.Mul(c, op.Relu(op.Neg(x)))) >> op.PRelu(x, c),
    where=is_spelled_out & (rank_of(c) <= rank_of(x)),
    opset=(9, None),
    inexact=True,
    doc="x where it is positive, c x elsewhere.",
)

elu = rule(
    op.Where(op.Greater(x, filled(0)), x, op.Mul(op.Sub(op.Exp(x), filled(1)), c))
    >> op.Elu(x, alpha=number(c)),
    where=is_spelled_out & known(number(c)),
    opset=(9, None),
    inexact=True,
    doc="x where it is positive, c (exp(x) - 1) elsewhere.",
)
