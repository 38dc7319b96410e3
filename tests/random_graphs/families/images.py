"""Convolutions, pooling, resizing: what has spatial axes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from ..builder import Dim, Refused, Value
from ..call import Call, fills
from ..values import random_array


def _image(c: Call, elems: tuple[int, ...] = (T.FLOAT,), spatial: int | None = None) -> Value:
    b = c.b
    spatial = b.choose([1, 2, 2, 2, 3]) if spatial is None else spatial
    rank = 2 + spatial

    def dims() -> list[Dim]:
        return [b.dim(), b.dim(b.number(1, 4)), *(b.dim(b.number(2, 5)) for _ in range(spatial))]

    if c.first is not None and c.first.rank < 3:
        raise Refused("no image")
    return c.operand(0, elems, rank, dims=dims, fresh=0.7)


def _window(c: Call, x: Value, name: str = "kernel_shape") -> list[int]:
    b = c.b
    spatial = x.rank - 2
    kernel = c.attributes.get(name) or [b.number(1, 3) for _ in range(spatial)]
    auto = c.attribute("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"], 0.25)
    if auto in (None, "NOTSET"):
        c.attribute("pads", [[b.number(0, 1) for _ in range(2 * spatial)]], 0.5)
    c.attribute("strides", [[b.number(1, 2) for _ in range(spatial)]], 0.4)
    if "dilations" in c.schema.attributes:
        c.attribute("dilations", [[b.number(1, 2) for _ in range(spatial)]], 0.2)
    return list(kernel)


@fills("Conv")
def conv(c: Call) -> list[Value]:
    b = c.b
    x = _image(c, (T.FLOAT, T.FLOAT, T.FLOAT, T.FLOAT16, T.DOUBLE))
    channels = x.shape[1]
    groups = [g for g in range(1, channels + 1) if channels % g == 0]
    group = c.attribute("group", groups, 0.4) or 1
    kernel = _window(c, x)
    out = group * b.number(1, 3)
    w = c.fixed(1, x.elem, [out, channels // group, *kernel], constant=b.chance(0.8) or None)
    c.attribute("kernel_shape", [kernel], 0.5)
    inputs: list[Value | None] = [x, w]
    if b.chance(0.5):
        inputs.append(c.fixed(2, x.elem, [out]))
    return c.add(inputs)


@fills("MaxPool", "AveragePool")
def pool(c: Call) -> list[Value]:
    b = c.b
    elems = {"MaxPool": (T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT8, T.UINT8)}
    x = _image(c, elems.get(c.op_type, (T.FLOAT, T.FLOAT, T.FLOAT16)))
    c.attributes["kernel_shape"] = _window(c, x)
    c.attribute("ceil_mode", [0, 1], 0.3)
    c.attribute("count_include_pad", [0, 1], 0.4)
    c.attribute("storage_order", [0, 1], 0.2)
    return c.add([x], 2 if c.op_type == "MaxPool" and b.chance(0.35) else 1)


@fills("BatchNormalization")
def batch_normalization(c: Call) -> list[Value]:
    b = c.b
    x = _image(c, (T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16), b.choose([0, 1, 2]))
    c.attribute("epsilon", [1e-5, 1e-3, 0.0])
    c.attribute("momentum", [0.9, 0.5], 0.2)

    def positive(shape: tuple[int, ...]) -> np.ndarray:
        return np.abs(random_array(b.rng, x.elem, shape, 0)) + np.asarray(1, x.first.dtype)

    channels = [x.dims[1]]
    fixed = [c.fixed(k, x.elem, channels, constant=b.chance(0.85) or None) for k in (1, 2, 3)]
    return c.add([x, *fixed, c.fixed(4, x.elem, channels, positive)])


@fills("Softmax", "LogSoftmax", "Hardmax")
def softmax(c: Call) -> list[Value]:
    x = c.operand(0, [T.FLOAT, T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16], (1, 4))
    c.axis(x)
    return c.add([x])


@fills("ArgMax", "ArgMin")
def arg(c: Call) -> list[Value]:
    x = c.operand(0, None, (1, 4))
    c.axis(x)
    c.attribute("keepdims", [0, 1])
    c.attribute("select_last_index", [0, 1], 0.3)
    return c.add([x])
