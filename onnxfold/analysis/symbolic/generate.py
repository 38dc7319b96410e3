"""Shape functions of ops that make tensors of given shapes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Number
from onnxfold.analysis.symbolic.fact import Fact
from onnxfold.analysis.symbolic.shape_functions import (
    Application,
    Undecided,
    shape_function,
)


@shape_function("ConstantOfShape")
def constant_of_shape(application: Application) -> Sequence[Fact]:
    """Return the sizes that the elements of the operand are."""
    sizes = application.numbers(0)
    value = application.attributes.get("value")
    dtype = ir.DataType.FLOAT if value is None else ir.DataType.from_numpy(value.dtype)
    return application.tensor(_sizes(application, sizes), dtype)


def _sizes(application: Application, numbers: Sequence[Number]) -> list[Number]:
    """Return the elements of a shape operand. A model with a negative one is not run."""
    algebra = application.algebra
    return [n if algebra.low(n) >= 0 else algebra.unknown(low=0) for n in numbers]


@shape_function("Expand")
def expand(application: Application) -> Sequence[Fact]:
    """Return the shape broadcasts with that of the operand."""
    sizes = application.numbers(1)
    result = application.broadcast(tuple(_sizes(application, sizes)), application.shape(0))
    return application.like(result)


@shape_function("Tile")
def tile(application: Application) -> Sequence[Fact]:
    """Return the sizes times repetitions."""
    algebra = application.algebra
    sizes = application.shape(0)
    repeats = application.numbers(1)
    if len(repeats) != len(sizes):
        raise Undecided
    result = tuple(algebra.mul(d, r) for d, r in zip(sizes, repeats, strict=True))
    return application.like(result)


@shape_function("Range")
@shape_function("Range", domain="com.microsoft")
def range_(application: Application) -> Sequence[Fact]:
    """From start to limit by steps of delta."""
    algebra = application.algebra
    start, limit, delta = (application.objects(k) for k in range(3))
    dtype = application.fact(0).dtype
    if start is None or limit is None or delta is None:
        raise Undecided
    step = delta.item()
    if not isinstance(step, int) or step == 0:
        return application.tensor([algebra.unknown(low=0)], dtype)
    distance = algebra.sub(limit.item(), start.item())
    if step < 0:
        distance, step = algebra.neg(distance), -step
    count = algebra.maximum(algebra.ceil_div(distance, step), 0)
    return application.tensor([count], dtype)
