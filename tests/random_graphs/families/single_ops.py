"""Add ops whose schemas are not precise enough to choose operands and attributes."""

import numpy as np
from onnx import TensorProto as T
from onnx.numpy_helper import from_array

from ..call import Call, fills, some_axes
from ..scopes import Refused, Value
from ..values import ALL, COMMON, FLOATS, INTS, Array, random_array

ANYTHING = (*COMMON, *COMMON, T.STRING, *ALL)


@fills("Reshape")
def reshape(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING)
    shape: list[int] = []
    remaining = int(np.prod(x.shape, dtype=np.int64))
    for axis in range(b.number(0, 4)):
        if axis < x.rank and b.chance(0.35):
            shape.append(0)
            remaining = remaining // x.shape[axis] if x.shape[axis] else remaining
            continue
        divisors = (
            [d for d in range(1, max(remaining, 1) + 1) if remaining % d == 0]
            if remaining
            else [0, 1, 2]
        )
        shape.append(b.choose(divisors))
        remaining = remaining // shape[-1] if shape[-1] else remaining
    if remaining != 1 or b.chance(0.5):
        shape.insert(b.number(0, len(shape)) if 0 not in shape else len(shape), -1)
    if b.chance(0.5) and len(set(map(len, map(set, x.dims)))):
        # keep the first sizes of the input and join the others
        shape = [0] * b.number(0, x.rank) + [-1]
    c.attribute("allowzero", [0, 1], 0.15)
    return c.add([x, c.ints(1, shape, T.INT64)])


@fills("Transpose")
def transpose(c: Call) -> list[Value]:
    x = c.operand(0, ANYTHING)
    c.attribute("perm", [[int(p) for p in c.b.rng.permutation(x.rank)]], 0.9)
    return c.add([x])


@fills("Squeeze", "Unsqueeze")
def squeeze(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING)
    if c.op_type == "Squeeze":
        ones = [a for a, d in enumerate(x.dims) if set(d) == {1}]
        axes = [a for a in ones if b.chance(0.7)]
        rank = x.rank
    else:
        rank = x.rank + b.number(1, 2)
        axes = [int(a) for a in b.rng.permutation(rank)[: rank - x.rank]]
    axes = [a - rank if b.chance(0.3) else a for a in axes]
    if "axes" in c.schema.attributes:
        c.attribute("axes", [axes], 0.8 if c.op_type == "Squeeze" else 1.0)
        return c.add([x])
    if c.op_type == "Squeeze" and not c.b.chance(0.8):
        return c.add([x])
    return c.add([x, c.ints(1, axes)])


@fills("Concat")
def concat(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 5), where=lambda v: v.rank > 0)
    axis = b.number(-x.rank, x.rank - 1)
    c.attributes["axis"] = axis
    parts = [x]
    for k in range(1, b.number(1, 4)):
        if b.chance(0.2):
            parts.append(b.choose(parts))
            continue
        dims = list(x.dims)
        dims[axis] = b.dim(b.choose([1, 1, 2, 3, 0]))
        parts.append(c.fixed(k, x.elem, dims))
    return c.add(parts)


@fills("Split")
def split(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 4))
    axis = c.axis(x) or 0
    size = x.shape[axis]
    count = b.number(1, min(4, max(size, 1)))
    cuts = sorted(b.number(0, size) for _ in range(count - 1))
    sizes = [int(e - s) for s, e in zip([0, *cuts], [*cuts, size], strict=True)]
    if size % count == 0 and b.chance(0.5):
        sizes = [size // count] * count
    if "split" in c.schema.attributes:
        c.attribute("split", [sizes], 1.0 if size % count else 0.6)
        return c.add([x], count)
    if b.chance(0.6) or (b.opset < 18 and size % count):
        return c.add([x, c.ints(1, sizes)], count)
    if "num_outputs" in c.schema.attributes:
        c.attributes["num_outputs"] = count
    return c.add([x], count)


@fills("Expand")
def expand(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING)
    shape = [b.choose([1, d[0]]) if set(d) != {1} else b.choose([1, 2, 3, 0, 1]) for d in x.dims]
    shape = [1 if len(set(d)) > 1 else s for s, d in zip(shape, x.dims, strict=True)]
    if b.chance(0.3):
        shape = [b.number(1, 3), *shape]
    elif b.chance(0.2):
        shape = shape[b.number(0, len(shape)) :]
    return c.add([x, c.ints(1, shape)])


@fills("Tile")
def tile(c: Call) -> list[Value]:
    x = c.operand(0, ANYTHING)
    return c.add([x, c.ints(1, [c.b.choose([1, 1, 2, 3, 0]) for _ in range(x.rank)])])


@fills("Pad")
def pad(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, None, (1, 4))
    if b.opset < 11:
        c.attributes["pads"] = [b.number(0, 2) for _ in range(2 * x.rank)]
        c.attribute("value", [0.0, -0.0, 1.5])
        return c.add([x])
    modes = ["constant", "constant", "reflect", "edge"] + (["wrap"] if b.opset >= 19 else [])
    c.attribute("mode", modes)
    inputs: list[Value | None] = [x, None, None]
    axes = list(range(x.rank))
    if b.opset >= 18 and c.b.chance(0.3):
        axes = some_axes(b, x.rank)
        inputs.append(c.ints(3, axes))
    low = -1 if b.chance(0.2) else 0
    inputs[1] = c.ints(1, [b.number(low, 2) if b.chance(0.6) else 0 for _ in range(2 * len(axes))])
    if c.b.chance(0.5):
        inputs[2] = c.fixed(2, x.elem, [])
    return c.add(inputs)


@fills("Slice")
def slice_(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 5))
    if x.rank == 0:
        raise Refused("no axis")
    axes = some_axes(b, x.rank) or [0]
    if b.opset < 10:
        c.attributes.update(axes=axes, starts=[b.number(-2, 2) for _ in axes])
        c.attributes["ends"] = [b.choose([1, 2, -1, 2**31 - 1]) for _ in axes]
        return c.add([x])
    inputs: list[Value | None] = [x, None, None, None, None]
    if c.b.chance(0.8):
        inputs[3] = c.ints(3, axes)
    else:
        axes = list(range(len(axes)))
    far = [2**31 - 1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62]
    starts = []
    ends = []
    steps = []
    stepping = c.b.chance(0.5)
    for _ in axes:
        step = (
            1 if not stepping else b.choose([1, 1, 1, 2, 3, -1, -2, 2**62 if b.chance(0.1) else 1])
        )
        start = b.number(-2, 2)
        end = b.number(0, 4) if b.chance(0.6) else b.number(-4, 6)
        if step < 0:
            start, end = end, b.choose([-9, 0, 1, start])
        if b.chance(0.3):
            start = 0 if step > 0 else -1
        if b.chance(0.3):
            end = b.choose(far)
        if b.chance(0.04):
            start = b.choose(far)
        starts.append(start)
        ends.append(end)
        steps.append(step)
    elem = T.INT64
    if not any(abs(n) >= 2**31 for n in [*starts, *ends, *steps]) and b.chance(0.15):
        elem = T.INT32
    inputs[1] = c.ints(1, starts, elem)
    inputs[2] = c.ints(2, ends, elem)
    if inputs[3] is not None and elem == T.INT32:
        inputs[3] = c.ints(3, axes, elem)
    if stepping:
        if inputs[3] is None and b.chance(0.5):
            inputs[3] = c.ints(3, axes, elem)
        inputs[4] = c.ints(4, steps, elem)
    return c.add(inputs)


