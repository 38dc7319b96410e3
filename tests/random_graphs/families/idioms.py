"""Add idioms of exporters, such as shape arithmetic and duplicate nodes."""

import numpy as np
from onnx import TensorProto as T
from onnx import helper

from ..builder import Builder
from ..call import Call
from ..scopes import FEEDS, Refused, Value
from ..values import INTS, Array, dtype_of


def shape_arithmetic(b: Builder) -> None:
    """Add nodes that compute a vector from the sizes of a value, and a consumer of the vector."""
    x = b.pick(rank=(1, 4), where=lambda v: v.rank > 0)
    shape = b.node("Shape", [x])[0]
    parts: list[Value] = []
    for axis in range(x.rank):
        style = b.number(0, 3)
        index = axis - x.rank if b.chance(0.2) else axis
        if style == 0:
            part = b.ints(x.shape[axis])
        elif style == 1:
            part = b.node("Gather", [shape, b.constant(np.array([index]), T.INT64)], axis=0)[0]
        elif style == 2:
            part = b.node("Slice", [shape, b.ints(axis), b.ints(axis + 1), b.ints(0)])[0]
        else:
            scalar = b.node("Gather", [shape, b.constant(np.array(index), T.INT64)])[0]
            part = unsqueeze(b, scalar)
        while b.chance(0.35):
            part = _computed(b, part, parts)
        if b.chance(0.15):
            part = b.node("Cast", [part], to=T.FLOAT)[0]
            part = b.node("Cast", [part], to=T.INT64)[0]
        parts.append(part)
    if b.chance(0.4) and len(parts) > 1:
        parts = parts[: b.number(1, len(parts))]
        parts.append(b.ints(-1))
    target = b.node("Concat", parts, axis=0)[0]
    consumers = ["Reshape", "Expand", "Reshape", "ConstantOfShape", "Tile", "ReduceProd", "Slice"]
    op_type = b.choose(consumers)
    if op_type == "ConstantOfShape":
        b.node(op_type, [target])
    elif op_type == "ReduceProd":
        b.node(op_type, [target], keepdims=b.number(0, 1))
    elif op_type == "Slice":
        end = b.node("Gather", [target, b.ints(0)])[0]
        step = b.ints(b.choose([1, 1, 2, -1]))
        b.node(op_type, [x, b.choose([b.ints(0), parts[-1]]), end, b.ints(0), step])
    else:
        b.node(op_type, [x, target])


def _computed(b: Builder, part: Value, others: list[Value]) -> Value:
    """Compute a size from a size and a number, or from two sizes."""
    op_type = b.choose(["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Where"])
    numbers = [-3, -2, 1, 2, 3, 4] if op_type in ("Div", "Mod") else [*range(-3, 7)]
    other = b.ints(b.choose(numbers))
    if others and op_type not in ("Div", "Mod") and b.chance(0.5):
        other = b.choose(others)
    if op_type == "Where":
        condition = b.node(b.choose(["Equal", "Less", "Greater"]), [part, b.ints(b.number(0, 4))])
        return b.node(op_type, [*condition, part, other])[0]
    return b.node(op_type, [part, other])[0]


def unsqueeze(b: Builder, scalar: Value) -> Value:
    if b.opset < 13:
        return b.node("Unsqueeze", [scalar], axes=[0])[0]
    return b.node("Unsqueeze", [scalar, b.ints(0)])[0]


