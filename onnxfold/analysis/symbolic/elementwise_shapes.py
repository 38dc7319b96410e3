"""Shape functions of arithmetic, comparisons and selections on integers and booleans."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic.application import Application, Undecided, axis_of, shape_function
from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import (
    MOST_ELEMENTS,
    SIZE_DTYPES,
    UNKNOWN,
    Array,
    Fact,
    Shape,
    of_items,
)
from onnxfold.ops import Trait, ops

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
    "Xor": lambda algebra, a, b: algebra.sub(1, algebra.equal(a, b)),
    "Less": Algebra.less,
    "Greater": lambda algebra, a, b: algebra.less(b, a),
    "LessOrEqual": lambda algebra, a, b: algebra.sub(1, algebra.less(b, a)),
    "GreaterOrEqual": lambda algebra, a, b: algebra.sub(1, algebra.less(a, b)),
}
_COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_TRUTH = ("And", "Or", "Xor", *_COMPARISONS, "IsInf", "IsNaN")


def each(function: Callable[..., Number], *arrays: Array) -> Array:
    """Return the function applied to the elements of arrays, which broadcast."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


@shape_function(
    *(*_BINARY, "Mod", "Where", "PRelu", "Pow", "Sum", "Mean"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "IsInf", "IsNaN"),
)
def broadcasting(application: Application) -> Sequence[Fact]:
    """Broadcast the operands; the result has the dtype of an operand, or is boolean."""
    op_type = application.op_type
    if application.opset < 7 or not application.inputs:
        raise Undecided
    shape = application.broadcast(*application.shapes())
    dtype = application.fact(1 if op_type == "Where" else 0).dtype
    result = ir.DataType.BOOL if op_type in _TRUTH else dtype
    items = _computed(application) if dtype in SIZE_DTYPES and is_small(shape) else None
    if items is None or result is None:
        return application.tensor(shape, result)
    return [of_items(items, result, application.algebra)]


def _computed(application: Application) -> Array | None:
    """Return the elements of the result if those of all operands are known."""
    algebra, op_type = application.algebra, application.op_type
    arrays = [
        a for k in range(len(application.inputs)) if (a := application.objects(k)) is not None
    ]
    if len(arrays) < len(application.inputs) or any(a.size > MOST_ELEMENTS for a in arrays):
        return None
    are_sizes = all(algebra.is_size(item) for array in arrays for item in array.flat)
    if op_type == "Where":
        return each(algebra.where, *arrays) if are_sizes else None
    function = _BINARY.get(op_type)
    if function is None or not (are_sizes or op_type in ("Add", "Mul", "Sub")):
        return None
    items = functools.reduce(lambda a, b: each(functools.partial(function, algebra), a, b), arrays)
    # x * 0 and x - x are 0, although sums and products wrap
    return items if are_sizes or all(item == 0 for item in items.flat) else None


def is_small(shape: Shape) -> bool:
    """Return whether a shape is static and has few elements."""
    count = 1
    for size in shape:
        if not isinstance(size, int):
            return False
        count *= size
    return count <= MOST_ELEMENTS


_UNARY: dict[str, Callable[[Algebra, Number], Number]] = {
    "Neg": lambda algebra, a: algebra.mul(a, -1),
    "Not": lambda algebra, a: algebra.sub(1, a),
    "Abs": lambda algebra, a: algebra.maximum(a, algebra.mul(a, -1)),
    "Sign": lambda algebra, a: algebra.sub(algebra.less(0, a), algebra.less(a, 0)),
}


@shape_function(*_UNARY)
def unary(application: Application) -> Sequence[Fact]:
    """Keep the dtype and shape of the operand."""
    algebra = application.algebra
    fact = application.fact(0)
    items = fact.objects if fact.dtype in SIZE_DTYPES else None
    if items is None or fact.dtype is None or not all(map(algebra.is_size, items.flat)):
        return application.like(fact.shape)
    function = functools.partial(_UNARY[application.op_type], algebra)
    return [of_items(each(function, items), fact.dtype, algebra)]


