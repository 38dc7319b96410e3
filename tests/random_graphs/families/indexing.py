"""Ops that select and scatter by indices."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from ..builder import Dim, Refused, Value
from ..call import Call, fills
from ..values import Array
from .layout import ANYTHING


def _indices(c: Call, index: int, dims: list[Dim], size: int, low: int | None = None) -> Value:
    b = c.b
    elem = T.INT64 if b.chance(0.8) else T.INT32
    least = -size if low is None else low
    if size < 1:
        raise Refused("nothing to select")

    def make(shape: tuple[int, ...]) -> Array:
        numbers = b.rng.integers(least if b.chance(0.4) else 0, size, shape)
        return numbers.astype(np.int64 if elem == T.INT64 else np.int32)

    return c.fixed(index, elem, dims, make)


def _least(dim: Dim) -> int:
    return min([d for d in dim if d > 0], default=0)


@fills("Gather")
def gather(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 4))
    axis = c.axis(x) or 0
    dims = [] if b.chance(0.35) else b.some_dims(b.number(1, 2))
    return c.add([x, _indices(c, 1, dims, _least(x.dims[axis]))])


@fills("TopK")
def top_k(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, None, (1, 3))
    axis = c.axis(x)
    size = _least(x.dims[-1 if axis is None else axis])
    c.attribute("largest", [0, 1])
    c.attribute("sorted", [0, 1], 0.2)
    k = c.fixed(1, T.INT64, [1], lambda s: np.full(s, b.number(0, size), np.int64))
    return c.add([x, k], [True, b.chance(0.8)] if b.chance(0.5) else 2)


@fills("Where")
def where(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(1, ANYTHING)
    dims = [d if b.chance(0.7) else b.dim(1) for d in x.dims[b.number(0, x.rank) :]]
    return c.add([c.fixed(0, T.BOOL, dims), x, b.broadcast(x)])
