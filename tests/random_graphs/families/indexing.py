"""Ops that select and scatter by indices."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from ..builder import Dim, Refused, Value
from ..call import Call, fills
from ..values import Array, random_array
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
    axis = c.attribute("axis", list(range(-x.rank, x.rank))) or 0
    dims = [] if b.chance(0.35) else b.some_dims(b.number(1, 2))
    return c.add([x, _indices(c, 1, dims, _least(x.dims[axis]))])


@fills("GatherElements")
def gather_elements(c: Call) -> list[Value]:
    x = c.operand(0, ANYTHING, (1, 4))
    axis = c.attribute("axis", list(range(-x.rank, x.rank))) or 0
    dims = list(x.dims)
    dims[axis] = c.b.dim(c.b.number(1, 3))
    return c.add([x, _indices(c, 1, dims, _least(x.dims[axis]))])


@fills("GatherND")
def gather_nd(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 4))
    batch = c.attribute("batch_dims", [0, 0, 1]) or 0
    if batch >= x.rank:
        raise Refused("no axis left")
    depth = b.number(1, x.rank - batch)
    size = min(_least(d) for d in x.dims[batch : batch + depth])
    dims = [*x.dims[:batch], *([b.dim(b.number(1, 3))] if b.chance(0.7) else []), b.dim(depth)]
    return c.add([x, _indices(c, 1, dims, size, 0)])


@fills("ScatterElements", "Scatter")
def scatter_elements(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 3))
    axis = c.attribute("axis", list(range(-x.rank, x.rank))) or 0
    reductions = ["none", "add", "mul"] + (["max", "min"] if b.opset >= 18 else [])
    c.attribute("reduction", reductions)
    dims = [b.dim(b.number(0, min(2, _least(d)))) for d in x.dims]
    indices = _indices(c, 1, dims, _least(x.dims[axis]), 0)
    return c.add([x, indices, c.fixed(2, x.elem, dims)])


@fills("ScatterND")
def scatter_nd(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 3))
    reductions = ["none", "add", "mul"] + (["max", "min"] if b.opset >= 18 else [])
    c.attribute("reduction", reductions)
    depth = b.number(1, x.rank)
    count = b.dim(b.number(1, 2))
    indices = _indices(c, 1, [count, b.dim(depth)], min(_least(d) for d in x.dims[:depth]), 0)
    return c.add([x, indices, c.fixed(2, x.elem, [count, *x.dims[depth:]])])


@fills("OneHot")
def one_hot(c: Call) -> list[Value]:
    b = c.b
    depth = b.number(1, 4)
    indices = _indices(c, 0, b.some_dims(b.number(1, 2)), depth)
    c.attribute("axis", [-1, 0, 1])
    deep = c.fixed(1, T.INT64, [], lambda s: np.full(s, depth, np.int64))
    elem = b.choose([T.FLOAT, T.INT64, T.INT64, T.STRING])
    return c.add([indices, deep, c.fixed(2, elem, [2])])


@fills("Compress")
def compress(c: Call) -> list[Value]:
    x = c.operand(0, ANYTHING, (1, 3))
    axis = c.attribute("axis", list(range(-x.rank, x.rank)))
    size = int(x.first.size) if axis is None else x.shape[axis]
    return c.add([x, c.fixed(1, T.BOOL, [max(0, size - c.b.number(0, 1))])])


@fills("TopK")
def top_k(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, None, (1, 3))
    axis = c.attribute("axis", list(range(-x.rank, x.rank)))
    size = _least(x.dims[-1 if axis is None else axis])
    c.attribute("largest", [0, 1])
    c.attribute("sorted", [0, 1], 0.2)
    k = c.fixed(1, T.INT64, [1], lambda s: np.full(s, b.number(0, size), np.int64))
    c.outputs = None
    return c.add([x, k], [True, b.chance(0.8)] if b.chance(0.5) else 2)


@fills("Unique")
def unique(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.INT64, T.STRING, T.DOUBLE, T.INT8], (1, 3))
    c.attribute("axis", list(range(-x.rank, x.rank)))
    c.attribute("sorted", [0, 1])
    present = [True, *(b.chance(0.5) for _ in range(3))]
    while not present[-1]:
        present.pop()
    return c.add([x], present)


@fills("NonMaxSuppression")
def non_max(c: Call) -> list[Value]:
    b = c.b
    count = b.dim(b.number(1, 4))

    def boxes(shape: tuple[int, ...]) -> Array:
        corner = b.rng.random((*shape[:-1], 2))
        return np.concatenate([corner, corner + b.rng.random(corner.shape)], -1).astype(np.float32)

    classes = b.dim(b.number(1, 2))
    inputs: list[Value | None] = [
        c.fixed(0, T.FLOAT, [b.dim(1), count, b.dim(4)], boxes, constant=b.chance(0.6) or None),
        c.fixed(1, T.FLOAT, [b.dim(1), classes, count]),
    ]
    if b.chance(0.8):
        inputs.append(c.fixed(2, T.INT64, [], lambda s: np.full(s, b.number(0, 3), np.int64)))
        inputs.append(c.fixed(3, T.FLOAT, [], lambda s: np.full(s, b.rng.random(), np.float32)))
    c.attribute("center_point_box", [0, 1], 0.3)
    return c.add(inputs)


@fills("Where")
def where(c: Call) -> list[Value]:
    b = c.b
    given = [v for k, v in c.given.items() if k and isinstance(v, Value)]
    x = given[0] if given else c.operand(1, ANYTHING)
    condition = c.given.get(0)
    if not isinstance(condition, Value):
        condition = c.fixed(
            0,
            T.BOOL,
            [
                d if b.chance(0.7) and (condition is None or len(set(d)) == 1) else b.dim(1)
                for d in x.dims[b.number(0, x.rank) :]
            ],
        )
    left = c.pair(x, 1) if given else x
    return c.add([condition, left, c.pair(x, 2)])


@fills("TensorScatter")
def tensor_scatter(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, None, (3, 4))
    dims = list(x.dims)
    dims[-2] = b.dim(1)
    c.attribute("mode", ["linear", "circular"])

    def make(shape: tuple[int, ...]) -> Array:
        return random_array(b.rng, T.BOOL, shape, 0).astype(np.int64)

    return c.add(
        [
            x,
            c.fixed(1, x.elem, dims),
            c.fixed(2, T.INT64, [x.dims[0]], make) if b.chance(0.7) else None,
        ]
    )