@shape_function(*ops(Trait.LIKE_FIRST))
@shape_function(
    *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "Trilu"),
    *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
    domain="com.microsoft",
)
def same_type(application: Application) -> Sequence[Fact]:
    """Return the dtype and shape of the first operand; several outputs are left to onnx."""
    if application.n_outputs > 1:
        raise Undecided
    fact = application.fact(0)
    if application.agreeing is not None:
        _agree_with_first(application)
    return application.like(fact.shape)


def _agree_with_first(application: Application) -> None:
    first, *others = application.shapes()
    if application.op_type in ("BatchNormalization", "InstanceNormalization"):
        for shape in others:
            application.agree((*shape, 0)[0], (*first, 0, 0)[1])
    elif application.op_type == "LayerNormalization":
        application.agree_if(all(len(shape) <= len(first) for shape in others))
        application.broadcast(first, *others)
    else:
        application.agree_if(all(shape in ((), (1,)) for shape in others))


@shape_function(
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain="com.microsoft"
)
def skip_normalization(application: Application) -> Sequence[Fact]:
    """Return the dtype and shape of the first operand for the result and the normalized sum."""
    application.agree_if(False)
    (fact,) = application.like(application.shape(0))
    return [fact, UNKNOWN, UNKNOWN, fact][: application.n_outputs]


@shape_function("DequantizeLinear", "QuantizeLinear")
@shape_function("DequantizeLinear", "QuantizeLinear", domain="com.microsoft")
def quantization(application: Application) -> Sequence[Fact]:
    """Return the dtype of the scale, or of the zero point, which is uint8 if it is omitted."""
    attributes = application.attributes
    if attributes.get("output_dtype", 0):
        raise Undecided
    shape, is_blocked = application.fact(0).shape, bool(attributes.get("block_size"))
    application.agree_if(not is_blocked)
    for k in () if is_blocked else range(1, len(application.inputs)):
        if shape and application.inputs[k] is not None and application.shape(k) not in ((), (1,)):
            axis = axis_of(attributes.get("axis", 1), len(shape))
            application.agree_if(len(application.shape(k)) == 1)
            application.agree(application.shape(k)[0], shape[axis])
    if application.op_type == "DequantizeLinear":
        return application.like(shape, 1)
    zero = application.input(2)
    return application.tensor(shape, ir.DataType.UINT8 if zero is None else zero.dtype)


@shape_function("Identity")
def identity(application: Application) -> Sequence[Fact]:
    """Return the operand."""
    return [application.fact(0)]


@shape_function("Cast", "CastLike")
def cast(application: Application) -> Sequence[Fact]:
    """Change the dtype. Sizes in 32 bits are those in 64: see ``ASSUMPTIONS``."""
    algebra = application.algebra
    fact = application.fact(0)
    to = ir.DataType(application.attributes["to"])
    items = fact.objects if fact.dtype in SIZE_DTYPES else None
    if items is None or to not in SIZE_DTYPES:
        return application.tensor(fact.shape, to)
    if to != fact.dtype and not all(map(algebra.is_size, items.flat)):
        return application.tensor(fact.shape, to)
    if to == ir.DataType.BOOL and fact.dtype != ir.DataType.BOOL:
        items = each(lambda a: algebra.sub(1, algebra.equal(a, 0)), items)
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
    """Reduce a short list of integers to a single one."""
    algebra = application.algebra
    fact = application.fact(0)
    items = fact.objects
    if items is None or items.ndim != 1 or not items.size or fact.dtype not in SIZE_DTYPES:
        raise Undecided
    if not all(map(algebra.is_size, items.flat)):
        raise Undecided
    axes = application.integers("axes", 1)
    if [axis_of(a, 1) for a in axes or (0,)] != [0]:
        raise Undecided
    if not axes and application.attributes.get("noop_with_empty_axes") == 1:
        raise Undecided
    numbers = [max(abs(item), 1) for item in items if isinstance(item, int)]
    greatest = {"ReduceSum": sum(numbers), "ReduceProd": math.prod(numbers)}
    # runtimes compute in float64: every partial result, in any order, must be exact
    if greatest.get(application.op_type, 0) > 1 << 53:
        raise Undecided
    shape = (1,) if application.attributes.get("keepdims", 1) else ()
    number = functools.reduce(functools.partial(_REDUCTIONS[application.op_type], algebra), items)
    assert fact.dtype is not None
    return [of_items(np.full(shape, number, object), fact.dtype, algebra)]
