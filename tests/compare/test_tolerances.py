"""Test the tolerances that `compare`, `--check`, inexact rules and compiled kernels share."""

import copy
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import MODELS, blocks, parse
from reference_session import OLD_ONNXRUNTIME, reference_session

import onnxfold
from onnxfold.rewrite import op, rule, rule_set
from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.kernel_check import Draw, largest_error
from onnxfold.tools.comparison.runners import open_runner
from onnxfold.tools.comparison.tolerances import TOLERANCES, Noise

TYPES = ("float", "double", "float16")
LIMITS = {"float": 1e-4, "double": 1e-9, "float16": 2.0**-6}
NEG = "g ({0}[n, 64] x) => ({0}[n, 64] y) {{ y = Neg(x) }}"


def times(factor: float):
    """Return a rule set that replaces Neg by a product with a factor."""

    @rule(inexact=True)
    def almost_neg(x):
        return op.Neg(x) >> op.Mul(x, factor)

    return rule_set("almost", {"almost_neg": almost_neg}, doc="One rule.")


def feeds_of(kind: str, size: float) -> dict[str, np.ndarray]:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, kind.upper()))
    return {"x": (np.random.default_rng(0).uniform(1, 2, (3, 64)) * size).astype(dtype)}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("size", [1.0, 2.0**-12, 2.0**12])
@pytest.mark.parametrize("error", [0.5, 4])
def test_errors_of_rules_are_relative_to_each_element(kind, size, error):
    model = parse(NEG.format(kind))
    feeds = feeds_of(kind, size)
    rules = [times(-(1 + error * LIMITS[kind]))]
    produced = onnxfold.optimize(model, rules=rules, level=2)
    assert [node.op_type for node in produced.graph.node] == ["Mul"]
    assert onnxfold.compare(model, produced, feeds=feeds, inexact=True).passed == (error < 1)
    check = partial(onnxfold.optimize, model, rules=rules, level=2, feeds=feeds)
    if error < 1:
        check()
    else:
        with pytest.raises(onnxfold.CheckFailedError):
            check()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("error", [0.5, 4])
def test_errors_of_kernels_are_relative_to_each_element(kind, error, tmp_path):
    onnx.save(parse(NEG.format(kind)), tmp_path / "m.onnx")
    feeds = feeds_of(kind, 1.0)
    outputs = {"y": -feeds["x"]}
    got = (outputs["y"].astype(np.float64) * (1 + error * LIMITS[kind])).astype(feeds["x"].dtype)
    with Noise(str(tmp_path / "m.onnx"), lambda s: open_runner(s)[1], TOLERANCES) as noise:
        allowed = partial(noise.allowed, feeds, outputs)
        judge = partial(largest_error, Draw("numbers", [feeds["x"]]), [got], outputs, allowed)
        if error < 1:
            assert 0 < judge() <= LIMITS[kind]
        else:
            with pytest.raises(CompileError, match="for numbers"):
                judge()


PAIRS = {
    name: tuple(text.split("\n-> "))
    for name, text in blocks(Path(__file__).with_name("other_roundings.txt")).items()
}
# In merged decoders, the nodes are in branches.
PAIRS["in a branch"] = tuple(
    f"""i = IsNaN(half) z = If (i) <then_branch = a () => (float[n, 8] r) {{ r = Identity(x) }},
    else_branch = b () => (float[n, 8] z) {{ {text} }}>"""
    for text in PAIRS["terms that cancel"]
)
NUMBERS = "float one = {1}, float half = {0.5}, float r = {0.70710678}, float tiny = {0.00001}"


