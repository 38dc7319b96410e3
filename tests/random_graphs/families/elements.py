"""Element-wise ops of which schemas do not say enough."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from ..builder import Refused, Value
from ..call import Call, fills
from ..values import ALL, COMMON, FLOATS, INTS, SIGNED, Array


@fills("Cast")
def cast(c: Call) -> list[Value]:
    x = c.operand(0, (*COMMON, *COMMON, *ALL))
    if "to" not in c.attributes:
        c.attributes["to"] = int(c.b.choose([*COMMON, *COMMON, *ALL]))
    if x.elem == T.STRING or (c.attributes["to"] == T.STRING and not c.b.chance(0.3)):
        raise Refused("few words are numbers")
    if c.attributes["to"] not in c.allows(0, c.schema.outputs):
        raise Refused("no such type at this opset")
    c.attribute("saturate", [0, 1], 0.1)
    return c.add([x])


@fills("Clip")
def clip(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0)
    if b.opset < 11:
        c.attribute("min", [0.0, -0.0, -1.0])
        c.attribute("max", [0.0, 1.0, 6.0])
        return c.add([x])
    inputs: list[Value | None] = [x]
    for k in (1, 2):
        inputs.append(c.fixed(k, x.elem, []) if b.chance(0.7) else None)
    return c.add(inputs)


@fills("Pow")
def power(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT] * 3 + [T.DOUBLE, T.INT64, T.INT32, T.FLOAT16])
    elem = x.elem if b.opset < 12 or b.chance(0.7) else b.choose([T.FLOAT, T.INT64, T.INT32])
    exponents = [0, 1, 2, 3] if elem in INTS else [0.5, 2, 1, -1, -0.5, 0, 3]
    number = np.array(b.choose(exponents)).astype(b.leaf(elem, [], constant=True).first.dtype)
    if b.chance(0.7):
        return c.add([x, b.constant(number.reshape(b.choose([(), (1,)])), elem)])
    return c.add([x, b.broadcast(x, elem)])


@fills("Mod")
def mod(c: Call) -> list[Value]:
    x = c.operand(0, [*INTS, *INTS, T.FLOAT, T.DOUBLE, T.FLOAT16])
    c.attributes.setdefault("fmod", 1 if x.elem in FLOATS else c.b.number(0, 1))

    def nonzero(shape: tuple[int, ...]) -> Array:
        numbers = c.b.rng.integers(1, 6, shape)
        sign = c.b.rng.choice([-1, 1], shape) if x.elem in (*SIGNED, *FLOATS) else 1
        return (numbers * sign).astype(x.first.dtype)

    return c.add([x, c.fixed(1, x.elem, x.dims[c.b.number(0, x.rank) :], nonzero)])


@fills("Div")
def div(c: Call) -> list[Value]:
    x = c.operand(0)
    if x.elem in INTS:

        def nonzero(shape: tuple[int, ...]) -> Array:
            return c.b.rng.integers(1, 6, shape).astype(x.first.dtype)

        return c.add([x, c.fixed(1, x.elem, x.dims[c.b.number(0, x.rank) :], nonzero)])
    return c.add([x, c.b.broadcast(x)])


@fills("RandomNormal", "RandomUniform")
def random_shape(c: Call) -> list[Value]:
    b = c.b
    c.attributes["shape"] = [b.number(1, 3) for _ in range(b.number(0, 3))]
    _seed(c)
    return c.add([])


@fills("RandomNormalLike", "RandomUniformLike")
def random_like(c: Call) -> list[Value]:
    x = c.operand(0, [T.FLOAT])
    _seed(c)
    return c.add([x])


def _seed(c: Call) -> None:
    """With one, and without; two nodes with the same attributes are still two draws."""
    c.attribute("seed", [1.0, 2.0, 3.5], 0.3)
