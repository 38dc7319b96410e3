"""Truths: Where, Not, And, Or, Xor and comparisons."""

from __future__ import annotations

from typing import Any

from onnxfold.rules.numbers import no_negative_zero
from onnxfold.rules.shapes import broadcast

from onnxfold.rewrite import (
    Matched,
    boolean,
    broadcasts_to,
    constant,
    dtype_of,
    filled,
    floating,
    given,
    integer,
    op,
    result,
    rule,
    same_shape,
    shape_of,
    static_shape,
    values,
)

x, y, z, w, c = values("x y z w c")
_true = filled(True)


def everywhere(truth: bool) -> Any:
    """A truth in the shape of the result; its elements are not stored."""
    return op.Expand(constant(truth), constant(shape_of(result)))


# -------------------------------------------------------------------- Where
#
# On onnxruntime -0.0 becomes 0.0 where it is taken from the first branch, and stays in the second:
# unless the second one repeats along the last axis together with the condition, then vice versa.

where_true = rule(
    op.Where(filled(True), x, y) >> x,
    where=same_shape(x, result),
    inexact=floating(x) & ~no_negative_zero(x),
    doc="The condition is true everywhere.",
)

where_false = rule(
    op.Where(filled(False), x, y) >> y,
    where=same_shape(y, result),
    doc="The condition is false everywhere.",
)

where_same = rule(
    op.Where(c, x, x) >> x,
    where=same_shape(x, result),
    inexact=floating(x) & ~no_negative_zero(x),
    doc="Both branches are the same.",
)

where_not = rule(
    op.Where(op.Not(c), x, y) >> op.Where(c, y, x),
    inexact=floating(x) & ~(no_negative_zero(x) & no_negative_zero(y)),
    doc="The branches change places instead of the condition.",
)


@given
def _same_without_inner(c: Matched, x: Matched, z: Matched, result: Matched) -> bool:
    return broadcast(c.shape, x.shape, z.shape) == result.shape


_choice = op.Where(c, x, y)

where_in_where = (
    rule(
        op.Where(c, _choice, z) >> op.Where(c, x, z),
        where=_same_without_inner,
        inexact=floating(x) & ~no_negative_zero(x),
        doc="Where the condition is true, the inner choice has been made.",
    ),
    rule(
        op.Where(c, z, op.Where(c, y, x)) >> op.Where(c, z, x),
        where=_same_without_inner,
        inexact=floating(x) & ~(no_negative_zero(x) & no_negative_zero(z)),
        doc="Where the condition is false, the inner choice has been made.",
    ),
)

# -------------------------------------------------------------------- Not

_INVERSE = (("Less", "GreaterOrEqual"), ("Greater", "LessOrEqual"))


def _not_of(compare: str, inverse: str) -> Any:
    return rule(
        op.Not(getattr(op, compare)(x, y)) >> getattr(op, inverse)(x, y),
        where=dtype_of(x).is_in(6, 7),
        opset=(12, None),
        doc="The opposite comparison; of integers only, as a NaN compares false either way.",
    )


not_of_comparison = [_not_of(a, b) for pair in _INVERSE for a, b in (pair, pair[::-1])]

and_of_nots = rule(
    op.And(op.Not(x), op.Not(y)) >> op.Not(op.Or(x, y)),
    doc="Neither is true: not one or the other.",
)

or_of_nots = rule(
    op.Or(op.Not(x), op.Not(y)) >> op.Not(op.And(x, y)),
    doc="One is not true: not both are.",
)

xor_of_nots = rule(op.Xor(op.Not(x), op.Not(y)) >> op.Xor(x, y), doc="Both are turned round.")

xor_true = rule(
    op.Xor(x, _true) >> op.Not(x),
    where=broadcasts_to(_true, x),
    doc="Either x or true: not x.",
)

# -------------------------------------------------------------------- constants and equals

and_false = rule(
    op.And(x, filled(False)) >> everywhere(False),
    where=static_shape(result),
    opset=(7, None),
    doc="Nothing and false is true.",
)

or_true = rule(
    op.Or(x, filled(True)) >> everywhere(True),
    where=static_shape(result),
    opset=(7, None),
    doc="Everything or true is true.",
)

same_twice = rule(op.any_of("And", "Or")(x, x) >> x, doc="x and x, x or x is x.")

xor_same = rule(
    op.Xor(x, x) >> everywhere(False),
    where=static_shape(result),
    opset=(7, None),
    doc="x xor x is false.",
)

_both = op.any_of("And", "Or")

same_again = rule(
    _both(x, _both(x, y)) >> _both(x, y),
    doc="x and (x and y) is x and y.",
)

absorbed = (
    rule(
        op.And(x, op.Or(x, y)) >> x,
        where=same_shape(x, result),
        doc="x and (x or y) is x.",
    ),
    rule(
        op.Or(x, op.And(x, y)) >> x,
        where=same_shape(x, result),
        doc="x or (x and y) is x.",
    ),
)

equal_to_itself = rule(
    op.any_of("Equal", "GreaterOrEqual", "LessOrEqual")(x, x) >> everywhere(True),
    where=(integer(x) | boolean(x)) & static_shape(result),
    opset=(7, None),
    doc="Every number equals itself; of integers only, as a NaN does not.",
)

not_less_than_itself = rule(
    op.any_of("Less", "Greater")(x, x) >> everywhere(False),
    where=static_shape(result),
    opset=(7, None),
    doc="No number is less or greater than itself, nor is a NaN.",
)
