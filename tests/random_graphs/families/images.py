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


@fills("ConvTranspose")
def conv_transpose(c: Call) -> list[Value]:
    b = c.b
    x = _image(c)
    channels = x.shape[1]
    groups = [g for g in range(1, channels + 1) if channels % g == 0]
    group = c.attribute("group", groups, 0.4) or 1
    kernel = _window(c, x)
    out = b.number(1, 2)
    w = c.fixed(1, x.elem, [channels, out, *kernel], constant=b.chance(0.8) or None)
    c.attribute("output_padding", [[b.number(0, 1) for _ in kernel]], 0.2)
    inputs: list[Value | None] = [x, w]
    if b.chance(0.5):
        inputs.append(c.fixed(2, x.elem, [out * group]))
    return c.add(inputs)


@fills("MaxPool", "AveragePool", "LpPool")
def pool(c: Call) -> list[Value]:
    b = c.b
    elems = {"MaxPool": (T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT8, T.UINT8)}
    x = _image(c, elems.get(c.op_type, (T.FLOAT, T.FLOAT, T.FLOAT16)))
    c.attributes["kernel_shape"] = _window(c, x)
    c.attribute("ceil_mode", [0, 1], 0.3)
    c.attribute("count_include_pad", [0, 1], 0.4)
    c.attribute("p", [1, 2, 3], 0.4)
    c.attribute("storage_order", [0, 1], 0.2)
    return c.add([x], 2 if c.op_type == "MaxPool" and b.chance(0.35) else 1)


@fills("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> list[Value]:
    x = _image(c)
    c.attribute("p", [1, 2], 0.4)
    return c.add([x])


@fills("Resize")
def resize(c: Call) -> list[Value]:
    b = c.b
    elems = (T.FLOAT, T.FLOAT, T.INT32, T.UINT8, T.INT8, T.FLOAT16)
    x = _image(c, elems, b.choose([1, 2, 2]))
    mode = c.attribute("mode", ["nearest", "linear", "cubic"], 0.8)
    ways = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    c.attribute("coordinate_transformation_mode", ways)
    c.attribute("nearest_mode", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"], 0.4)
    c.attribute("cubic_coeff_a", [-0.5, -0.75], 0.2)
    c.attribute("exclude_outside", [0, 1], 0.2)
    if mode != "cubic":
        c.attribute("antialias", [0, 1], 0.2)
    scaled = [b.choose([1.0, 2.0, 0.5, 1.5]) for _ in range(x.rank - 2)]
    empty = c.b.leaf(T.FLOAT, [b.dim(0)], constant=True) if b.opset < 13 else None
    if b.chance(0.5):
        scales = np.array([1.0, 1.0, *scaled], np.float32)
        inputs = [x, empty, c.fixed(2, T.FLOAT, [x.rank], lambda s: np.resize(scales, s))]
    else:
        sizes = [
            *x.shape[:2],
            *(max(1, int(d * s)) for d, s in zip(x.shape[2:], scaled, strict=True)),
        ]
        inputs = [x, empty, empty, c.ints(3, sizes, T.INT64)]
    return c.add(inputs)


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


@fills("InstanceNormalization")
def instance_normalization(c: Call) -> list[Value]:
    x = _image(c)
    c.attribute("epsilon", [1e-5, 1e-3])
    return c.add([x, c.fixed(1, T.FLOAT, [x.dims[1]]), c.fixed(2, T.FLOAT, [x.dims[1]])])


@fills("LayerNormalization", "RMSNormalization")
def layer_normalization(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16], (1, 4))
    axis = c.axis(x)
    axis = -1 if axis is None else axis
    c.attribute("epsilon", [1e-5, 1e-3, 0.0])
    dims = x.dims[axis:]
    inputs: list[Value | None] = [x, c.fixed(1, x.elem, dims)]
    if c.op_type == "LayerNormalization":
        if b.chance(0.6):
            inputs.append(c.fixed(2, x.elem, dims))
        return c.add(inputs, b.choose([1, 1, 1, 2, 3]))
    return c.add(inputs)


@fills("RNN", "LSTM", "GRU")
def recurrent(c: Call) -> list[Value]:
    b = c.b
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[c.op_type]
    hidden = c.attributes.setdefault("hidden_size", b.number(1, 3))
    direction = c.attribute("direction", ["forward", "reverse", "bidirectional"])
    count = 2 if direction == "bidirectional" else 1
    x = c.operand(0, [T.FLOAT], 3, dims=lambda: b.some_dims(3), fresh=0.7)
    if c.op_type == "GRU":
        c.attribute("linear_before_reset", [0, 1])
    if c.op_type == "LSTM":
        c.attribute("input_forget", [0, 1], 0.2)
    inputs: list[Value | None] = [
        x,
        c.fixed(1, x.elem, [count, gates * hidden, x.dims[2]], constant=b.chance(0.85) or None),
        c.fixed(2, x.elem, [count, gates * hidden, hidden], constant=b.chance(0.85) or None),
    ]
    bias = [count, 2 * gates * hidden]
    inputs.append(c.fixed(3, x.elem, bias) if b.chance(0.6) else None)
    if b.chance(0.3):
        lengths = b.rng.integers(0, x.shape[0] + 1, 1)
        inputs.append(
            c.fixed(4, T.INT32, [x.dims[1]], lambda s: np.resize(lengths, s).astype(np.int32))
        )
    else:
        inputs.append(None)
    state = [b.dim(count), x.dims[1], b.dim(hidden)]
    for k in (5, 6) if c.op_type == "LSTM" else (5,):
        inputs.append(c.fixed(k, x.elem, state) if b.chance(0.5) else None)
    if c.op_type == "LSTM" and b.chance(0.2):
        inputs.append(c.fixed(7, x.elem, [count, 3 * hidden]))
    outputs = [True, True, True] if c.op_type == "LSTM" else [True, True]
    outputs = [b.chance(0.75) for _ in outputs]
    while outputs and not outputs[-1]:
        outputs.pop()
    return c.add(inputs, outputs or [True])


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
