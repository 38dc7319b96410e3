"""Test that the check of a kernel finds code that is wrong for some values or sizes only."""

from functools import partial

import numpy as np
import onnx
import pytest
from model_backend import run_model
from runtime_models import parse, random

from onnxfold.ir import storage
from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.component import demands
from onnxfold.runtime.backends.kernel_check import Draw, draws, error_of, largest_error
from onnxfold.tools.comparison.runners import Subject, open_runner
from onnxfold.tools.comparison.tolerances import TOLERANCES, Noise

ONE = "({0}[n, 16] x) => ({1}[n, 16] y) {{ {2} }}"


def drawn(text: str, nominal=None) -> list[Draw]:
    model = storage.from_proto(parse(f"g {text}"))
    return draws(model.graph.inputs, demands(model), nominal or {})


def checked(text: str, function) -> float:
    """Check a function that replaces the kernel of a model, and return the largest error.

    Raises:
        CompileError: An error exceeds the tolerance.
    """
    model = parse(f"g {text}")
    content = model.SerializeToString()
    largest = 0.0
    inputs, outputs = ([v.name for v in of] for of in (model.graph.input, model.graph.output))
    with Subject(model, "m") as source, Noise(source.source, opened, TOLERANCES) as noise:
        for draw in drawn(text):
            with np.errstate(all="ignore"):
                made = function(*draw.arrays)
            results = made if isinstance(made, tuple) else [made]
            wanted = dict(zip(outputs, run_model(content, draw.arrays), strict=True))
            feeds = dict(zip(inputs, draw.arrays, strict=True))
            allowed = partial(noise.allowed, feeds, wanted)
            largest = max(largest, largest_error(draw, results, wanted, allowed))
    return largest


def opened(source):
    return open_runner(source)[1]


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def dynamic_quantize(x):
    low = min(float(x.min()), 0)
    high = max(float(x.max()), 0)
    scale = np.float32((high - low) / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), np.asarray(scale), zero


def other_nan(x):
    """Replace each NaN by a number that depends on the column, so most of them are wrong."""
    return np.where(np.isnan(x), np.arange(16, dtype=np.float32) + 0.25, x)


@pytest.mark.parametrize(
    ("op", "wrong", "draw"),
    [
        ("y = Softplus(x)", lambda x: np.log1p(np.exp(x)), "100 to 1000"),
        ("y = LogSoftmax(x)", lambda x: np.log(softmax(x)), "100 to 1000"),
        ("y = Mish(x)", lambda x: x * np.tanh(np.log(1 + np.exp(x))), "(-20 to -5|up to 1e12)"),
        ("y = Relu(x)", lambda x: np.maximum(other_nan(x), 0), "NaN"),
        ("y = Sign(x)", lambda x: np.sign(other_nan(x)), "NaN"),
        ("y = Clip(x, x0)", lambda x: np.maximum(other_nan(x), -1), "NaN"),
        ("y = Max(x, x0)", lambda x: np.maximum(other_nan(x), -1), "NaN"),
        ("y = Min(x, x0)", lambda x: np.minimum(other_nan(x), -1), "NaN"),
        ("y = Round(x)", lambda x: np.floor(x + np.float32(0.5)), "(halves|1000)"),
        ("y = Reciprocal(x)", lambda x: np.abs(1 / x) * np.where(x < 0, -1, 1), "infinities"),
        ("y = Neg(x)", lambda x: np.where(len(x) == 1, x, -x), "sizes of 1"),
        ("y = Neg(x)", lambda x: np.where(np.arange(len(x))[:, None] < 16, -x, x), "."),
        ("y = Neg(x)", lambda x: -np.nan_to_num(x) if len(x) < 4 else -x, "with sizes of 3"),
    ],
)
def test_code_that_is_wrong_on_some_values_is_found(op, wrong, draw):
    text = op
    if "x0" in op:
        text = f"x0 = Constant<value = float {{-1.0}}> () {op}"
    with pytest.raises(CompileError, match=f"results are wrong: .*{draw}"):
        checked(ONE.format("float", "float", text), lambda x: wrong(x).astype(np.float32))


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda x: -x[None], r"an output is float32\[1,64,16\], expected float32\[64,16\]"),
        (lambda x: -x.astype(float), r"an output is float64\[64,16\], expected float32\[64,16\]"),
    ],
)
def test_the_message_contains_types_that_differ(wrong, what):
    with pytest.raises(CompileError, match=f"results are wrong: {what}, for numbers around 0"):
        checked(ONE.format("float", "float", "y = Neg(x)"), wrong)