@pytest.mark.parametrize("nodes", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize(("scale", "opset"), [(1.0, 20), (1e-6, 20), (1.0, 23)])
def test_roundings_pass_and_other_differences_fail(nodes, scale, opset):
    feeds = {"x": np.linspace(-7, 7, 40 * 8, dtype=np.float32).reshape(-1, 8)}

    def model(text: str, factor: float) -> onnx.ModelProto:
        head = f"g (float[n, 8] x) => (float[n, 8] y) <{NUMBERS}, float far = {{1000}}, float f> {{"
        produced = parse(f"{head} {text} y = Mul(z, f) }}", opset)
        factor = onnx.numpy_helper.from_array(np.float32(factor), "f")
        produced.graph.initializer.append(factor)
        return produced

    one, other = nodes
    if OLD_ONNXRUNTIME and "LayerNormalization" in other:
        pytest.skip("LayerNormalization of onnxruntime 1.23 is inaccurate")
    first = model(one, scale)
    assert onnxfold.compare(first, model(other, scale), feeds=feeds, inexact=True).passed
    wrong = onnxfold.compare(first, model(other, 1.01 * scale), feeds=feeds, inexact=True)
    assert not wrong.passed


def test_signs_of_roundings_are_random_in_each_run(tmp_path):
    """Random signs change nearly every element in some run, even if several roundings cancel."""
    nodes = "a = Mul(x, h) b = Add(a, h) c = Sub(b, x) d = Mul(c, b) e = Add(d, x) y = Sub(e, h)"
    model = parse(f"g (float[n] x) => (float[n] y) <float h = {{0.5}}> {{ {nodes} }}")
    feeds = {"x": np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)}
    onnx.save(model, tmp_path / "m.onnx")
    runner = open_runner(str(tmp_path / "m.onnx"))[1]
    with Noise(str(tmp_path / "m.onnx"), lambda s: open_runner(s)[1], TOLERANCES) as noise:
        assert np.mean(noise.allowed(feeds, runner(feeds))["y"] == 0) < 5e-4


def test_masks_are_not_rounded():
    """The mask ``i`` has a huge factor, so a rounding of ``i`` would mask attended positions."""
    model = parse("""g (float[n, 8] x, int64[n, 8] m) => (float[n, 8] y)
        <float one = {1}, float least = {-3.4e38}> {
            f = Cast<to = 1>(m) i = Sub(one, f) t = Mul(i, least) s = Add(x, t) y = Softmax(s)
        }""")
    feeds = {"x": np.random.default_rng(0).random((3, 8)).astype(np.float32)}
    feeds["m"] = (np.arange(24).reshape(3, 8) % 3 > 0).astype(np.int64)
    other = copy.deepcopy(model)
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32(1.001), "one"))
    assert not onnxfold.compare(model, other, feeds=feeds, inexact=True).passed


@pytest.mark.parametrize("opset", [9, 11, 12, 18, 23])
def test_small_sigmoids_have_the_rounding_of_adding_a_half(opset):
    """PP-OCR's detectors end with a Sigmoid. The last step of onnxruntime's Sigmoid adds 0.5."""
    feeds = {"x": np.linspace(8.5, 11, 4000, dtype=np.float32)}

    def model(text: str, factor: float) -> onnx.ModelProto:
        numbers = f"float far = {{11.25}}, float f = {{{factor}}}, float g = {{{11.25 * factor}}}"
        head = f"g (float[n] x) => (float[n] y) <{numbers}> {{"
        return parse(f"{head} {text} y = Sigmoid(z) }}", opset)

    first = "p = Mul(x, f) z = Sub(p, g)"
    other = "d = Sub(x, far) z = Mul(d, f)"
    compared = partial(onnxfold.compare, model(first, 7), feeds=feeds, inexact=True)
    right = compared(model(other, 7))
    wrong = compared(model(other, 7.01))
    assert right.passed and not right.outputs[0].bit_equal
    assert not wrong.passed


@pytest.mark.parametrize(
    "nodes",
    [
        # an integer that float64 cannot represent, and a sequence
        "d = Sub(k, large) c = Cast<to = 1>(d) a = SequenceAt(s, first) b = Mul(a, c)",
        "m = Mul(million, f) d = Sub(m, million) b = Add(x, d)",  # constants
    ],
)
def test_values_independent_of_float_inputs_are_not_rounded(nodes):
    text = f"""g (float[n] x, int64 k, seq(float[n]) s) => (float[n] y) <int64 first = {{0}},
        int64 large = {{{1 << 60}}}, float million = {{1e6}}, float f = {{1}}, float g = {{FACTOR}}>
        {{ {nodes} t = Mul(x, g) y = Add(t, b) }}"""
    feeds = {"x": np.ones(4, np.float32), "k": np.array((1 << 60) + 1), "s": [np.ones(4, "f4")]}
    one, near, far = (parse(text.replace("FACTOR", factor)) for factor in ("1", "1.00001", "1.01"))
    assert onnxfold.compare(one, near, feeds=feeds, inexact=True).passed
    assert not onnxfold.compare(one, far, feeds=feeds, inexact=True).passed


