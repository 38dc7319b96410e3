"""Shape functions of arithmetic, comparisons and choices on integers and truth values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import (
    MOST_ELEMENTS,
    SIZE_DTYPES,
    Array,
    Fact,
    Shape,
    of_items,
    of_type,
)
from onnxfold.analysis.symbolic.shape_functions import (
    Application,
    Undecided,
    axis_of,
    fact_of,
    shape_function,
    shape_of,
)

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
_BINARY: dict[str, Callable[[Algebra, Number, Number], Number]] = {
    "Add": Algebra.add,
    "Sub": Algebra.sub,
    "Mul": Algebra.mul,
    "Div": Algebra.trunc_div,
    "Min": Algebra.minimum,
    "Max": Algebra.maximum,
    "And": Algebra.minimum,
    "Or": Algebra.maximum,
    "Equal": Algebra.equal,
    "Xor": lambda algebra, a, b: algebra.negation(algebra.equal(a, b)),
    "Less": Algebra.less,
    "Greater": lambda algebra, a, b: algebra.less(b, a),
    "LessOrEqual": lambda algebra, a, b: algebra.negation(algebra.less(b, a)),
    "GreaterOrEqual": lambda algebra, a, b: algebra.negation(algebra.less(a, b)),
}
_TRUTH = ("And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


def broadcast_shapes(algebra: Algebra, shapes: Sequence[Shape]) -> Shape:
    """The shape that shapes broadcast to."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[Number] = [1] * rank
    for shape in padded:
        result = [algebra.broadcast(a, b) for a, b in zip(result, shape, strict=True)]
    return tuple(result)


def each(function: Callable[..., Number], *arrays: Array) -> Array:
    """The function applied to the elements of arrays, which broadcast."""
    if not np.broadcast_shapes(*(a.shape for a in arrays)):
        result = np.empty((), object)
        result[()] = function(*(a.item() for a in arrays))
        return result
    applied: Array = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return applied


def _all_objects(application: Application) -> list[Array] | None:
    arrays = [None if f is None else f.objects for f in application.inputs]
    if any(a is None or a.size > MOST_ELEMENTS for a in arrays):
        return None
    return [a for a in arrays if a is not None]