def test_code_for_other_types_that_is_wrong_on_some_values_is_found():
    with pytest.raises(CompileError, match="NaN and infinities"):
        checked(ONE.format("float16", "bool", "y = IsNaN(x)"), lambda x: np.zeros(x.shape, bool))
    argmax = "(float[n, 16] x) => (int64[n] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }"
    content = parse(f"g {argmax}").SerializeToString()

    def last(x):
        found = 15 - np.argmax(x[:, ::-1], 1)
        return np.where(np.isfinite(x).all(1), found, run_model(content, [x])[0])

    with pytest.raises(CompileError, match="equal numbers"):
        checked(argmax, last)
    quantized = """(float[n, 16] x) => (uint8[n, 16] y, float s, uint8 z) {
        y, s, z = DynamicQuantizeLinear(x)
    }"""
    with pytest.raises(CompileError, match="results are wrong"):
        checked(quantized, dynamic_quantize)
    maximum = "(float[n, 16] x) => (float[n] y) { y = ReduceMax<keepdims = 0>(x, a) }"
    maximum = maximum.replace("{ y", "{ a = Constant<value = int64[1] {1}> () y")
    with pytest.raises(CompileError, match="NaN and infinities"):
        checked(maximum, lambda x: other_nan(x).max(1))
    integers = "(int8[n, 16] x) => (int8[n, 16] y) { y = Abs(x) }"
    with pytest.raises(CompileError, match="NaN and infinities"):  # includes the least integer
        checked(integers, lambda x: np.abs(x.astype(np.int16)).clip(0, 127).astype(np.int8))


@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("y = Exp(x)", lambda x: np.where(np.exp(x) < 2.0**-126, 0, np.exp(x))),
        ("y = Neg(x)", lambda x: -x),
        ("y = Sqrt(x)", np.sqrt),
        ("y = Softplus(x)", lambda x: np.logaddexp(0, x)),
        ("y = Reciprocal(x)", lambda x: 1 / x),
    ],
)
def test_correct_code_passes_on_all_draws(op, right):
    text = ONE.format("float", "float", op)
    assert checked(text, lambda x: right(x).astype(np.float32)) <= 1


def hardmax(x):
    """Compute Hardmax without the NaNs of a row. The result is wrong if a row begins with NaN."""
    places = np.argmax(np.where(np.isnan(x), -np.inf, x), axis=-1)[..., None]
    return (np.arange(x.shape[-1]) == places).astype(np.float32)


@pytest.mark.parametrize("sizes", ["3, 4, 5", "4, 8", "7", "2, 3, 4, 5", "20, 5"])
def test_code_that_ignores_nan_is_found_with_few_rows(sizes):
    with pytest.raises(CompileError, match="NaN"):
        checked(f"(float[{sizes}] x) => (float[{sizes}] y) {{ y = Hardmax(x) }}", hardmax)


@pytest.mark.parametrize("sizes", ["1", "4, 4", "5, 37", "3, 4, 5", "64, 64", "n, 16"])
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(("op", "lost"), [("ReduceMax", np.fmax), ("ReduceMin", np.fmin)])
def test_a_reduction_that_loses_nan_is_found(sizes, dtype, op, lost):
    """onnxruntime itself ignores a NaN at most positions."""
    ones = ", ".join(["1"] * (sizes.count(",") + 1))
    text = f"({dtype}[{sizes}] x) => ({dtype}[{ones}] y) {{ y = {op}(x) }}"
    none = -np.inf if op == "ReduceMax" else np.inf
    with pytest.raises(CompileError, match="different NaN or infinities"):
        checked(text, lambda x: lost.reduce(x, None, keepdims=True, initial=none))


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("to", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
def test_a_cast_that_saturates_numbers_out_of_range_is_found(dtype, to):
    """ONNX does not define the result of such a cast. The check requires that of onnxruntime."""
    number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to))
    name = np.dtype(to).name
    cast = f"({dtype}[n, 16] x) => ({name}[n, 16] y) {{ y = Cast<to = {number}>(x) }}"
    content = parse(f"g {cast}").SerializeToString()
    end = np.iinfo(to).max

    def saturated(x):
        (right,) = run_model(content, [x])
        is_between = (np.abs(x) > 1e3) & (np.abs(x) < 1e12)
        return np.where(is_between & (x > end), np.array(end, to), right)

    with pytest.raises(CompileError, match="up to 1e12"):
        checked(cast, saturated)


