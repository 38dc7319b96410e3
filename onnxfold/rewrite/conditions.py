"""What rules ask of values: their dtypes, their shapes, their elements and who uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.analysis.symbolic import Number
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite.predicates import About, Predicate, Truth, Uniform
from onnxfold.rewrite.properties import dtype_of, rank_of
from onnxfold.rewrite.terms import Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match
    from onnxfold.rewrite.patterns import Expression

# -------------------------------------------------------------------- dtypes


def floating(x: Expression) -> Predicate:
    """The dtype is a floating-point one."""
    return About("floating", lambda m, v: _dtype_is(m, v, lambda d: d.is_floating_point()), (x,))


def integer(x: Expression) -> Predicate:
    """The dtype is an integer one, signed or not (bool is none)."""
    return About("integer", lambda m, v: _dtype_is(m, v, lambda d: d.is_integer()), (x,))


def boolean(x: Expression) -> Predicate:
    """The dtype is bool."""
    return About("boolean", lambda m, v: _dtype_is(m, v, lambda d: d == ir.DataType.BOOL), (x,))


def same_dtype(x: Expression, y: Expression) -> Predicate:
    """Both values have the same dtype."""
    return dtype_of(x) == dtype_of(y)


def _dtype_is(match: Match, value: ir.Value, test: Callable[[ir.DataType], bool]) -> Truth:
    dtype = match.facts.types.of(value).dtype
    return None if dtype is None else test(dtype)


# -------------------------------------------------------------------- shapes


def static_shape(x: Expression) -> Predicate:
    """Every size of the value is a known number."""
    return About("static_shape", lambda m, v: m.static_shape(v) is not None or None, (x,))


def same_shape(x: Expression, y: Expression) -> Predicate:
    """Both values have the same shape in every run, symbolic sizes included."""
    return About("same_shape", _same_shape, (x, y))


def same_type(x: Expression, y: Expression) -> Predicate:
    """Same dtype and same shape in every run."""
    return same_dtype(x, y) & same_shape(x, y)


def broadcasts_to(x: Expression, y: Expression) -> Predicate:
    """Broadcasting ``x`` and ``y`` gives ``y``'s shape: rank and sizes of ``y`` stay."""
    return About("broadcasts_to", _broadcasts_to, (x, y))


def is_scalar(x: Expression) -> Predicate:
    """The value is 0-d."""
    return rank_of(x) == 0


def is_scalar_like(x: Expression) -> Predicate:
    """The value has exactly one element, whatever its rank."""
    return About("is_scalar_like", _is_scalar_like, (x,))


def _same_shape(match: Match, x: ir.Value, y: ir.Value) -> Truth:
    left, right = match.facts.types.of(x).shape, match.facts.types.of(y).shape
    if x is y:
        return True
    if left is None or right is None:
        return None
    if left == right:
        return True
    if len(left) != len(right):
        return False
    fixed = [(a, b) for a, b in zip(left, right, strict=True) if type(a) is type(b) is int]
    return False if any(a != b for a, b in fixed) else None


def _broadcasts_to(match: Match, x: ir.Value, y: ir.Value) -> Truth:
    small, large = match.facts.types.of(x).shape, match.facts.types.of(y).shape
    if small == () or x is y:
        return True
    if small is None or large is None:
        return None
    return shape_broadcasts_to(small, large)


def shape_broadcasts_to(small: Shape, large: Shape) -> Truth:
    """True if broadcasting the two shapes gives ``large``; None if a symbol decides."""
    if len(small) > len(large):
        return False
    unknown = False
    for a, b in zip(reversed(small), reversed(large), strict=False):
        truth = _dim_broadcasts_to(a, b)
        if truth is False:
            return False
        unknown = unknown or truth is None
    return None if unknown else True


def _dim_broadcasts_to(a: Number, b: Number) -> Truth:
    if a == 1 or a == b:
        return True
    return False if isinstance(a, int) and isinstance(b, int) else None


def _is_scalar_like(match: Match, value: ir.Value) -> Truth:
    shape = match.facts.types.of(value).shape
    if shape is None:
        return None
    if any(isinstance(d, int) and d != 1 for d in shape):
        return False
    return True if all(d == 1 for d in shape) else None


# -------------------------------------------------------------------- values and uses


def is_constant(x: Expression) -> Predicate:
    """The value is a compile-time constant."""
    return About("is_constant", lambda m, v: m.facts.known.is_constant(v), (x,))


def all_equal(x: Expression, number: float | Term) -> Predicate:
    """The value is a constant all of whose elements are the number (-0.0 is not 0.0)."""
    return Uniform(x, number)


def single_use(x: Expression) -> Predicate:
    """One node input reads the value, and it is no output of the graph."""
    return About("single_use", lambda m, v: len(v._uses) == 1 and not v.is_graph_output(), (x,))


def is_graph_output(x: Expression) -> Predicate:
    """The value is an output of its graph."""
    return About("is_graph_output", lambda m, v: v.is_graph_output(), (x,))
