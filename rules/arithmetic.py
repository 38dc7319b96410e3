"""Arithmetic that is the same for all numbers, NaN, infinities and both zeros included."""

from __future__ import annotations

from onnxfold.rewrite import (
    broadcasts_to,
    constant,
    constants,
    filled,
    floating,
    integer,
    is_constant,
    op,
    result,
    rule,
    same_shape,
    shape_of,
    single_use,
    static_shape,
    values,
)

x, y = values("x y")
c = constants("c")

_one, _minus_one, _zero, _minus_zero = filled(1), filled(-1), filled(0), filled(-0.0)
_zeros = op.Expand(constant(0, like=x), constant(shape_of(result)))

# -------------------------------------------------------------------- signs

multiply_by_minus_one = rule(
    op.Mul(x, _minus_one) >> op.Neg(x),
    where=broadcasts_to(_minus_one, x),
    doc="x * -1 is -x.",
)

divide_by_minus_one = rule(
    op.Div(x, _minus_one) >> op.Neg(x),
    where=floating(x) & broadcasts_to(_minus_one, x),
    doc="x / -1 is -x; an integer may have no negative.",
)

zero_minus = rule(
    op.Sub(_zero, x) >> op.Neg(x),
    where=~is_constant(x) & broadcasts_to(_zero, x),
    inexact=~integer(x),
    doc="0 - x is -x except that 0.0 - 0.0 is 0.0.",
)

minus_zero_minus = rule(
    op.Sub(_minus_zero, x) >> op.Neg(x),
    where=floating(x) & broadcasts_to(_minus_zero, x),
    doc="-0.0 - x is -x, also for both zeros.",
)

add_negative = rule(op.Add(x, op.Neg(y)) >> op.Sub(x, y), doc="x + -y is x - y.")

subtract_negative = rule(op.Sub(x, op.Neg(y)) >> op.Add(x, y), doc="x - -y is x + y.")

_difference = op.Sub(x, y)

negative_of_difference = rule(
    op.Neg(_difference) >> op.Sub(y, x),
    where=single_use(_difference),
    inexact=~integer(x),
    doc="-(x - y) is y - x, except that 0.0 may become -0.0.",
)

multiply_negatives = rule(op.Mul(op.Neg(x), op.Neg(y)) >> op.Mul(x, y), doc="-x * -y is x * y.")

divide_negatives = rule(
    op.Div(op.Neg(x), op.Neg(y)) >> op.Div(x, y),
    where=floating(x),
    doc="-x / -y is x / y.",
)

_negative = op.Neg(x)

negative_times_constant = rule(
    op.Mul(_negative, c) >> op.Mul(x, op.Neg(c)),
    where=single_use(_negative),
    doc="-x * c is x * -c.",
)

negative_by_constant = rule(
    op.Div(_negative, c) >> op.Div(x, op.Neg(c)),
    where=floating(x) & single_use(_negative),
    doc="-x / c is x / -c.",
)

_product, _quotient = op.Mul(x, c), op.Div(x, c)

negative_of_product = rule(
    op.Neg(_product) >> op.Mul(x, op.Neg(c)),
    where=single_use(_product),
    doc="-(x * c) is x * -c.",
)

negative_of_quotient = rule(
    op.Neg(_quotient) >> op.Div(x, op.Neg(c)),
    where=floating(x) & single_use(_quotient),
    doc="-(x / c) is x / -c.",
)

absolute_of_absolute = rule(op.Abs(op.Abs(x)) >> op.Abs(x), doc="| |x| | is |x|.")

absolute_of_negative = rule(op.Abs(op.Neg(x)) >> op.Abs(x), doc="|-x| is |x|.")

square_of_absolute = rule(op.Mul(op.Abs(x), op.Abs(x)) >> op.Mul(x, x), doc="|x| * |x| is x * x.")

sign_of_sign = rule(op.Sign(op.Sign(x)) >> op.Sign(x), doc="The sign of a sign is that sign.")

_rounding, _rounded = op.any_of("Floor", "Ceil", "Round"), op.any_of("Floor", "Ceil", "Round")
_whole = _rounded(x)

rounding_of_rounded = rule(_rounding(_whole) >> _whole, doc="A whole number is rounded to itself.")

# -------------------------------------------------------------------- integers

subtract_itself = rule(
    op.Sub(x, x) >> _zeros,
    where=integer(x) & static_shape(result),
    opset=(7, None),
    doc="x - x is 0; of integers only, as inf - inf is not.",
)

multiply_by_zero = rule(
    op.Mul(x, filled(0)) >> _zeros,
    where=integer(x) & static_shape(result),
    opset=(7, None),
    doc="x * 0 is 0; of integers only, as inf * 0 is not.",
)

subtract_what_was_added = rule(
    op.Sub(op.Add(x, y), y) >> x,
    where=integer(x) & same_shape(x, result),
    doc="x + y - y is x; of integers only.",
)

add_what_was_subtracted = rule(
    op.Add(op.Sub(x, y), y) >> x,
    where=integer(x) & same_shape(x, result),
    doc="x - y + y is x; of integers only.",
)

# -------------------------------------------------------------------- divisions, rounded once

multiply_by_reciprocal = rule(
    op.Mul(x, op.Reciprocal(y)) >> op.Div(x, y),
    inexact=True,
    doc="x * (1 / y) is x / y, rounded once instead of twice.",
)

_one_over = op.Div(_one, y)

multiply_by_one_over = rule(
    op.Mul(x, _one_over) >> op.Div(x, y),
    where=floating(x) & broadcasts_to(_one, y),
    inexact=True,
    doc="x * (1 / y) is x / y, rounded once instead of twice.",
)

reciprocal_of_quotient = rule(
    op.Reciprocal(op.Div(x, y)) >> op.Div(y, x),
    inexact=True,
    doc="1 / (x / y) is y / x, rounded once instead of twice.",
)
