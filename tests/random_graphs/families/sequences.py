"""Sequences and optionals."""

from __future__ import annotations

from onnx import TensorProto as T

from ..builder import Builder, Value
from ..call import Call, fills
from .layout import ANYTHING


def a_sequence(b: Builder, elem: int | None = None) -> Value:
    """A sequence in sight, or a new one."""
    there = [v for v in b.scope.visible() if v.kind == "sequence" and elem in (None, v.elem)]
    if there and b.chance(0.7):
        return b.choose(there)
    if b.chance(0.1):
        return Call(b, "SequenceEmpty", attributes={"dtype": elem or T.FLOAT}).make()[0]
    return Call(b, b.choose(["SequenceConstruct", "SplitToSequence"]), attributes={}).make()[0]


@fills("SequenceConstruct")
def construct(c: Call) -> list[Value]:
    b = c.b
    first = b.pick(ANYTHING)
    parts = [first, *(b.pick([first.elem]) for _ in range(b.number(0, 2)))]
    return c.add(parts)


@fills("SplitToSequence")
def split(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, ANYTHING, (1, 3))
    axis = c.axis(x) or 0
    c.attribute("keepdims", [0, 1])
    size = x.shape[axis]
    inputs: list[Value | None] = [x]
    if b.chance(0.6):
        if b.chance(0.5) and size:
            inputs.append(c.number(1, b.number(1, size)))
        else:
            cut = b.number(0, size)
            inputs.append(c.ints(1, [cut, size - cut], T.INT64))
    return c.add(inputs)