def sized_by_numbers(b: Builder) -> None:
    """Add an op whose result has sizes that depend on floats, on sizes or on input elements."""
    x = b.pick(rank=(1, 3), where=lambda v: v.rank > 0)
    op_type = b.choose(["Range", "ConstantOfShape", "Tile", "Slice", "Expand", "Reshape", "TopK"])
    if op_type == "Range":
        elem = b.choose([T.FLOAT, T.DOUBLE, T.INT64, T.INT32, T.INT16])
        step = b.choose([1, 2, -1, 3] if elem in INTS else [0.1, 0.3, -0.7, 1 / 3, 1e-7, 2**-24, 1])
        start = b.choose([0, -1, 0.1, 5, 2**24 + 1, 1e-3]) if elem not in INTS else b.number(-3, 3)
        end = start + b.number(0, 9) * step
        numbers = [_number(b, x, n, elem, ()) for n in (start, end, step)]
        b.node(op_type, numbers)
        return
    size = _number(b, x, b.number(0, 4), T.INT64, (1,))
    others = [b.choose([b.ints(b.number(1, 3)), size]) for _ in range(x.rank - 1)]
    sizes = b.node("Concat", [size, *others], axis=0)[0] if others else size
    if op_type == "ConstantOfShape":
        b.node(op_type, [sizes])
    elif op_type == "Slice":
        b.node(op_type, [x, b.choose([b.ints(0), b.ints(-2)]), size, b.ints(0)])
    elif op_type == "TopK":
        b.node(op_type, [x, size], 2, axis=b.number(0, x.rank - 1))
    elif op_type == "Reshape":
        b.node(op_type, [x, b.node("Concat", [size, b.ints(-1)], axis=0)[0]])
    else:
        b.node(op_type, [x, sizes])


def _number(b: Builder, x: Value, number: float, elem: int, shape: tuple[int, ...]) -> Value:
    """Return a tensor for a number: a constant, an input, or a result of nodes.

    The nodes multiply and divide the number by a factor, limit integers of an input to the range
    from 0 to the number, or multiply or divide a size of ``x``.
    """

    def constant(n: float, of: int) -> Value:
        return b.constant(np.full(shape, n, dtype_of(of)), of)

    style = b.number(0, 4)
    if style == 0:
        return constant(number, elem)
    if style == 1:
        return b.leaf(
            elem, [(n,) * FEEDS for n in shape], lambda s: np.full(s, number, dtype_of(elem))
        )
    of = b.choose([T.FLOAT, T.DOUBLE]) if elem in INTS else elem
    if style == 2:  # the number after two roundings of floats
        factor = b.choose([0.5, 3, 0.1, 1 / 3, 7])
        wide = b.node(b.choose(["Mul", "Div"]), [constant(number, of), constant(factor, of)])[0]
        other = "Div" if b.scope.nodes[-1].op_type == "Mul" else "Mul"
        wide = b.node(other, [wide, constant(factor, of)])[0]
        wide = b.node(b.choose(["Floor", "Ceil", "Identity"]), [wide])[0] if elem in INTS else wide
    elif style == 3:  # arbitrary integers of an input, limited to a range
        kind = b.choose([T.INT64, T.INT32])
        dims = [(n,) * FEEDS for n in shape]
        any_number = b.leaf(kind, dims, lambda s: _hostile(b, kind, s))
        most = b.node("Min", [any_number, constant(number, any_number.elem)])[0]
        wide = b.node("Max", [most, constant(0, any_number.elem)])[0]
    else:
        part = b.node("Shape", [x])[0]
        part = b.node("Gather", [part, b.constant(np.zeros(shape, np.int64), T.INT64)])[0]
        part = b.node("Cast", [part], to=of)[0]
        part = b.node(b.choose(["Mul", "Div"]), [part, constant(b.choose([0.5, 2, 0.3]), of)])[0]
        wide = b.node(b.choose(["Floor", "Ceil"]), [part])[0]
    return b.node("Cast", [wide], to=elem)[0] if wide.elem != elem else wide


def _hostile(b: Builder, elem: int, shape: tuple[int, ...]) -> Array:
    numbers = [3, 0, -1, 2**30, -(2**31), 2**31 - 1, 1]
    return np.array(b.rng.choice(numbers, shape), dtype_of(elem))


_DATA_OPS = (
    "Add",
    "Sub",
    "Mul",
    "Mul",
    "Div",
    "Mod",
    "Min",
    "Max",
    "Neg",
    "Abs",
    "Sign",
    "Cast",
    "Less",
    "Greater",
    "Equal",
    "LessOrEqual",
    "ReduceMax",
    "ReduceSum",
    "Concat",
)