LONG = (pytest.param(dtype, marks=pytest.mark.slow) for dtype in (ml_dtypes.bfloat16, np.float64))
FLOATS = (np.float16, np.float32, *LONG)
WHOLE = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def giving(array: np.ndarray, like: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that has the inputs of ``like`` and returns only the array."""
    produced = copy.deepcopy(like)
    graph = produced.graph
    output = like.graph.output[0]
    del graph.node[:], graph.initializer[:], graph.output[:]
    graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(array, name="given")))
    graph.node.append(onnx.helper.make_node("Identity", ["given"], [output.name]))
    graph.output.append(output)
    return produced


def outputs_in(dtype: np.dtype) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """Return a Swin model with another output, feeds, and the array that the model returns.

    The output is 100 times the magnitudes of the logits, in ``dtype``.
    """
    model = onnx.load(MODELS / "swin.onnx")
    name = model.graph.output[0].name
    to = ir.DataType.from_numpy(np.dtype(dtype)).value
    hundred = ir.serde.serialize_tensor(ir.Tensor(np.float32(100), name="hundred"))
    model.graph.initializer.append(hundred)
    nodes = (("Abs", [name], "size__", {}), ("Mul", ["size__", "hundred"], "scaled__", {}))
    for kind, inputs, produced, attributes in (
        *nodes,
        ("Cast", ["scaled__"], "cast__", {"to": to}),
    ):
        model.graph.node.append(onnx.helper.make_node(kind, inputs, [produced], **attributes))
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.random([d.dim_value or 1 for d in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    feeds = {name: feed.astype(np.float32) for name, feed in feeds.items()}
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="scaled__"))
    (array,) = reference_session(model).run(None, feeds)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("cast__", to, None))
    return model, feeds, array.astype(dtype)


def ulps(array: np.ndarray, index: int, count: int) -> np.ndarray:
    moved = array.copy()
    bits = moved.reshape(-1).view(f"u{array.dtype.itemsize}")
    bits[index] += count
    return moved


def set_to(array: np.ndarray, index: int, number: float) -> np.ndarray:
    moved = array.copy()
    moved.reshape(-1)[index] = number
    return moved


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_floats(dtype):
    model, feeds, array = outputs_in(dtype)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    size = np.abs(array.astype(np.float64)).reshape(-1)
    is_half = np.dtype(dtype).itemsize == 2

    same = giving(array, model)

    def passes(moved: np.ndarray, **tolerance) -> bool:
        # without explicit tolerances, `compare` derives them from the model
        expected = same if tolerance else model
        return onnxfold.compare(expected, giving(moved, model), feeds=feeds, **tolerance).passed

    assert passes(array) and passes(array, exact=True)
    for index in (int(size.argmin()), int(size.argmax())):
        number = float(array.reshape(-1)[index])
        for count in (1, 4, 5, 1000):
            moved = ulps(array, index, count)
            assert not passes(moved, exact=True)
            assert passes(moved, ulp=4) == (count <= 4), count
            error = abs(float(moved.reshape(-1)[index]) - number)
            assert passes(moved, rtol=1e-4) == (error <= 1e-4 * abs(number)), count
            assert passes(moved, atol=1e-4) == (error <= 1e-4), count
            if not is_half:
                assert not passes(moved), count
        # some roundings of half precision are allowed, at the magnitude of the element's terms
        if is_half:
            assert passes(ulps(array, index, 4))
        for other in (3 * number, -number, 0.0, np.nan, np.inf, number + 64 * epsilon * size.max()):
            assert not passes(set_to(array, index, other)), (index, other)
        for other in (np.nan, np.inf, 4 * number):
            assert not passes(set_to(array, index, other), rtol=1.0, atol=size.min(), ulp=8)


@pytest.mark.parametrize("dtype", WHOLE, ids=lambda d: np.dtype(d).name)
def test_integers(dtype):
    model, feeds, array = outputs_in(dtype)
    for index in (0, array.size - 1):
        moved = array.copy()
        moved.reshape(-1)[index] ^= 1
        changed = giving(moved, model)
        assert not onnxfold.compare(model, changed, feeds=feeds).passed
        assert onnxfold.compare(model, changed, feeds=feeds, atol=1).passed
    assert onnxfold.compare(model, giving(array, model), feeds=feeds).passed
