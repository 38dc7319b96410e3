"""Matrix products, sums over axes, and what models build of them."""

from __future__ import annotations

from onnx import TensorProto as T

from ..builder import Value
from ..call import Call, fills, some_axes
from ..values import FLOATS

_NUMBERS = [1.0, 1.0, 0.0, -0.0, -1.0, 0.5, 2.0]


@fills("MatMul")
def matmul(c: Call) -> list[Value]:
    b = c.b
    given = c.given.get(1)
    if isinstance(given, Value) and 0 not in c.given:
        inner = given.dims[0 if given.rank < 2 else -2]
        dims = [*([b.dim()] if b.chance(0.8) else []), inner]
        return c.add([c.fixed(0, given.elem, dims), given])
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
    given = c.given.get(1)
    columns = given.dims[0 if swap_b else 1] if isinstance(given, Value) else b.dim()
    y = c.fixed(1, x.elem, [columns, inner] if swap_b else [inner, columns])
    inputs: list[Value | None] = [x, y]
    if c.has(2, 0.6) or b.opset < 11:
        dims = [[], [columns], [b.dim(1), columns], [rows, columns], [rows, b.dim(1)], [b.dim(1)]]
        inputs.append(c.fixed(2, x.elem, b.choose(dims)))
    return c.add(inputs)


@fills("Einsum")
def einsum(c: Call) -> list[Value]:
    b = c.b
    equations = [
        *("ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "i,j->ij", "ij->ji", "ii->i", "ij->i"),
        *(
            "ij,ij->",
            "...i,...i->...",
            "i,i",
            "bhid,bhjd->bhij",
            "abc->cab",
            "ij,j->i",
            "ij,ij->ij",
        ),
    ]
    equation = c.attributes.setdefault("equation", b.choose(equations))
    sizes = {letter: b.dim() for letter in "abcdhijk"}
    inputs = []
    elem = b.choose([T.FLOAT, T.DOUBLE, T.INT64, T.INT32])
    for k, term in enumerate(equation.split("->")[0].split(",")):
        letters = term.replace("...", "ab" if "..." in term else "")
        inputs.append(c.fixed(k, elem, [sizes[letter] for letter in letters]))
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
    return c.add([x, c.ints(1, axes) if c.has(1, 0.7) else None])


@fills("CumSum", "CumProd")
def cumulate(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.DOUBLE, T.INT32, T.INT64], (1, 3))
    c.attribute("exclusive", [0, 1], 0.4)
    c.attribute("reverse", [0, 1], 0.4)
    import numpy as np

    axis = b.number(-x.rank, x.rank - 1)
    return c.add([x, c.fixed(1, T.INT64, [], lambda s: np.full(s, axis, np.int64))])


@fills("Det")
def det(c: Call) -> list[Value]:
    side = c.b.dim(c.b.number(1, 3))
    return c.add([c.fixed(0, T.FLOAT, [*c.b.some_dims(c.b.number(0, 1)), side, side])])


@fills("Attention")
def attention(c: Call) -> list[Value]:
    b = c.b
    elem = b.choose([T.FLOAT, T.FLOAT, T.FLOAT16])
    batch, heads, size = b.dim(b.number(1, 2)), b.dim(b.choose([1, 2])), b.dim(b.choose([2, 4]))
    rows, columns = b.dim(b.number(1, 3)), b.dim(b.number(1, 3))
    inputs: list[Value | None] = [
        c.fixed(0, elem, [batch, heads, rows, size]),
        c.fixed(1, elem, [batch, heads, columns, size]),
        c.fixed(2, elem, [batch, heads, columns, size]),
    ]
    if b.chance(0.4):
        inputs.append(c.fixed(3, b.choose([elem, T.BOOL]), [rows, columns]))
    c.attribute("is_causal", [0, 1], 0.3)
    c.attribute("scale", [0.5, 1.0, 0.125], 0.4)
    c.attribute("softcap", [0.0, 2.0], 0.2)
    return c.add(inputs)


__all__ = ["FLOATS"]