@fills("ConstantOfShape")
def constant_of_shape(c: Call) -> list[Value]:
    b = c.b
    elem = b.choose([T.FLOAT, T.INT64, T.BOOL, T.DOUBLE, T.FLOAT16, *INTS])
    if "value" not in c.attributes and b.chance(0.7):
        c.attributes["value"] = from_array(random_array(b.rng, elem, (1,), b.hostile), "value")
    return c.add([c.ints(0, [b.number(0, 3) for _ in range(b.number(0, 3))])])


@fills("Range")
def range_(c: Call) -> list[Value]:
    b = c.b
    elem = b.choose([T.INT64, T.INT32, T.FLOAT, T.INT16, T.DOUBLE])
    step = b.choose([1, 2, -1, 3] if elem in INTS else [1, 0.5, -1.5, 0.1])
    start = b.number(-3, 3)
    count = b.number(0, 6)
    numbers = [start, start + count * step, step]
    return c.add([c.number(k, n, elem) for k, n in enumerate(numbers)])


@fills("Cast")
def cast(c: Call) -> list[Value]:
    x = c.operand(0, (*COMMON, *COMMON, *ALL))
    if "to" not in c.attributes:
        c.attributes["to"] = int(c.b.choose([*COMMON, *COMMON, *ALL]))
    if x.elem == T.STRING or (c.attributes["to"] == T.STRING and not c.b.chance(0.3)):
        raise Refused("few strings are numbers")
    c.attribute("saturate", [0, 1], 0.1)
    return c.add([x])


@fills("TopK")
def top_k(c: Call) -> list[Value]:
    x = c.operand(0, None, (1, 3))
    axis = c.axis(x)
    size = min([d for d in x.dims[-1 if axis is None else axis] if d > 0], default=0)
    c.attribute("largest", [0, 1])
    return c.add([x, c.ints(1, [c.b.number(0, size)], T.INT64)], [True, c.b.chance(0.8)])


@fills("Div", "Mod")
def divide(c: Call) -> list[Value]:
    x = c.operand(0)
    if c.op_type == "Mod":
        c.attributes.setdefault("fmod", 1 if x.elem in FLOATS else c.b.number(0, 1))
    if x.elem not in INTS:
        return c.add([x, c.b.broadcast(x)])

    def nonzero(shape: tuple[int, ...]) -> Array:
        numbers = c.b.rng.integers(1, 6, shape)
        return (numbers * c.b.rng.choice([-1, 1], shape)).astype(x.first.dtype)

    return c.add([x, c.fixed(1, x.elem, x.dims[c.b.number(0, x.rank) :], nonzero)])


@fills(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)
def reduce(c: Call) -> list[Value]:
    x = c.operand(0)
    c.attribute("keepdims", [0, 1])
    # For empty operands and negative axes, the shape of onnxruntime's result differs from the
    # specification.
    axes = some_axes(c.b, x.rank, negative=all(s is None or s.size for s in x.samples))
    if "axes" in c.schema.attributes:
        c.attribute("axes", [axes])
        return c.add([x])
    c.attribute("noop_with_empty_axes", [0, 1], 0.3)
    return c.add([x, c.ints(1, axes) if c.b.chance(0.7) else None])
