"""Matrix products, sums over axes, and what models build of them."""

from __future__ import annotations

from onnx import TensorProto as T

from ..builder import Value
from ..call import Call, fills, some_axes

_NUMBERS = [1.0, 1.0, 0.0, -0.0, -1.0, 0.5, 2.0]


@fills("MatMul")
def matmul(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.FLOAT, T.DOUBLE, T.INT32, T.INT64, T.FLOAT16, T.UINT32], (1, 4))
    style = b.number(0, 3)
    dims = [x.dims[-1]] if style == 0 else [x.dims[-1], b.dim()]
    if style == 3 and x.rank >= 2:
        dims = [*(b.dim(1) if b.chance(0.3) else d for d in x.dims[:-2]), *dims]
    return c.add([x, c.fixed(1, x.elem, dims)])


@fills("Gemm")
def gemm(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT32], 2)
    swap_a = c.attribute("transA", [0, 1]) or 0
    swap_b = c.attribute("transB", [0, 1]) or 0
    c.attribute("alpha", _NUMBERS)
    c.attribute("beta", _NUMBERS)
    rows, inner = (x.dims[1], x.dims[0]) if swap_a else (x.dims[0], x.dims[1])
    columns = b.dim()
    y = c.fixed(1, x.elem, [columns, inner] if swap_b else [inner, columns])
    inputs: list[Value | None] = [x, y]
    if c.b.chance(0.6) or b.opset < 11:
        dims = [[], [columns], [b.dim(1), columns], [rows, columns], [rows, b.dim(1)], [b.dim(1)]]
        inputs.append(c.fixed(2, x.elem, b.choose(dims)))
    return c.add(inputs)


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