def data_arithmetic(b: Builder) -> None:
    """Add arithmetic, comparisons and Where on a few integers of an input. Results may overflow."""
    elem = b.choose([T.INT64, T.INT32])
    count = b.number(1, 3)
    ends = np.iinfo(dtype_of(elem))
    pool = [0, 1, -1, 2, 5, ends.max, ends.min, ends.max // 2 + 1, ends.min // 2, 2**31 - 7]

    def make(shape: tuple[int, ...]) -> Array:
        return np.array(b.rng.choice(pool, shape), dtype_of(elem))

    values = [b.leaf(elem, [(count,) * FEEDS], make, constant=False)]
    for _ in range(b.number(2, 7)):
        op_type = b.choose(_DATA_OPS)
        one = b.choose(values)
        alike = [v for v in values if v.elem == one.elem and v.dims == one.dims]
        small = b.constant(np.array(b.choose([1, 2, 3, -1, -2, 4]), one.first.dtype), one.elem)
        other = b.choose([*alike, small, small])
        if op_type in ("Div", "Mod"):  # the minimum divided by -1 ends the process
            other = b.constant(np.array(b.choose([2, 3, -2, 4]), one.first.dtype), one.elem)
        if op_type in ("Neg", "Abs", "Sign"):
            made = b.node(op_type, [one])[0]
        elif op_type == "Cast":
            made = b.node(op_type, [one], to=T.INT64 if one.elem == T.INT32 else T.INT32)[0]
        elif op_type.startswith("Reduce"):
            made = b.node(op_type, [one], keepdims=1)[0]
        elif op_type == "Concat":
            made = b.node(op_type, [one, b.choose(alike)], axis=0)[0]
        else:
            made = b.node(op_type, [one, other])[0]
        if made.elem == T.BOOL:
            made = b.node("Where", [made, one, b.choose(alike)])[0]
        values.append(made)


def duplicate(b: Builder) -> None:
    """Repeat a node. Its initializers may be copied, and attributes of 0.0 may become -0.0.

    Raises:
        Refused: There is no node to repeat, or the node refers to an attribute of a function.
    """
    nodes = [n for n in b.scope.nodes if n.op_type not in ("If", "Loop", "Scan", "SequenceMap")]
    if not nodes:
        raise Refused("nothing to repeat")
    node = b.choose(nodes)
    known = {v.name: v for v in b.scope.visible()}
    inputs: list[Value | None] = [known[i] if i else None for i in node.input]
    for k, value in enumerate(inputs):
        if value is not None and value.tensor is not None and b.chance(0.5):
            inputs[k] = b.constant(value.first, value.elem)
    attributes = {}
    for a in node.attribute:
        if a.ref_attr_name:
            raise Refused("the node refers to an attribute of a function")
        found = helper.get_attribute_value(a)
        if isinstance(found, float) and found == 0 and b.chance(0.5):
            found = -found
        attributes[a.name] = found if not (isinstance(found, list) and not found) else None
    b.node(node.op_type, inputs, [bool(o) for o in node.output], domain=node.domain, **attributes)


def op_between_transposes(b: Builder) -> None:
    """Add an op between two Transposes, which are often inverse to each other.

    The second Transpose is omitted if the op changes the rank.
    """
    x = b.pick(rank=(2, 4), where=lambda v: v.rank > 1)
    perm = [int(p) for p in b.rng.permutation(x.rank)]
    y = b.node("Transpose", [x], perm=perm)[0]
    y = Call(
        b, b.choose(["Relu", "Neg", "Add", "Mul", "Softmax", "ReduceMean", "Identity"]), y
    ).make()[0]
    if y.rank == len(perm):
        perm = [int(p) for p in np.argsort(perm)] if b.chance(0.7) else perm
        b.node("Transpose", [y], perm=perm)
