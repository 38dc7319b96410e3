"""Test `simplify` and `slim`, which replace the functions of onnxsim and onnxslim."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_table import parse

import onnxfold
from onnxfold.rewrite import op, rule, rule_set
from onnxfold.support.errors import CheckFailedError, UsageError

SWIN = "models/swin.onnx"


def test_simplify(tmp_path: Path):
    model = onnx.load(SWIN)
    before = model.SerializeToString()
    result, ok = onnxfold.simplify(model, check_n=1)
    assert ok
    assert len(result.graph.node) == 194
    assert model.SerializeToString() == before
    onnxfold.save(onnxfold.load(SWIN), tmp_path / "swin.onnx", external_data=True)
    from_path, ok = onnxfold.simplify(tmp_path / "swin.onnx")
    assert ok
    assert from_path == result
    fixed, _ = onnxfold.simplify(model, overwrite_input_shapes={"pixel_values": [1, 3, 64, 64]})
    assert fixed.graph.node == result.graph.node
    with pytest.raises(UsageError):
        onnxfold.simplify(model, overwrite_input_shapes={"pixel_values": [1, 3, 32, 32]})


def test_slim(tmp_path: Path):
    result = onnxfold.slim(onnx.load(SWIN), input_shapes=["pixel_values:1,3,64,64"])
    assert len(result.graph.node) == 194
    for k, model in enumerate([SWIN, onnx.load(SWIN)]):
        assert onnxfold.slim(model, tmp_path / f"{k}.onnx") is None
        assert len(onnx.load(tmp_path / f"{k}.onnx").graph.node) == 194
    with pytest.raises(UsageError, match="not of the form"):
        onnxfold.slim(SWIN, input_shapes=["pixel_values"])


def test_keywords_of_onnxsim(tmp_path: Path):
    decoder = "models/t5-decoder.onnx"
    names = ["input_ids", "encoder_hidden_states", "encoder_attention_mask"]
    shapes = dict(zip(names, ([2, 5], [2, 7, 64], [2, 7]), strict=True))
    model, same = onnxfold.simplify(
        decoder,
        1,
        True,
        test_input_shapes=shapes,
        check_rtol=0.0,
        check_atol=0.0,
        inline_functions=True,
        output_path=str(tmp_path / "out.onnx"),
    )
    assert same and onnx.load(tmp_path / "out.onnx").graph.node == model.graph.node
    folded, _ = onnxfold.simplify(decoder, perform_optimization=False)
    assert len(folded.graph.node) > len(model.graph.node)
    feeds = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    feeds[names[1]] = np.ones(shapes[names[1]], np.float32)
    assert onnxfold.simplify(decoder, input_data=feeds)[1]
    with pytest.raises(UsageError, match="the model has no input 'x'"):
        onnxfold.simplify(decoder, input_data={"x": feeds[names[0]]})


def test_keywords_of_onnxslim(tmp_path: Path):
    decoder = "models/t5-decoder.onnx"
    shapes = ["input_ids:2,5", "encoder_hidden_states:2,7,64", "encoder_attention_mask:2,7"]
    options = {"model_check": True, "save_as_external_data": True}
    onnxfold.slim(decoder, tmp_path / "out.onnx", model_check_inputs=shapes, **options)
    assert (tmp_path / "out.onnx.data").exists()
    np.save(tmp_path / "x.npy", np.ones((1, 3, 64, 64), np.float32))
    assert onnxfold.slim(SWIN, model_check_inputs=[f"pixel_values:{tmp_path / 'x.npy'}"])
    with pytest.raises(UsageError, match="the model has no input 'x'"):
        onnxfold.slim(SWIN, model_check_inputs=[f"x:{tmp_path / 'x.npy'}"])
    with pytest.raises(UsageError, match=r"cannot read the inputs of the check: .*missing\.npy"):
        onnxfold.slim(SWIN, model_check_inputs=["x:missing.npy"])


@rule
def wrong(x):
    return op.Neg(x) >> op.Abs(x)


def test_a_failed_check_is_reported():
    rules = [rule_set("wrong", {"wrong": wrong}, doc="One rule.")]
    model = parse("g (float[n] x) => (float[n] y) { y = Neg(x) }")
    assert [onnxfold.simplify(model, check_n=n, rules=rules)[1] for n in (0, 1)] == [True, False]
    assert onnxfold.slim(model, rules=rules).graph.node[0].op_type == "Abs"
    with pytest.raises(CheckFailedError):
        onnxfold.slim(model, model_check=True, rules=rules)
    changed = onnxfold.ir.storage.from_proto(model)
    with pytest.raises(CheckFailedError):
        onnxfold.optimize(changed, check=1, rules=rules)
    assert changed.graph[0].op_type == "Neg"


@pytest.mark.parametrize(
    "options", [{"level": 2}, {"target": "onnxruntime"}, {"precision": "wide"}]
)
def test_a_check_allows_the_errors_of_inexact_rules(options):
    model = parse("""g (float[9] x) => (float[9] y) <float c = {1.7}, float d = {1300}> {
        a = Mul(x, c) b = Div(a, d) s = Add(c, d) t = Sub(s, d) y = Mul(b, t) }""")
    assert onnxfold.simplify(model, check_n=3, **options)[1]
    assert not onnxfold.compare(model, onnxfold.simplify(model, **options)[0], seeds=3).equal


def test_a_check_uses_the_requested_shapes():
    model = parse("g (float[n] x) => (float[a, b] y) <int64[2] s = {7, -1}> { y = Reshape(x, s) }")
    assert onnxfold.simplify(model, check_n=1, test_input_shapes={"x": [7]})[1]
    assert onnxfold.slim(model, model_check=True, model_check_inputs=["x:7"])
    for name, size in (("x", 5), ("z", 7)):
        with pytest.raises(UsageError, match=r"fails on|no input has the name 'z'"):
            onnxfold.simplify(model, check_n=1, test_input_shapes={name: [size]})
        with pytest.raises(UsageError, match=r"fails on|no input has the name 'z'"):
            onnxfold.slim(model, model_check=True, model_check_inputs=[f"{name}:{size}"])


def test_functions_are_inlined_on_request():
    model = parse("""g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 21]> f (a) => (b) { b = Exp(a) }""")
    made = (onnxfold.simplify(model, inline_functions=k)[0] for k in (False, True))
    assert [each.graph.node[0].op_type for each in made] == ["f", "Exp"]


KEYWORDS = {
    "simplify": """check_n perform_optimization skip_fuse_bn overwrite_input_shapes
        test_input_shapes skipped_optimizers skip_constant_folding skip_shape_inference input_data
        dynamic_input_shape custom_lib include_subgraph unused_output tensor_size_threshold
        mutable_initializer initializers_as_constants inline_functions import_custom_schemas
        input_shapes target_opset_version extra_optimizers custom_rewriter function_rewrite_rules
        check_rtol check_atol input_fill providers gemm_fusion_backend profile ort_profile
        merge_ort_profile output_path external_data_threshold range_opt certify check_hazards
        check_gradients gradient_precision""",  # of onnxsim 0.8.1
    "slim": """model_check input_shapes inputs outputs no_shape_infer skip_optimizations
        skip_fusion_patterns size_threshold inspect dump_to_disk save_as_external_data
        model_check_inputs verbose""",  # of onnxslim 0.1.98
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_every_keyword_is_accepted(name):
    """A keyword without effect causes a warning. A keyword that neither tool has is an error."""
    function = getattr(onnxfold, name)
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    own = {*inspect.signature(function).parameters, "input_shapes"}
    for keyword in KEYWORDS[name].split():
        if keyword not in own:
            with pytest.warns(UserWarning, match=f"no effect in onnxfold: {keyword}"):
                function(model, **{keyword: True})
    with pytest.raises(UsageError, match="unknown option 'simplfy'"):
        function(model, simplfy=True)


def test_dtypes_are_not_converted_silently():
    model = parse("g (float[2] x) => (float[2] y) { y = Abs(x) }")
    for dtype in ("fp16", "fp32"):
        with pytest.raises(UsageError, match=r"dtype: .*convert_float_to_float16"):
            onnxfold.slim(model, dtype=dtype)
    assert onnxfold.slim(model, dtype=None).graph.node[0].op_type == "Abs"


def test_models_of_onnx_ir_are_not_changed(tmp_path: Path):
    model = onnxfold.load(SWIN)
    result, ok = onnxfold.simplify(model, check_n=1)
    assert ok
    assert len(result.graph.node) == 194
    shapes = {"pixel_values": [1, 3, 64, 64]}
    fixed, ok = onnxfold.simplify(model, check_n=1, overwrite_input_shapes=shapes)
    assert ok
    assert fixed.graph.node == result.graph.node
    assert onnxfold.slim(model, tmp_path / "slim.onnx") is None
    assert len(onnx.load(tmp_path / "slim.onnx").graph.node) == 194
    assert len(list(model.graph)) == len(onnx.load(SWIN).graph.node)


@pytest.mark.parametrize(
    "function",
    [
        onnxfold.optimize,
        onnxfold.simplify,
        onnxfold.slim,
        onnxfold.Session,
        lambda model: onnxfold.compare(SWIN, model),
        lambda model: onnxfold.split(model, "bundle"),
    ],
)
def test_objects_that_are_not_models_are_rejected(function: Callable[[Any], object]):
    graph = onnx.load(SWIN, load_external_data=False).graph
    with pytest.raises(UsageError, match=r"must be .*ModelProto or ONNXProgram, got GraphProto"):
        function(graph)


def test_fixed_sizes_are_checked_with_these_sizes(tmp_path: Path):
    """The check runs the original, which has dynamic dims, and the result with the fixed sizes."""
    decoder = "models/t5-decoder.onnx"
    shapes = {"input_ids": [1, 16]}
    model, same = onnxfold.simplify(decoder, check_n=2, overwrite_input_shapes=shapes)
    assert same
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 16]
    options = {"dims": {"batch": 3}, "check": 2}
    report = onnxfold.optimize_file(decoder, tmp_path / "fixed.onnx", **options)
    assert report.check.sizes["seed 1"].keys() == {"dec_seq", "enc_seq"}
