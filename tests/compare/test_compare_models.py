import json

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from model_table import SWIN, parse
from onnx import numpy_helper

import onnxfold
from onnxfold.support.errors import ModelError, UsageError
from onnxfold.tools.comparison import Comparison, compare


def test_real_model_equals_itself():
    result = compare(SWIN, SWIN)
    assert isinstance(result, Comparison)
    assert result.equal and result.passed
    assert [(out.name, out.shape) for out in result.outputs] == [("logits", (1, 10))]


def test_changed_weight_is_reported(tmp_path):
    model = onnx.load(SWIN)
    weight = next(t for t in model.graph.initializer if t.name.endswith("classifier.bias"))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(model, tmp_path / "changed.onnx")
    result = compare(SWIN, tmp_path / "changed.onnx", seeds=2)
    assert not result.equal and not result.passed
    assert result.runs == ["seed 0", "seed 1"]
    assert all(out.max_abs_error == pytest.approx(1, abs=1e-5) for out in result.outputs)
    assert compare(SWIN, tmp_path / "changed.onnx", atol=1.1).passed
    with pytest.raises(AssertionError, match=r"logits: float32\[1,10\]: 10 of 10 elements differ"):
        result.assert_equal()
    compare(SWIN, tmp_path / "changed.onnx", atol=1.1).assert_equal()


def test_sessions_disable_memory_patterns(monkeypatch):
    """onnxruntime's memory patterns take quadratic time in the number of nodes."""
    learns = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            learns.append(self.get_session_options().enable_mem_pattern)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    assert compare(SWIN, SWIN, seeds=2).equal
    assert learns == [False, False]


def test_compare_is_a_function_of_the_package():
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    assert onnxfold.compare(model, model).equal


def test_models_in_memory_and_with_external_data(tmp_path):
    proto = onnx.load(SWIN)
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    assert compare(tmp_path / "m.onnx", onnx.load(SWIN)).equal
    assert compare(ir.load(tmp_path / "m.onnx"), SWIN).equal
    with pytest.raises(UsageError, match="external data"):
        compare(onnx.load(tmp_path / "m.onnx", load_external_data=False), SWIN)


def test_nan_and_infinity():
    feeds = {"x": np.array([1, -1], np.float32)}
    nan = parse("g (float[2] x) => (float[2] y) { z = Sub(x, x) y = Div(z, z) }")
    inf = parse("g (float[2] x) => (float[2] y) { z = Sub(x, x) y = Div(x, z) }")
    assert compare(nan, nan, feeds=feeds).equal
    assert compare(inf, inf, feeds=feeds).equal
    result = compare(nan, inf, feeds=feeds, atol=1e9)
    assert not result.passed
    assert result.outputs[0].nonfinite_mismatch == 2


def test_bfloat16():
    a = parse("g (bfloat16[2,3] x) => (bfloat16[6] y) <int64[1] s = {-1}> { y = Reshape(x, s) }")
    b = parse(
        "g (bfloat16[2,3] x) => (bfloat16[6] y) <int64[1] s = {-1}>"
        "{ f = Cast<to=1>(x) n = Neg(f) c = Cast<to=16>(n) y = Reshape(c, s) }"
    )
    result = compare(a, a)
    assert result.equal
    assert result.outputs[0].dtype == "bfloat16"
    assert result.backend == "onnxruntime"
    feeds = {"x": np.ones((2, 3), ml_dtypes.bfloat16)}
    different = compare(a, b, feeds=feeds)
    assert not different.passed
    assert different.outputs[0].max_abs_error == 2


def test_float8_and_int4_are_supported():
    for kind in ("float8e4m3fn", "int4"):
        model = parse(f"g ({kind}[3] x) => ({kind}[3] y) {{ y = Identity(x) }}")
        assert compare(model, model).equal