@shape_function(*_BINARY, "PRelu", "Pow", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Sum", "Mean")
def binary(application: Application) -> Sequence[Fact]:
    """Operands broadcast; the result has the dtype of the first one, or is a truth value."""
    algebra, op_type = application.algebra, application.op_type
    shape = _broadcast(application)
    dtype = fact_of(application, 0).dtype
    result = ir.DataType.BOOL if op_type in _TRUTH else dtype
    function = _BINARY.get(op_type)
    if function is None or dtype not in SIZE_DTYPES or not is_small(shape):
        return [of_type(result, shape, algebra)]
    arrays = _all_objects(application)
    if arrays is None:
        return [of_type(result, shape, algebra)]
    items = arrays[0]
    for other in arrays[1:]:
        items = each(lambda a, b: function(algebra, a, b), items, other)
    assert result is not None
    return [of_items(items, result, algebra)]


def _broadcast(application: Application) -> Shape:
    shapes = [None if f is None else f.shape for f in application.inputs]
    if application.opset < 7 or not shapes or any(s is None for s in shapes):
        raise Undecided
    return broadcast_shapes(application.algebra, [s for s in shapes if s is not None])


def is_small(shape: Shape) -> bool:
    """True if all sizes are numbers and there are few elements."""
    count = 1
    for size in shape:
        if not isinstance(size, int):
            return False
        count *= size
    return count <= MOST_ELEMENTS


@shape_function("Mod")
def mod(application: Application) -> Sequence[Fact]:
    """The remainder with the divisor's sign, or with ``fmod`` the dividend's."""
    algebra = application.algebra
    shape = _broadcast(application)
    dtype = fact_of(application, 0).dtype
    arrays = _all_objects(application) if dtype in _INTEGERS and is_small(shape) else None
    if arrays is None or dtype is None:
        return [of_type(dtype, shape, algebra)]
    if application.attributes.get("fmod", 0) and any(
        algebra.low(n) < 0 for array in arrays for n in array.flat
    ):
        return [of_type(dtype, shape, algebra)]
    return [of_items(each(algebra.mod, *arrays), dtype, algebra)]


@shape_function("Where")
def where(application: Application) -> Sequence[Fact]:
    """A choice for each element."""
    algebra = application.algebra
    shape = _broadcast(application)
    dtype = fact_of(application, 1).dtype
    arrays = _all_objects(application) if dtype in SIZE_DTYPES and is_small(shape) else None
    if arrays is None or dtype is None:
        return [of_type(dtype, shape, algebra)]
    return [of_items(each(algebra.where, *arrays), dtype, algebra)]


_UNARY: dict[str, Callable[[Algebra, Number], Number]] = {
    "Neg": Algebra.neg,
    "Not": Algebra.negation,
    "Abs": lambda algebra, a: algebra.maximum(a, algebra.neg(a)),
    "Sign": lambda algebra, a: algebra.sub(algebra.less(0, a), algebra.less(a, 0)),
}
_SAME_TYPE = (
    *("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil"),
    *("Round", "Sin", "Cos", "Gelu", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "Softmax"),
    *("LogSoftmax", "Hardmax", "HardSwish", "Softplus", "Softsign", "Clip", "Trilu", "CumSum"),
    *("Mish", "ThresholdedRelu", "LpNormalization", "LRN", "InstanceNormalization", "Dropout"),
    *("GroupNormalization", "BatchNormalization", "LayerNormalization"),
    *("ScatterND", "ScatterElements", "Scatter"),
    "SimplifiedLayerNormalization",  # onnxruntime defines it in ONNX's domain
)


@shape_function(*_UNARY)
def unary(application: Application) -> Sequence[Fact]:
    """One operand, the same dtype and shape."""
    algebra = application.algebra
    fact = fact_of(application, 0)
    items = fact.objects if fact.dtype in SIZE_DTYPES else None
    if items is None or fact.dtype is None:
        return [of_type(fact.dtype, fact.shape, algebra)]
    function = _UNARY[application.op_type]
    return [of_items(each(lambda a: function(algebra, a), items), fact.dtype, algebra)]


@shape_function(*_SAME_TYPE)
def same_type(application: Application) -> Sequence[Fact]:
    """The result has the dtype and shape of the first operand. Of more outputs onnx knows."""
    if application.n_outputs > 1:
        raise Undecided
    fact = fact_of(application, 0)
    return [of_type(fact.dtype, fact.shape, application.algebra)]


@shape_function("DequantizeLinear")
def dequantize(application: Application) -> Sequence[Fact]:
    """The dtype of the scale."""
    if application.attributes.get("output_dtype", 0):
        raise Undecided
    dtype = fact_of(application, 1).dtype
    return [of_type(dtype, fact_of(application, 0).shape, application.algebra)]


@shape_function("QuantizeLinear")
def quantize(application: Application) -> Sequence[Fact]:
    """The dtype of the zero point, uint8 without one."""
    if application.attributes.get("output_dtype", 0):
        raise Undecided
    zero = application.input(2)
    dtype = ir.DataType.UINT8 if zero is None else zero.dtype
    return [of_type(dtype, fact_of(application, 0).shape, application.algebra)]


@shape_function("IsNaN", "IsInf")
def tests(application: Application) -> Sequence[Fact]:
    """Truth values in the shape of the operand."""
    shape = shape_of(application, 0)
    return [of_type(ir.DataType.BOOL, shape, application.algebra)]


@shape_function("Identity")
def identity(application: Application) -> Sequence[Fact]:
    """The operand."""
    return [fact_of(application, 0)]


@shape_function("Cast", "CastLike")
def cast(application: Application) -> Sequence[Fact]:
    """Another dtype. Sizes in 32 bits are those in 64: see ``ASSUMPTIONS``."""
    algebra = application.algebra
    fact = fact_of(application, 0)
    to: ir.DataType | None
    if application.op_type == "CastLike":
        to = fact_of(application, 1).dtype
    else:
        to = ir.DataType(application.attributes["to"])
    items = fact.objects if fact.dtype in SIZE_DTYPES else None
    if items is None or to is None or to not in SIZE_DTYPES:
        return [of_type(to, fact.shape, algebra)]
    if to == ir.DataType.BOOL and fact.dtype != ir.DataType.BOOL:
        items = each(lambda a: algebra.negation(algebra.equal(a, 0)), items)
    elif fact.dtype == ir.DataType.BOOL:
        items = each(lambda a: int(a) if isinstance(a, int) else a, items)
    return [of_items(items, to, algebra)]


_REDUCTIONS: dict[str, Callable[[Algebra, Number, Number], Number]] = {
    "ReduceProd": Algebra.mul,
    "ReduceSum": Algebra.add,
    "ReduceMin": Algebra.minimum,
    "ReduceMax": Algebra.maximum,
}


@shape_function(*_REDUCTIONS)
def reduce(application: Application) -> Sequence[Fact]:
    """A short list of integers to one."""
    algebra = application.algebra
    fact = fact_of(application, 0)
    items = fact.objects
    if items is None or items.ndim != 1 or not items.size or fact.dtype not in SIZE_DTYPES:
        raise Undecided
    axes = application.integers("axes", 1)
    if not axes and application.attributes.get("noop_with_empty_axes", 0):
        return [fact]
    if axes and [axis_of(a, 1) for a in axes] != [0]:
        raise Undecided
    combine = _REDUCTIONS[application.op_type]
    result: Any = items[0]
    for item in items[1:]:
        result = combine(algebra, result, item)
    numbers = [max(abs(item), 1) for item in items if isinstance(item, int)]
    greatest = {"ReduceSum": sum(numbers), "ReduceProd": math.prod(numbers)}
    # runtimes add and multiply in float64: every partial result, in any order, must be exact
    if greatest.get(application.op_type, 0) > 1 << 53:
        raise Undecided
    shape = (1,) if application.attributes.get("keepdims", 1) else ()
    reduced = np.empty(shape, object)
    reduced[...] = result
    assert fact.dtype is not None
    return [of_items(reduced, fact.dtype, algebra)]
