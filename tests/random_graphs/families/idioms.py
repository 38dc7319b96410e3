"""What exporters write: shape arithmetic, duplicates."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from ..builder import Builder, Refused, Value
from ..call import Call

# -------------------------------------------------------------------- shapes


def shape_arithmetic(b: Builder) -> None:
    """Shape, Gather, arithmetic, Concat, and an op that takes the shape."""
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
    takers = ["Reshape", "Expand", "Reshape", "ConstantOfShape", "Tile", "ReduceProd", "Slice"]
    op_type = b.choose(takers)
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
    """A size computed of a size and a number, or another size."""
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


def duplicate(b: Builder) -> None:
    """A node once more, perhaps with an attribute or an operand that is nearly the same."""
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
            raise Refused("refers to an attribute")
        from onnx import helper

        found = helper.get_attribute_value(a)
        if isinstance(found, float) and found == 0 and b.chance(0.5):
            found = -found
        attributes[a.name] = found if not (isinstance(found, list) and not found) else None
    b.node(node.op_type, inputs, [bool(o) for o in node.output], domain=node.domain, **attributes)


def there_and_back(b: Builder) -> None:
    """Transpose and Reshape chains around an element-wise op."""
    x = b.pick(rank=(2, 4), where=lambda v: v.rank > 1)
    perm = [int(p) for p in b.rng.permutation(x.rank)]
    y = b.node("Transpose", [x], perm=perm)[0]
    y = Call(
        b, b.choose(["Relu", "Neg", "Add", "Mul", "Softmax", "ReduceMean", "Identity"]), y
    ).make()[0]
    if y.rank == len(perm):
        perm = [int(p) for p in np.argsort(perm)] if b.chance(0.7) else perm
        b.node("Transpose", [y], perm=perm)
