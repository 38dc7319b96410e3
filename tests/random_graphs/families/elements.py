"""Element-wise ops and sums over axes of which schemas do not say enough."""

from __future__ import annotations

from onnx import TensorProto as T

from ..builder import Refused, Value
from ..call import Call, fills, some_axes
from ..values import ALL, COMMON, FLOATS, INTS, Array


@fills("Cast")
def cast(c: Call) -> list[Value]:
    x = c.operand(0, (*COMMON, *COMMON, *ALL))
    if "to" not in c.attributes:
        c.attributes["to"] = int(c.b.choose([*COMMON, *COMMON, *ALL]))
    if x.elem == T.STRING or (c.attributes["to"] == T.STRING and not c.b.chance(0.3)):
        raise Refused("few words are numbers")
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
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
def reduce(c: Call) -> list[Value]:
    x = c.operand(0)
    c.attribute("keepdims", [0, 1])
    # onnxruntime's results have another shape than ONNX says where nothing is reduced along axes
    # that are counted from the end
    axes = some_axes(c.b, x.rank, negative=all(s is None or s.size for s in x.samples))
    if "axes" in c.schema.attributes:
        c.attribute("axes", [axes])
        return c.add([x])
    c.attribute("noop_with_empty_axes", [0, 1], 0.3)
    return c.add([x, c.ints(1, axes) if c.b.chance(0.7) else None])