def test_the_first_draw_has_nominal_sizes():
    text = "(float[n, m] x, float[m, 3] z) => (float[n, 3] y) { y = MatMul(x, z) }"
    inputs = drawn(text, {"n": 40, "k": 2})
    shapes = {draw.name: [array.shape for array in draw.arrays] for draw in inputs}
    assert shapes["numbers around 0"] == [(40, 64), (64, 3)]
    assert shapes["large sizes"] == [(40, 1024), (1024, 3)]
    assert shapes["sizes of 1"] == [(1, 1), (1, 3)]
    assert shapes["sizes of 17"] == [(17, 18), (18, 3)]


def test_a_variance_that_loses_digits_is_found():
    text = """last = Constant<value_ints = [-1]> () mean = ReduceMean(x, last) d = Sub(x, mean)
        square = Mul(d, d) variance = ReduceMean(square, last) e = Constant<value_float = 1e-5> ()
        sum = Add(variance, e) root = Sqrt(sum) y = Div(d, root)"""

    def squares_less_square(x):
        mean = x.mean(-1, keepdims=True)
        variance = (x * x).mean(-1, keepdims=True) - mean * mean
        return (x - mean) / np.sqrt(variance + np.float32(1e-5))

    with pytest.raises(CompileError, match="numbers around 1000"):
        checked(ONE.format("float", "float", text), squares_less_square)


def test_the_tolerance_depends_on_the_type_and_magnitude_of_each_element():
    want = random(100_003)
    want[:30_000] *= 1e-6
    got = want.copy()
    got[1000] *= 1 + 5e-6
    assert error_of(got, want)[0].within
    got[1000] += 1e-5  # the larger elements do not increase the tolerance
    assert not error_of(got, want)[0].within
    assert error_of(got, want, atol=np.full(want.shape, 2e-5))[0].within
    got[99_999] += 1
    assert not error_of(got, want, atol=2e-5)[0].within
    got[99_999] = np.nan
    assert not error_of(got, want)[0].within
    assert not error_of(want.reshape(1, -1), want)[0].within
    assert not error_of(np.array([1, 3]), np.array([1, 2]))[0].within
    tiny = np.full(3, 1e-39, np.float32)
    none = np.zeros(3, np.float32)
    assert error_of(none, tiny)[0].within
    large = np.full(3, 1e5, np.float32)  # infinite in float16
    assert not error_of(large * np.inf, large)[0].within
    assert error_of(large * np.inf, large, "float16")[0].within


NEG = "(float[{0}] x) => (float[{0}] y) {{ y = Neg(x) }}"
SUM = "(float[n, 1, 1] x, float[m, 1] y, float[k] z) => (float[n, m, k] s) { s = Sum(x, y, z) }"


def test_number_and_sizes_of_the_draws():
    special = [d.arrays[0] for d in drawn(NEG.format("2, 2")) if d.name == "NaN and infinities"]
    assert len(special) > 3 and np.isnan(special).any() and np.isinf(special).any()
    names = [draw.name for draw in drawn(NEG.format("5000, 5000"))]
    assert names[:2] == ["numbers around 0", "NaN and infinities"] and len(names) == 5
    names = [draw.name for draw in drawn(SUM)]  # the result of large sizes would be too large
    assert "large sizes" not in names and len(names) > 10
    for nominal, rows in (({}, 64), ({"n": 5}, 5)):
        first, *others = drawn(NEG.format("n, 1500, 384"), nominal)
        assert first.arrays[0].shape[0] == rows
        assert nominal == {} or {draw.arrays[0].shape[0] for draw in others} == {1, 3}
