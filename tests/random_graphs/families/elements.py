"""Element-wise ops of which schemas do not say enough."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from ..builder import Refused, Value
from ..call import Call, fills
from ..values import ALL, COMMON, FLOATS, INTS, PACKED, SIGNED, UNSIGNED, Array


@fills("Cast")
def cast(c: Call) -> list[Value]:
    x = c.operand(0, (*COMMON, *COMMON, *ALL))
    if "to" not in c.attributes:
        c.attributes["to"] = int(c.b.choose([*COMMON, *COMMON, *ALL]))
    if x.elem == T.STRING or (c.attributes["to"] == T.STRING and not c.b.chance(0.3)):
        raise Refused("few words are numbers")
    c.attribute("saturate", [0, 1], 0.1)
    return c.add([x])


@fills("CastLike")
def cast_like(c: Call) -> list[Value]:
    return c.add([c.operand(0), c.operand(1)])


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
        inputs.append(c.fixed(k, x.elem, []) if c.has(k, 0.7) else None)
    return c.add(inputs)


@fills("Pow")
def power(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT] * 3 + [T.DOUBLE, T.INT64, T.INT32, T.FLOAT16])
    if 1 in c.given:
        return c.add([x, c.pair(x, 1)])
    elem = x.elem if b.opset < 12 or b.chance(0.7) else b.choose([T.FLOAT, T.INT64, T.INT32])
    exponents = [0, 1, 2, 3] if elem in INTS else [0.5, 2, 1, -1, -0.5, 0, 3]
    number = np.array(b.choose(exponents)).astype(b.leaf(elem, [], constant=True).first.dtype)
    if b.chance(0.7):
        return c.add([x, b.constant(number.reshape(b.choose([(), (1,)])), elem)])
    return c.add([x, b.broadcast(x, elem)])


@fills("BitShift")
def bit_shift(c: Call) -> list[Value]:
    x = c.operand(0, list(UNSIGNED))
    c.attributes.setdefault("direction", c.b.choose(["LEFT", "RIGHT"]))
    return c.add([x, c.pair(x, 1)])


@fills("Mod")
def mod(c: Call) -> list[Value]:
    x = c.operand(0, [*INTS, *INTS, T.FLOAT, T.DOUBLE, T.FLOAT16])
    c.attributes.setdefault("fmod", 1 if x.elem in FLOATS else c.b.number(0, 1))

    def nonzero(shape: tuple[int, ...]) -> Array:
        numbers = c.b.rng.integers(1, 6, shape)
        sign = c.b.rng.choice([-1, 1], shape) if x.elem in (*SIGNED, *FLOATS) else 1
        return (numbers * sign).astype(x.first.dtype)

    if isinstance(c.given.get(1), Value):
        return c.add([x, c.pair(x, 1)])
    return c.add([x, c.fixed(1, x.elem, x.dims[c.b.number(0, x.rank) :], nonzero)])


@fills("Div")
def div(c: Call) -> list[Value]:
    x = c.operand(0)
    if x.elem in INTS and 1 not in c.given:

        def nonzero(shape: tuple[int, ...]) -> Array:
            return c.b.rng.integers(1, 6, shape).astype(x.first.dtype)

        return c.add([x, c.fixed(1, x.elem, x.dims[c.b.number(0, x.rank) :], nonzero)])
    return c.add([x, c.pair(x, 1)])


@fills("Dropout")
def dropout(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.FLOAT, T.DOUBLE, T.FLOAT16])
    inputs: list[Value | None] = [x]
    if b.opset >= 12:
        inputs.append(
            c.fixed(1, T.FLOAT, [], lambda s: np.full(s, 0.5, np.float32))
            if c.has(1, 0.5)
            else None
        )
        inputs.append(
            c.fixed(2, T.BOOL, [], lambda s: np.full(s, b.chance(0.2))) if c.has(2, 0.4) else None
        )
    return c.add(inputs, b.choose([1, 1, 2]))


@fills("PRelu")
def prelu(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.FLOAT, T.FLOAT, T.DOUBLE])
    fixed = [d if len(set(d)) == 1 else b.dim(1) for d in x.dims[b.number(0, x.rank) :]]
    return c.add([x, c.fixed(1, x.elem, fixed)])


@fills("BitCast")
def bit_cast(c: Call) -> list[Value]:
    x = c.operand(0)
    if "to" not in c.attributes:
        size = x.first.dtype.itemsize
        from ..values import dtype_of

        same = [e for e in (*FLOATS, *INTS) if dtype_of(e).itemsize == size]
        c.attributes["to"] = int(c.b.choose(same))
    return c.add([x])


@fills("QuantizeLinear", "DequantizeLinear")
def quantize(c: Call) -> list[Value]:
    b = c.b
    kinds = [T.INT8, T.UINT8, T.INT8, T.UINT8, T.INT16, T.UINT16]
    packed = [e for e in PACKED if e in (T.INT4, T.UINT4)]
    back = c.op_type == "DequantizeLinear"
    if back:
        x = c.operand(0, [*kinds, T.INT32, *(packed if b.opset >= 21 else [])])
        elem, small = T.FLOAT, x.elem
    else:
        x = c.operand(0, [T.FLOAT, T.FLOAT, T.FLOAT, T.FLOAT16])
        elem = x.elem
        small = b.choose(kinds if b.opset >= 21 else kinds[:4])

    def scales(shape: tuple[int, ...]) -> Array:
        return b.rng.choice([0.5, 0.25, 1.0, 0.1, 0.003], shape).astype(_float(elem))

    axis = c.attribute("axis", list(range(-x.rank, x.rank))) if x.rank else None
    each = x.rank and b.opset >= 13 and b.chance(0.5)
    dims = (
        [x.dims[1 if axis is None else axis]] if each and (x.rank > 1 or axis is not None) else []
    )
    inputs: list[Value | None] = [x, c.fixed(1, elem, dims, scales)]
    if c.has(2, 0.8):
        inputs.append(c.fixed(2, small, dims))
    return c.add(inputs)


def _float(elem: int) -> np.dtype:
    from ..values import dtype_of

    return dtype_of(elem)


@fills("DynamicQuantizeLinear")
def dynamic(c: Call) -> list[Value]:
    return c.add([c.operand(0, [T.FLOAT])], 3)


def _scale(c: Call, index: int) -> Value:
    return c.fixed(index, T.FLOAT, [], lambda s: np.full(s, c.b.choose([0.5, 0.1, 1.0]), "f4"))


@fills("QLinearMatMul")
def qlinear_matmul(c: Call) -> list[Value]:
    b = c.b
    e1, e2 = b.choose([(T.UINT8, T.UINT8), (T.UINT8, T.INT8), (T.INT8, T.INT8)])
    x = c.operand(0, [e1], 2)
    if 0 in x.dims[1]:
        raise Refused("onnxruntime gives what was in memory")
    y = c.fixed(3, e2, [x.dims[1], b.dim()])
    return c.add(
        [
            x,
            _scale(c, 1),
            c.fixed(2, e1, []),
            y,
            _scale(c, 4),
            c.fixed(5, e2, []),
            _scale(c, 6),
            c.fixed(7, e1, []),
        ]
    )


@fills("QLinearConv")
def qlinear_conv(c: Call) -> list[Value]:
    b = c.b
    e1, e2 = b.choose([(T.UINT8, T.UINT8), (T.UINT8, T.INT8), (T.INT8, T.INT8)])
    x = c.fixed(0, e1, [b.dim(), 2, 4, 4])
    return c.add(
        [
            x,
            _scale(c, 1),
            c.fixed(2, e1, []),
            c.fixed(3, e2, [2, 2, 2, 2], constant=True),
            _scale(c, 4),
            c.fixed(5, e2, [], constant=True),
            _scale(c, 6),
            c.fixed(7, e1, []),
        ]
    )


@fills("MatMulInteger")
def matmul_integer(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.UINT8, T.INT8], 2)
    if 0 in x.dims[1]:
        raise Refused("onnxruntime gives what was in memory")
    y = c.fixed(1, b.choose([T.UINT8, T.INT8]), [x.dims[1], b.dim()])
    inputs: list[Value | None] = [x, y]
    if c.has(2, 0.5):
        inputs.append(c.fixed(2, x.elem, []))
        if c.has(3, 0.5):
            inputs.append(c.fixed(3, y.elem, []))
    return c.add(inputs)


@fills("ConvInteger")
def conv_integer(c: Call) -> list[Value]:
    b = c.b
    x = c.fixed(0, T.UINT8, [b.dim(), 2, 4, 4])
    inputs = [x, c.fixed(1, T.UINT8, [2, 2, 2, 2])]
    if b.chance(0.5):
        inputs.append(c.fixed(2, T.UINT8, []))
    return c.add(inputs)


@fills("StringNormalizer")
def string_normalizer(c: Call) -> list[Value]:
    b = c.b
    x = c.operand(0, [T.STRING], 1)
    c.attribute("case_change_action", ["LOWER", "UPPER", "NONE"])
    c.attribute("is_case_sensitive", [0, 1])
    c.attribute("stopwords", [["a", "7"]], 0.5)
    del b
    return c.add([x])


@fills("StringSplit")
def string_split(c: Call) -> list[Value]:
    c.attribute("delimiter", [" ", "a", ""])
    c.attribute("maxsplit", [1, 2], 0.3)
    return c.add([c.operand(0, [T.STRING])], 2)


@fills("RegexFullMatch")
def regex(c: Call) -> list[Value]:
    c.attribute("pattern", ["a.*", "[0-9]+", ""], 1.0)
    return c.add([c.operand(0, [T.STRING])])


@fills("TfIdfVectorizer")
def tf_idf(c: Call) -> list[Value]:
    x = c.operand(0, [T.INT64, T.INT32], (1, 2))
    c.attributes.update(
        mode=c.b.choose(["TF", "IDF", "TFIDF"]),
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=c.b.number(0, 1),
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2],
        pool_int64s=[1, 2, 1, 2],
    )
    return c.add([x])


@fills("RandomNormal", "RandomUniform")
def random_shape(c: Call) -> list[Value]:
    b = c.b
    c.attributes["shape"] = [b.number(1, 3) for _ in range(b.number(0, 3))]
    _seed(c)
    return c.add([])


@fills("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(c: Call) -> list[Value]:
    x = c.operand(0, [T.FLOAT])
    _seed(c)
    return c.add([x])


@fills("Multinomial")
def multinomial(c: Call) -> list[Value]:
    _seed(c)
    c.attribute("sample_size", [1, 3])
    return c.add([c.operand(0, [T.FLOAT], 2)])


def _seed(c: Call) -> None:
    """With one, and without; two nodes with the same attributes are still two draws."""
    c.attribute("seed", [1.0, 2.0, 3.5], 0.3)


@fills("BlackmanWindow", "HannWindow", "HammingWindow")
def window(c: Call) -> list[Value]:
    c.attribute("periodic", [0, 1])
    size = c.fixed(0, T.INT64, [], lambda s: np.full(s, c.b.number(1, 6), np.int64))
    return c.add([size])


@fills("MelWeightMatrix")
def mel(c: Call) -> list[Value]:
    numbers = [3, 8, 100]
    inputs = [
        c.fixed(k, T.INT64, [], lambda s, n=n: np.full(s, n, np.int64))
        for k, n in enumerate(numbers)
    ]
    inputs += [
        c.fixed(k + 3, T.FLOAT, [], lambda s, n=n: np.full(s, n, np.float32))
        for k, n in enumerate([10.0, 40.0])
    ]
    return c.add(inputs)


@fills("DFT")
def dft(c: Call) -> list[Value]:
    b = c.b
    x = c.fixed(0, T.FLOAT, [b.number(1, 2), b.number(2, 5), b.choose([1, 2])])
    c.attribute("inverse", [0, 1], 0.2)
    c.attribute("onesided", [0, 1], 0.2)
    if b.opset < 20:
        c.attribute("axis", [1], 0.5)
    return c.add([x])


@fills("STFT")
def stft(c: Call) -> list[Value]:
    signal = c.fixed(0, T.FLOAT, [c.b.number(1, 2), 12, 1])
    step = c.fixed(1, T.INT64, [], lambda s: np.full(s, 2, np.int64))
    c.attribute("onesided", [0, 1])
    return c.add([signal, step, None, c.fixed(3, T.INT64, [], lambda s: np.full(s, 4, np.int64))])
