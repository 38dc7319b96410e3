"""Shape functions of ops that make tensors of given shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic.elementwise import broadcast_shapes, is_small
from onnxfold.analysis.symbolic.expression import Number
from onnxfold.analysis.symbolic.fact import Fact, of_items, of_type
from onnxfold.analysis.symbolic.shape_functions import (
    Application,
    Undecided,
    fact_of,
    shape_function,
    shape_of,
)


@shape_function("ConstantOfShape")
def constant_of_shape(application: Application) -> Sequence[Fact]:
    """The sizes are the elements of the operand."""
    sizes = application.numbers(0)
    value = application.attributes.get("value")
    dtype = ir.DataType.FLOAT if value is None else ir.DataType.from_numpy(value.dtype)
    return [of_type(dtype, _sizes(application, sizes), application.algebra)]


def _sizes(application: Application, numbers: Sequence[Number]) -> list[Number]:
    """Elements of a shape operand. A model with a negative one is not run."""
    algebra = application.algebra
    return [n if algebra.low(n) >= 0 else algebra.unknown(low=0) for n in numbers]


@shape_function("Expand")
def expand(application: Application) -> Sequence[Fact]:
    """The shape broadcasts with that of the operand."""
    algebra = application.algebra
    sizes = application.numbers(1)
    shapes = [shape_of(application, 0), tuple(_sizes(application, sizes))]
    result = broadcast_shapes(algebra, shapes)
    fact = fact_of(application, 0)
    items = fact.objects
    if items is not None and fact.dtype is not None and is_small(result):
        return [of_items(np.broadcast_to(items, result), fact.dtype, algebra)]  # type: ignore[arg-type]
    return [of_type(fact.dtype, result, algebra)]


@shape_function("Tile")
def tile(application: Application) -> Sequence[Fact]:
    """Sizes times repetitions."""
    algebra = application.algebra
    sizes = shape_of(application, 0)
    repeats = application.numbers(1)
    if len(repeats) != len(sizes):
        raise Undecided
    result = tuple(algebra.mul(d, r) for d, r in zip(sizes, repeats, strict=True))
    fact = fact_of(application, 0)
    items = fact.objects
    known = [r for r in repeats if isinstance(r, int)]
    if items is not None and fact.dtype is not None and is_small(result) and known == repeats:
        return [of_items(np.tile(items, known), fact.dtype, algebra)]
    return [of_type(fact.dtype, result, algebra)]


@shape_function("Range", reads_floats=True)
def range_(application: Application) -> Sequence[Fact]:
    """From start to limit by steps of delta."""
    algebra = application.algebra
    start, limit, delta = (application.objects(k) for k in range(3))
    dtype = fact_of(application, 0).dtype
    if start is None or limit is None or delta is None:
        raise Undecided
    step = delta.item()
    if not isinstance(step, int) or step == 0:
        return [of_type(dtype, [algebra.unknown(low=0)], algebra)]
    distance = algebra.sub(limit.item(), start.item())
    if step < 0:
        distance, step = algebra.neg(distance), -step
    count = algebra.maximum(algebra.ceil_div(distance, step), 0)
    return [of_type(dtype, [count], algebra)]


@shape_function("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
def like(application: Application) -> Sequence[Fact]:
    """The shape of the operand."""
    fact = fact_of(application, 0)
    dtype = application.attributes.get("dtype")
    found = fact.dtype if dtype is None else ir.DataType(dtype)
    return [of_type(found, shape_of(application, 0), application.algebra)]
