"""Test that constant propagation preserves the bits of elements of many dtypes.

Further tests check arithmetic, sparse initializers, and constants that must not be stored.
"""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fold_check import fold, parse, with_weights
from reference_session import reference_session

import onnxfold
from tests.kernels.kernel_values import WIDTHS, random_bits

NAMES = """BFLOAT16 FLOAT16 DOUBLE FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0
    INT4 UINT4 FLOAT4E2M1 INT8 UINT16 UINT64 BOOL COMPLEX64"""
DTYPES = [ir.DataType[name] for name in NAMES.split()]
NARROW = {ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1}


def random(shape: tuple[int, ...], dtype: ir.DataType) -> np.ndarray:
    return random_bits(np.random.default_rng(3), dtype.numpy(), shape)


def moved(dtype: ir.DataType, shape: tuple[int, ...], body: str, **sizes) -> np.ndarray:
    """Fold a model that moves the elements of the random weight ``w``, and return the output.

    All nodes must be folded. ``sizes`` are further initializers.
    """
    model = parse(f"g () => (float[n] y) {{ {body} }}", opset=25)
    model.graph.output[0].type.tensor_type.elem_type = dtype.value
    with_weights(model, w=ir.Tensor(random(shape, dtype), dtype=dtype), **sizes)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.ir_version = 13
    folded = fold(model)
    assert folded.ops == {}, folded.reasons
    return folded.weights["y"]


def bits(array: np.ndarray) -> bytes:
    used = np.uint8((1 << WIDTHS.get(array.dtype, 8)) - 1)
    return (np.ascontiguousarray(array).reshape(-1).view(np.uint8) & used).tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_transpose_and_reshape(dtype):
    got = moved(
        dtype, (3, 5), "t = Transpose <perm = [1, 0]> (w) y = Reshape (t, s)", s=np.int64([3, -1])
    )
    assert bits(got) == bits(random((3, 5), dtype).T.reshape(3, 5))
    assert got.dtype == dtype.numpy()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_a_large_transpose(dtype):
    got = moved(dtype, (333, 257), "y = Transpose <perm = [1, 0]> (w)")
    assert bits(got) == bits(random((333, 257), dtype).T)


@pytest.mark.parametrize(
    "dtype",
    [
        d for d in DTYPES if d not in NARROW and not d.name.startswith("FLOAT8")
    ],  # Slice and Concat do not allow the other dtypes
    ids=lambda d: d.name,
)
def test_slice_backwards_and_concat(dtype):
    lists = {k: np.int64([v]) for k, v in {"a": -1, "b": -(2**62), "c": 0, "d": -1}.items()}
    got = moved(dtype, (5, 3), "r = Slice (w, a, b, c, d) y = Concat <axis = 0> (r, w)", **lists)
    array = random((5, 3), dtype)
    assert bits(got) == bits(np.concatenate([array[::-1], array]))


@pytest.mark.parametrize("dtype", [ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 3), (7,)])
def test_four_bits_in_odd_numbers(dtype, shape):
    got = moved(dtype, shape, "y = Identity (w)")
    assert got.shape == shape
    assert bits(got) == bits(random(shape, dtype))


def test_bfloat16_arithmetic_rounds_after_every_op():
    model = parse("g () => (bfloat16[3] y) { a = Add (w, w) b = Mul (a, w) y = Sub (b, w) }")
    w = np.array([1.0078125, 3.140625, -0.001], ml_dtypes.bfloat16)
    with_weights(model, w=w)
    assert bits(fold(model).weights["y"]) == bits((w + w) * w - w)


def test_integers_wrap():
    model = parse("g () => (int8[3] y) { a = Add (w, w) y = Neg (a) }")
    with_weights(model, w=np.int8([127, -128, 64]))
    assert fold(model).weights["y"].tolist() == [2, 0, -128]


def sparse(name: str, dims: list[int], places: list[int], values: list[float]):
    tensor = onnx.SparseTensorProto(dims=dims)
    tensor.values.CopyFrom(onnx.numpy_helper.from_array(np.float32(values), name))
    tensor.indices.CopyFrom(onnx.numpy_helper.from_array(np.int64(places), name + "_i"))
    return tensor


def test_sparse_initializers_are_folded():
    model = parse("g (float[2] x) => (float[2] y) { v = Neg (w) y = Add (x, v) }")
    model.graph.sparse_initializer.append(sparse("w", [2], [1], [5.0]))
    folded = fold(model)
    assert folded.ops == {"Add": 1}
    assert folded.weights["v"].tolist() == [0.0, -5.0]


def test_values_that_onnxruntime_overwrites_are_not_stored():
    """BatchNormalization in training mode changes its running mean and variance in place."""
    text = """g (float[2,3] x, float[3] s) => (float[3] y) <float[3] m = {1, 2, 3}> {
        n = Neg(m)  v = Exp(m)
        a, b, c = BatchNormalization<training_mode=1>(x, s, s, n, v)  y = Add(b, c) }"""
    model = parse(text)
    folded = onnxfold.optimize(model, fold_all=True)
    assert {"Neg", "Exp", "BatchNormalization"} <= {n.op_type for n in folded.graph.node}
    feeds = {"x": np.ones((2, 3), np.float32), "s": np.ones(3, np.float32)}
    session = reference_session(folded)
    before = reference_session(model)
    for _ in range(3):
        assert session.run(None, feeds)[0].tobytes() == before.run(None, feeds)[0].tobytes()


def test_a_shape_that_is_only_valid_at_run_time_is_not_stored():
    """With allowzero=1, runtimes reject a constant shape with 0 and -1.

    They accept such a shape for an empty tensor if a node computes the shape.
    """
    text = """g (float[0,3] x) => (float[a,b] y) <float[2] f = {{0, -1}}> {{
        s = Cast<to=7>(f)  y = Reshape<allowzero={}>(x, s) }}"""
    kept = onnxfold.optimize(parse(text.format(1)), fold_all=True)
    assert [n.op_type for n in kept.graph.node] == ["Cast", "Reshape"]
    reference_session(kept)
    folded = onnxfold.optimize(parse(text.format(0)), fold_all=True)
    assert "Cast" not in [n.op_type for n in folded.graph.node]


@pytest.mark.parametrize(
    "shape",
    ["s = Reshape(c, zero)", "s = Identity(c)", "d = Shape(x)  e = Sub(d, d)  s = Add(e, c)"],
)
def test_no_pass_replaces_a_computed_shape_with_such_a_constant(shape: str):
    text = f"""g (float[0,3] x) => (float[a,b] y) <int64[2] c = {{0, -1}}, int64[1] zero = {{0}}> {{
        {shape}  y = Reshape<allowzero=1>(x, s) }}"""
    kept = onnxfold.optimize(parse(text))
    assert len(kept.graph.node) > 1
    reference_session(kept)