def test_onnxruntime_accepts_int4_inputs():
    model = parse("g (int4[7] x, float s) => (float[7] y) { y = DequantizeLinear(x, s) }")
    result = compare(model, model)
    assert result.backend == "onnxruntime"
    assert result.equal


def test_float16_roundings_are_allowed_with_a_note():
    text = (
        "g (float16[64] x) => (float16[64] y) <float t = {%s}>{ c = Cast<to=10>(t) y = %s(x, c) }"
    )
    a = parse(text % ("3.0", "Div"))
    b = parse(text % ("0.33325", "Mul"))
    result = compare(a, b)
    assert not result.equal
    assert result.passed
    assert any("float16" in note for note in result.notes)
    assert not compare(a, b, exact=True).passed


def test_strings_sequences_and_optionals():
    text = parse("g (string[N] x) => (string[N] y) { y = Identity(x) }")
    assert compare(text, text).outputs[0].dtype == "string"
    sequence = parse("g (seq(float[N]) x) => (seq(float[N]) y) { y = Identity(x) }")
    result = compare(sequence, sequence)
    assert result.equal
    assert [out.name for out in result.outputs] == ["y[0]", "y[1]"]
    text = "g (float[2] x) => (seq(float[2]) y) {{ y = SequenceConstruct({}) }}"
    one, two = (parse(text.format(operands)) for operands in ("x", "x, x"))
    tensor = parse("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    for pair in ((one, two), (one, tensor), (tensor, one)):
        assert not compare(*pair).passed
    text = "g (float[2] x) => (seq(float[2]) y) <float c = {{{}}}> {{ t = Mul(x, c) {} }}"
    near, far = (parse(text.format(c, "y = SequenceConstruct(t)")) for c in (1.00001, 1.001))
    assert compare(one, near, inexact=True).passed and not compare(one, near).passed
    assert not compare(one, far, inexact=True).passed
    optional = parse("g (optional(float[N]) x) => (bool y) { y = OptionalHasElement(x) }")
    assert compare(optional, optional).equal


def test_dynamic_sizes_differ_by_name_and_seed():
    a = parse("g (float[batch, n] x) => (float[batch, n] y) { y = Neg(x) }")
    b = parse(
        "g (float[batch, n] x) => (float[batch, n] y) <int64[2] s = {2, 3}>"
        "{ r = Reshape(x, s) y = Neg(r) }"
    )
    result = compare(a, b, seeds=2)
    assert result.sizes == {"seed 0": {"batch": 2, "n": 3}, "seed 1": {"batch": 3, "n": 4}}
    assert result.outputs[0].bit_equal  # the frozen sizes are those of seed 0
    assert any("seed 1" in problem for problem in result.problems)
    assert compare(a, a, dims={"batch": 7}).outputs[0].shape == (7, 2)
    with pytest.raises(UsageError, match="batch, n"):
        compare(a, a, dims={"seq": 3})


def test_invalid_sizes_are_drawn_again():
    model = parse("g (float[a] x, float[b] y) => (float[c] z) { z = Add(x, y) }")
    assert compare(model, model).equal
    fixed = parse("g (float[a] x) => (float[7,7] y) <int64[2] s = {7, 7}> { y = Reshape(x, s) }")
    assert compare(fixed, fixed).sizes["seed 0"] == {"a": 49}


def test_indices_stay_within_their_table():
    model = parse(
        "g (int64[n] ids) => (float[n, 2] y) <float[3, 2] table = {1, 2, 3, 4, 5, 6}>"
        "{ i = Identity(ids) y = Gather(table, i) }"
    )
    assert compare(model, model, seeds=3).equal


def test_overridable_initializers_are_fed_only_if_given():
    model = parse("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }")
    other = parse("g (float[2] x, float[2] w = {1, 3}) => (float[2] y) { y = Mul(x, w) }")
    assert not compare(model, other).passed
    feeds = {"x": np.ones(2, np.float32), "w": np.ones(2, np.float32)}
    assert compare(model, other, feeds=feeds).equal


def test_interfaces_are_compared():
    a = parse("g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Abs(x) }")
    b = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    c = parse("g (float[2] v) => (float[2] y) { y = Neg(v) }")
    assert "outputs of a that b lacks: z" in compare(a, b).problems
    assert "inputs of a that b lacks: x" in compare(b, c).problems
    assert not compare(a, b).passed


def test_different_dtypes_or_shapes_are_differences():
    a = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    b = parse("g (float[2] x) => (double[2] y) { z = Neg(x) y = Cast<to=11>(z) }")
    c = parse(
        "g (float[2] x) => (float[1, 2] y) <int64[1] s={0}> { z = Neg(x) y = Unsqueeze(z, s) }"
    )
    assert compare(a, b).outputs[0].note == "float32[2] became float64[2]"
    assert compare(a, c).outputs[0].note == "float32[2] became float32[1,2]"


def test_reference_evaluator_is_the_fallback():
    bf16 = parse("g (bfloat16[4] x) => (bfloat16[4] y) { y = Erf(x) }")
    result = compare(bf16, bf16)
    assert result.equal
    assert result.backend == "onnx reference evaluator"
    assert any("onnxruntime cannot load the original" in note for note in result.notes)


def test_model_that_cannot_run_is_an_error():
    model = parse("g (float[2] x) => (float[2] y) { y = local.Mystery(x) }")
    with pytest.raises(ModelError, match="cannot be run"):
        compare(model, model)


def test_second_model_that_does_not_load_is_different():
    a = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    b = parse("g (float[2] x) => (float[2] y) { y = local.Mystery(x) }")
    result = compare(a, b)
    assert not result.passed
    assert result.problems[0].startswith("b does not load")


def test_result_is_json():
    a = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    b = parse("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    zero = {"x": np.zeros(2, np.float32)}
    document = json.loads(json.dumps(compare(a, b, feeds=zero).to_dict(), allow_nan=False))
    assert document["equal"] is False
    assert document["outputs"][0]["differing"] == 2
    one = {"x": np.array([1e-40, -1], np.float32)}
    json.dumps(compare(b, a, feeds=one).to_dict(), allow_nan=False)


def test_random_outputs():
    head = "g (float[2] x) => (float[2] y, float[2] z)"
    model = parse(head + "{ r = RandomNormal<shape=[2]>() y = Add(x, r) z = Neg(x) }")
    uniform = parse(head + "{ r = RandomUniform<shape=[2]>() y = Add(x, r) z = Neg(x) }")
    fixed = parse(head + "{ y = Neg(x) z = Neg(x) }")
    result = compare(model, uniform, seeds=2)
    assert result.equal
    assert [out.name for out in result.outputs] == ["z", "z"]
    assert result.notes == ["output 'y' is random in both models: not compared"]
    frozen = compare(model, fixed)
    assert not frozen.passed
    assert frozen.problems == ["output 'y' is random in a, but always the same in b"]
    for each in (model, uniform):
        del each.graph.output[1]
    assert "no output was compared on 1 run" in repr(compare(model, uniform))
    assert not compare(fixed, model).passed


@pytest.mark.parametrize("node", ["Bernoulli (x)", "Dropout (x, ratio, training)"])
def test_random_elements_may_be_equal_by_chance(node):
    weights = "float ratio = {0.7}, bool training = {1}"
    head = f"g (float[1, 3] x) => (float[1, 3] y) <{weights}>"
    model = parse(f"{head} {{ y = {node} }}")
    feeds = {"x": np.full((1, 3), 0.3, np.float32)}
    for before in range(1, 9):  # onnxruntime seeds by the node's index
        more = " ".join(f"i{k} = Identity (x)" for k in range(before))
        result = compare(model, parse(f"{head} {{ {more} y = {node} }}"), feeds=feeds)
        assert result.passed, str(result)
