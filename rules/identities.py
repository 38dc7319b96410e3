"""Ops that give back what they are given."""

from __future__ import annotations

import onnx_ir as ir
from onnxfold.rules.numbers import no_negative_zero

from onnxfold.rewrite import (
    anything,
    attributes,
    broadcasts_to,
    constants,
    dtype_of,
    filled,
    floating,
    given,
    ints_of,
    op,
    optional,
    result,
    rule,
    same_shape,
    values,
)

x, y, ys = values("x y *ys")
_one, _zero, _minus_zero = filled(1), filled(0), filled(-0.0)
_true, _false = filled(True), filled(False)
starts, ends, axes = constants("starts ends axes")
p, t = attributes("p t")


@given
def is_sorted(perm: tuple[int, ...]) -> bool:
    """The permutation leaves every axis in its place."""
    return list(perm) == list(range(len(perm)))


@given
def all_zero(numbers: tuple[int, ...]) -> bool:
    """Every number is zero."""
    return not any(numbers)


@given
def all_beyond_any_size(numbers: tuple[int, ...]) -> bool:
    """Exporters write the largest int32 or int64 for "to the end"."""
    return all(number >= 2**31 - 1 for number in numbers)


# -------------------------------------------------------------------- copies

identity = rule(op.Identity(x) >> x, doc="Identity copies.")

cast_to_same_dtype = rule(
    op.Cast(x, to=t, saturate=anything, round_mode=anything) >> x,
    where=dtype_of(x) == t,
    doc="A cast to the dtype that the value has already.",
)

dropout_before_12 = rule(
    op.Dropout(x, ratio=anything) >> x,
    opset=(7, 11),
    doc="Dropout of these opsets copies: it has no training mode.",
)

dropout_without_mode = rule(
    op.Dropout(x, optional(y), seed=anything) >> x,
    opset=(12, None),
    doc="Dropout copies unless it is told to train.",
)

dropout_not_training = rule(
    op.Dropout(x, optional(y), filled(False), seed=anything) >> x,
    opset=(12, None),
    doc="Dropout that is told not to train copies.",
)

variadic_of_one = rule(
    op.any_of("Sum", "Max", "Min", "Mean")(x) >> x,
    doc="The sum, maximum, minimum or mean of one value is that value.",
)

# -------------------------------------------------------------------- movement that moves nothing

transpose_nothing = rule(
    op.Transpose(x, perm=p) >> x,
    where=is_sorted(p),
    doc="Every axis stays in its place.",
)

same_shape_again = rule(
    op.any_of("Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten", "Tile")(x, *ys) >> x,
    where=same_shape(x, result),
    doc="An op that only changes the shape, and does not.",
)

slice_same_shape = rule(
    op.Slice(x, starts, ends, optional(axes), optional(filled(1))) >> x,
    where=same_shape(x, result),
    doc="A slice that takes all of every axis: its shape says so.",
)

slice_all = rule(
    op.Slice(x, filled(0), ends, optional(axes), optional(filled(1))) >> x,
    where=all_beyond_any_size(ints_of(ends)),
    doc="A slice from the start to the end of every axis, whatever its size.",
)

pad_nothing = rule(
    op.Pad(x, filled(0), optional(y), optional(axes), mode=anything) >> x,
    doc="Nothing is added on any side.",
)

pad_nothing_before_11 = rule(
    op.Pad(x, pads=p, mode=anything, value=anything) >> x,
    where=all_zero(p),
    opset=(2, 10),
    doc="Nothing is added on any side.",
)

concat_of_one = rule(op.Concat(x, axis=anything) >> x, doc="There is nothing to join.")

# -------------------------------------------------------------------- neutral elements

add_zero = rule(
    op.Add(x, _minus_zero) >> x,
    where=broadcasts_to(_minus_zero, x),
    doc="x + -0.0 is x, and x + 0 for integers.",
)

add_positive_zero = rule(
    op.Add(x, _zero) >> x,
    where=broadcasts_to(_zero, x),
    inexact=~no_negative_zero(x),
    doc="x + 0.0 is x except that -0.0 becomes 0.0.",
)

subtract_zero = rule(
    op.Sub(x, _zero) >> x,
    where=broadcasts_to(_zero, x),
    doc="x - 0.0 is x, also for x = -0.0.",
)

multiply_by_one = rule(
    op.Mul(x, _one) >> x,
    where=broadcasts_to(_one, x),
    doc="x * 1 is x, if the 1 does not broadcast x.",
)

divide_by_one = rule(
    op.Div(x, _one) >> x,
    where=broadcasts_to(_one, x),
    doc="x / 1 is x, if the 1 does not broadcast x.",
)

power_one = rule(
    op.Pow(x, _one) >> x,
    where=(floating(x) | (dtype_of(x) == ir.DataType.INT32)) & broadcasts_to(_one, x),
    doc="x to the power of 1 is x; onnxruntime rounds larger integers to float64.",
)

and_true = rule(
    op.And(x, _true) >> x,
    where=broadcasts_to(_true, x),
    doc="x and true is x.",
)

or_false = rule(
    op.any_of("Or", "Xor")(x, _false) >> x,
    where=broadcasts_to(_false, x),
    doc="x or false, x xor false is x.",
)

# -------------------------------------------------------------------- what undoes itself

negate_twice = rule(op.Neg(op.Neg(x)) >> x, doc="- - x is x.")

not_twice = rule(op.Not(op.Not(x)) >> x, doc="not not x is x.")
