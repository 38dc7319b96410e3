"""Valid models to start from: small, of every kind, all of them from this repository or onnx."""

import functools
import random
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from tests.conformance.backend_cases import cases, with_constant_inputs

ROOT = Path(__file__).parents[2]
DATA_FILE = "w.bin"
"""The data file beside every model, of `DATA_SIZE` bytes."""
DATA_SIZE = 16384

_TEXTS = (
    # constants through many kinds of ops
    """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n, 4] x) => (float[n, 4] y, float[4, n] z)
    <float[2, 2] w = {1, -0.0, 3, 4}, int64[2] s = {4, 1}, int64[2] e = {-1, 4}> {
        t = Transpose<perm = [1, 0]>(w)
        r = Reshape(t, s)
        c = Cast<to = 11>(r)
        d = Cast<to = 1>(c)
        v = Squeeze(d)
        a = Add(x, v)
        m = Expand(v, e)
        y = Where(cond, a, x)
        cond = Less(x, v)
        z = Transpose(y)
    }""",
    # subgraphs with captures, a sequence, an optional, a string
    """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x, bool b) => (float[k] y, float[2] l, string[2] s) <float[2] w = {1, 2}> {
        y = If(b) <
            then_branch = then () => (float[2] p) { p = Add(x, w) },
            else_branch = other () => (float[4] q) { q = Concat<axis = 0>(x, w) }
        >
        trips = Constant<value_int = 3>()
        yes = Constant<value = bool {1}>()
        l = Loop(trips, yes, w) <body = body (int64 i, bool go, float[2] u) => (bool on, float[2] v)
            { on = Identity(go)
              v = Mul(u, w) }
        >
        s = Constant<value_strings = ["a", "b"]>()
    }""",
    # functions that call functions, with attributes
    """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        a = local.Twice<k = 2.0>(w)
        y = Add(x, a)
    }
    <domain: "local", opset_import: ["" : 21, "local" : 1]>
    Twice<k>(u) => (v) { c = Constant<value_float: float = @k>()
                         h = local.Half(u)
                         v = Mul(h, c) }
    <domain: "local", opset_import: ["" : 21]>
    Half(u) => (v) { two = Constant<value = float {2}>()
                     v = Div(u, two) }""",
    # shape arithmetic, an old opset
    """<ir_version: 7, opset_import: ["" : 12]>
    g (float[n, c, 8, 8] x) => (float[n, d] y) <int64[1] zero = {0}, int64[1] one = {1}> {
        shape = Shape(x)
        n = Slice(shape, zero, one)
        rest = Constant<value = int64[1] {-1}>()
        target = Concat<axis = 0>(n, rest)
        y = Reshape(x, target)
    }""",
)


def _external() -> onnx.ModelProto:
    """A model whose weight of 4,096 bytes is in the data file."""
    text = "g (float[n, 32] x) => (float[n, 32] y) { v = Neg(w) y = MatMul(x, v) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[32, 32])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", DATA_FILE), ("offset", "0"), ("length", "4096")):
        weight.external_data.add(key=key, value=value)
    return model


def _sparse() -> onnx.ModelProto:
    text = "g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    model.metadata_props.add(key="author", value="nobody")
    return model


@functools.cache
def own() -> tuple[bytes, ...]:
    """The models written here, and the smallest of the repository."""
    models = [*map(parser.parse_model, _TEXTS), _external(), _sparse()]
    small = (ROOT / "tests" / "data" / "control_flow.onnx").read_bytes()
    return (*(model.SerializeToString() for model in models), small)


@functools.cache
def of_onnx() -> tuple[onnx.ModelProto, ...]:
    """onnx's own test models of all ops, most of them with their inputs as initializers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = [case for case in cases().values() if case.model.ByteSize() < 20000]
        return tuple(
            (with_constant_inputs(case) if number % 3 else None) or case.model
            for number, case in enumerate(small)
        )


def any_seed(rng: random.Random, *, all_ops: bool = True) -> bytes:
    """One of all seeds.

    Args:
        rng: Decides.
        all_ops: Whether onnx's own test models are used, too: they take seconds to be made.
    """
    if rng.random() < 0.5 or not all_ops:
        return rng.choice(own())
    return rng.choice(of_onnx()).SerializeToString()
