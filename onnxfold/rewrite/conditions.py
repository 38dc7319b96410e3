"""What rules ask of what has matched, and compute with: dtypes, shapes, elements, axes, users."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxfold.analysis.symbolic import Number
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.rewrite.given import given
from onnxfold.rewrite.matched import Matched
from onnxfold.rewrite.terms import Truth

# -------------------------------------------------------------------- dtypes


@given
def dtype_of(x: Matched) -> ir.DataType:
    """The dtype, an ``ir.DataType`` (equal to its ONNX number)."""
    return x.dtype


@given
def floating(x: Matched) -> bool:
    """The dtype is a floating-point one."""
    return x.dtype.is_floating_point()


@given
def integer(x: Matched) -> bool:
    """The dtype is an integer one, signed or not (bool is none)."""
    return x.dtype.is_integer()


# -------------------------------------------------------------------- shapes


@given
def shape_of(x: Matched) -> Shape:
    """The shape: a tuple of int, with a symbol for a size that is not known."""
    return x.shape


@given
def rank_of(x: Matched) -> int:
    """The number of axes."""
    return x.rank


@given
def size_of(x: Matched) -> int:
    """The number of elements."""
    return x.size


@given
def same_shape(x: Matched, y: Matched) -> Truth:
    """Both values have the same shape in every run, symbolic sizes included."""
    if x.value is y.value:
        return True
    left, right = x.shape, y.shape
    if left == right:
        return True
    if len(left) != len(right):
        return False
    fixed = [(a, b) for a, b in zip(left, right, strict=True) if type(a) is type(b) is int]
    return False if any(a != b for a, b in fixed) else None


def same_type(x: Any, y: Any) -> Any:
    """Same dtype and same shape in every run."""
    return (dtype_of(x) == dtype_of(y)) & same_shape(x, y)


@given
def broadcasts_to(x: Matched, y: Matched) -> Truth:
    """Broadcasting ``x`` and ``y`` gives ``y``'s shape: rank and sizes of ``y`` stay."""
    if x.value is y.value or x.shape == ():
        return True
    return shape_broadcasts_to(x.shape, y.shape)


@given
def is_scalar(x: Matched) -> bool:
    """The value is 0-d."""
    return x.rank == 0


@given
def is_scalar_like(x: Matched) -> Truth:
    """The value has exactly one element, whatever its rank."""
    if any(isinstance(d, int) and d != 1 for d in x.shape):
        return False
    return True if all(d == 1 for d in x.shape) else None


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


# -------------------------------------------------------------------- elements


@given
def is_constant(x: Matched) -> bool:
    """The value is a compile-time constant."""
    return x.is_constant


@given
def runtime_constant(c: Matched) -> bool:
    """The value is a runtime constant, or made of them: the same over many runs."""
    return c.is_runtime_constant


@given
def ints_of(c: Matched) -> tuple[int, ...]:
    """The elements of a small constant (axes, a shape), a tuple of int."""
    return c.ints


@given
def number(c: Matched) -> Any:
    """The one element of a constant, a number of its dtype."""
    return c.number


# -------------------------------------------------------------------- nodes and uses


@given
def axes(node: Matched) -> tuple[int, ...]:
    """The axes that an op of the pattern names, whatever the opset.

    They are counted from the front, in order: axes of the first operand, or of Unsqueeze's result.
    """
    return node.axes


@given
def op_type(node: Matched) -> str:
    """The type of an op of the pattern."""
    return node.op_type


@given
def has_one_output(node: Matched) -> bool:
    """The op gives no other result."""
    return node.has_one_output


@given
def single_use(x: Matched) -> bool:
    """One node input reads the value, and it is no output of the graph."""
    return x.is_single_use


@given
def is_graph_output(x: Matched) -> bool:
    """The value is an output of its graph."""
    return x.value.is_graph_output()


@given
def known(*terms: Any) -> bool:
    """The model determines the value of each term."""
    return all(term is not None for term in terms)
