"""Constants that meet each other: the rest of what onnx-mlir's ConstProp does by rules.

What has only constant operands is computed by the constant-propagation pass, without a rule. The
rules here bring constants together that something else keeps apart, and make constants of what the
types determine. Sums of floats are rounded elsewhere then: these rules are exact for integers only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfold.analysis.symbolic import Expr
from onnxfold.rewrite import (
    broadcasts_to,
    computed,
    constant,
    constants,
    filled,
    floating,
    integer,
    is_constant,
    op,
    optional,
    rule,
    single_use,
    size_of,
    values,
)
from onnxfold.rewrite.match import Match

x, y = values("x y")
c, d, starts, ends = constants("c d starts ends")


_WITH_BIAS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "BatchNormalization")


def _same_size(c: Any, d: Any) -> Any:
    """What is computed of the constants is not larger than both of them."""
    return broadcasts_to(c, d) | broadcasts_to(d, c)


def _no_bias(match: Match) -> bool:
    """Neither constant can go into the product that it is added to."""
    makers = [match[v].producer() for v in (x, y)]
    return not any(n is not None and n.op_type in _WITH_BIAS for n in makers)


def _chain(inner: Any, outer: Any, merged: Any, doc: str, *, integers: bool = True) -> Any:
    """``(x op c) op d`` with both constants in one op."""
    dtypes = integer(x) | floating(x) if integers else floating(x)
    return rule(
        outer >> merged,
        where=~is_constant(x) & single_use(inner) & dtypes & _same_size(c, d),
        inexact=~integer(x),
        doc=doc,
    )


# -------------------------------------------------------------------- two constants in a chain

_add, _sub, _from = op.Add(x, c), op.Sub(x, c), op.Sub(c, x)
_mul, _div = op.Mul(x, c), op.Div(x, c)

add_add = _chain(_add, op.Add(_add, d), op.Add(x, op.Add(c, d)), "x + c + d is x + (c + d).")
add_sub = _chain(_add, op.Sub(_add, d), op.Add(x, op.Sub(c, d)), "x + c - d is x + (c - d).")
sub_add = _chain(_sub, op.Add(_sub, d), op.Add(x, op.Sub(d, c)), "x - c + d is x + (d - c).")
sub_sub = _chain(_sub, op.Sub(_sub, d), op.Sub(x, op.Add(c, d)), "x - c - d is x - (c + d).")
add_from = _chain(_from, op.Add(_from, d), op.Sub(op.Add(c, d), x), "c - x + d is c + d - x.")
from_sub = _chain(_from, op.Sub(_from, d), op.Sub(op.Sub(c, d), x), "c - x - d is c - d - x.")
from_add = _chain(_add, op.Sub(d, _add), op.Sub(op.Sub(d, c), x), "d - (x + c) is d - c - x.")
from_subtracted = _chain(
    _sub, op.Sub(d, _sub), op.Sub(op.Add(d, c), x), "d - (x - c) is d + c - x."
)
from_from = _chain(_from, op.Sub(d, _from), op.Add(x, op.Sub(d, c)), "d - (c - x) is x + (d - c).")

mul_mul = _chain(_mul, op.Mul(_mul, d), op.Mul(x, op.Mul(c, d)), "x * c * d is x * (c * d).")
mul_div = _chain(
    _mul, op.Div(_mul, d), op.Mul(x, op.Div(c, d)), "x * c / d is x * (c / d).", integers=False
)
div_mul = _chain(
    _div, op.Mul(_div, d), op.Mul(x, op.Div(d, c)), "x / c * d is x * (d / c).", integers=False
)
div_div = _chain(
    _div, op.Div(_div, d), op.Div(x, op.Mul(c, d)), "x / c / d is x / (c * d).", integers=False
)

_bitwise = op.any_of(
    *("And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
_masked = _bitwise(x, c)

bitwise_bitwise = rule(
    _bitwise(_masked, d) >> _bitwise(x, _bitwise(c, d)),
    where=single_use(_masked) & _same_size(c, d),
    doc="x & c & d is x & (c & d); likewise | and ^.",
)

# -------------------------------------------------------------------- with something between them

_sum = op.any_of("Add", "Mul")
_left, _right = _sum(x, c), _sum(y, d)
_middle = _sum(_left, y)

constants_of_both_operands = rule(
    _sum(_left, _right) >> _sum(_sum(x, y), _sum(c, d)),
    where=(integer(x) | floating(x))
    & single_use(_left)
    & single_use(_right)
    & _same_size(c, d)
    & _no_bias,
    inexact=~integer(x),
    doc="(x + c) + (y + d) is (x + y) + (c + d); likewise *.",
)

constant_further_out = rule(
    _sum(_middle, d) >> _sum(_sum(x, y), _sum(c, d)),
    where=(integer(x) | floating(x))
    & single_use(_left)
    & single_use(_middle)
    & _same_size(c, d)
    & _no_bias,
    inexact=~integer(x),
    doc="((x + c) + y) + d is (x + y) + (c + d); likewise *.",
)

# -------------------------------------------------------------------- what the types determine

_shape = op("Shape")
_shaped = _shape(x)


def _sizes(match: Match) -> tuple[Any, ...] | None:
    """What a Shape gives, with symbols for sizes that are not known."""
    shape = match.shape(x)
    if shape is None:
        return None
    start, end = (match.attribute(_shape, name) for name in ("start", "end"))
    return shape[start or 0 : len(shape) if end is None else end]


def _numbers(sizes: Any) -> Any:
    """The sizes, if all are known."""
    return None if any(isinstance(size, Expr) for size in sizes) else sizes


def _all_sizes(match: Match) -> Any:
    sizes = _sizes(match)
    return None if sizes is None else _numbers(sizes)


def _gathered_sizes(match: Match) -> Any:
    sizes, indices = _sizes(match), match.array(c)
    if sizes is None or indices is None:
        return None
    chosen = [sizes[k] for k in indices.ravel() if -len(sizes) <= k < len(sizes)]
    if len(chosen) < indices.size or _numbers(chosen) is None:
        return None
    return np.array(chosen, np.int64).reshape(indices.shape)


def _sliced_sizes(match: Match) -> Any:
    sizes = _sizes(match)
    bounds = [match.array(bound) for bound in (starts, ends)]
    if sizes is None or any(bound is None or bound.size != 1 for bound in bounds):
        return None
    (first, last) = (int(bound.ravel()[0]) for bound in bounds)
    return _numbers(sizes[first:last])


shape_known = rule(
    _shaped >> constant(computed(_all_sizes)),
    doc="A shape that is the same in every run.",
)

size_known = rule(
    op.Size(x) >> constant(size_of(x)),
    doc="A number of elements that is the same in every run.",
)

gather_of_shape = rule(
    op.Gather(_shaped, c) >> constant(computed(_gathered_sizes)),
    doc="Sizes that are the same in every run, of a shape that need not be.",
)

slice_of_shape = rule(
    op.Slice(_shaped, starts, ends, optional(filled(0)), optional(filled(1)))
    >> constant(computed(_sliced_sizes)),
    doc="Sizes that are the same in every run, of a shape that need not be.",
)
