import json
from pathlib import Path

import onnx
import pytest
from model_table import saved

import onnxfold

MODEL = """
    g (float[2, 3] x) => (float[2, 3] y) <float[3] zero = {0, 0, 0}> {
        i = Identity (x)
        t = Transpose <perm = [1, 0]> (i)
        u = Transpose <perm = [1, 0]> (t)
        a = Add (u, zero)
        y = Relu (a)
    }
"""

RULES = """
from onnxfold.rewrite import op, rule
@rule(inexact=True)
def almost_neg(x):
    \"\"\"Neg is a product with -1.\"\"\"
    return op.Neg(x) >> op.Mul(x, {factor})
"""


@pytest.fixture
def model(tmp_path):
    return saved(MODEL, tmp_path / "m.onnx", 17)


def ops(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_level_0_folds_constants_only(run, model, tmp_path):
    assert run("optimize", model, "-O0", "-o", tmp_path / "o.onnx").code == 0
    assert ops(tmp_path / "o.onnx") == ["Identity", "Transpose", "Transpose", "Add", "Relu"]


def test_level_1_keeps_every_bit(run, model, tmp_path):
    """x + 0.0 changes -0.0 to 0.0, so level 1 keeps the Add and reports the rule of level 2."""
    result = run("optimize", model, "-o", tmp_path / "o.onnx", "--json", "--advise")
    assert ops(tmp_path / "o.onnx") == ["Add", "Relu"]
    document = json.loads(result.out)
    assert document["rewrites"].keys() >= {"identity", "transpose_of_transpose"}
    assert document["withheld"] == {"add_positive_zero": 1}
    assert document["inexact"] == {}
    assert document["beyond"]["-O2"] == 1


def test_level_2_measures_its_error(run, model, tmp_path):
    result = run("optimize", model, "-O2", "-o", tmp_path / "o.onnx", "--json")
    assert ops(tmp_path / "o.onnx") == ["Relu"]
    document = json.loads(result.out)
    assert document["inexact"] == {"add_positive_zero": 1}
    assert document["check"]["passed"]


def test_a_target_implies_level_2(run, swin, tmp_path):
    outputs = [tmp_path / f"{k}.onnx" for k in range(3)]
    assert run("optimize", swin, "-o", outputs[0], "-O2", "--target", "onnxruntime").code == 0
    assert run("optimize", swin, "-o", outputs[1], "--target", "onnxruntime").code == 0
    onnxfold.optimize_file(swin, outputs[2], target="onnxruntime")
    assert "Attention" in ops(outputs[0])
    assert outputs[0].read_bytes() == outputs[1].read_bytes() == outputs[2].read_bytes()
    for level in (0, 1):
        with pytest.raises(onnxfold.UsageError, match=f"requires level 2, got level {level}"):
            onnxfold.optimize(swin, target="onnxruntime", level=level)


OVERLAPPING = """g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
<float[3] zero = {0, 0, 0}, float[3] c = {1, 2, 4}, float[3] d = {3, 5, 7}> {
    a = Mul (x, c) b = Add (a, zero) y = Div (b, d) e = Mul (x, d) f = Add (e, c) z = Relu (f) }"""


def test_withheld_rules_are_those_that_level_2_applies(tmp_path):
    """In `OVERLAPPING`, several rules match the same nodes. Some matches cannot be applied."""
    root = Path(__file__).parents[2]
    overlapping = saved(OVERLAPPING, tmp_path / "m.onnx", 17)
    for model in (*root.glob("models/*.onnx"), *root.glob("models/lora/*.onnx"), overlapping):
        out = tmp_path / "out.onnx"
        withheld = onnxfold.optimize_file(model, out, count_withheld=True).withheld
        assert withheld == onnxfold.optimize_file(model, out, level=2).inexact
    assert withheld


def test_level_2_measures_no_large_model_without_a_check(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr("onnxfold.api.optimize._MAX_MEASURED_NODES", 4)  # the model has 5 nodes
    result = run("optimize", model, "-O2", "-o", tmp_path / "o.onnx", "--json")
    assert ops(tmp_path / "o.onnx") == ["Relu"]
    document = json.loads(result.out)
    assert document["check"] is None
    assert "takes long to load 5 nodes; --check measures it" in document["warnings"][0]
    result = run("optimize", model, "-O2", "--check", "1", "-o", tmp_path / "o.onnx", "--json")
    assert json.loads(result.out)["check"]["passed"]


def test_disabled_rule_is_not_applied(run, model, tmp_path):
    run("optimize", model, "--disable", "transpose_of_transpose", "-o", tmp_path / "o.onnx")
    assert ops(tmp_path / "o.onnx").count("Transpose") == 2


def test_rules_are_loaded_from_a_file(run, model, tmp_path):
    rules = tmp_path / "mine.py"
    rules.write_text(
        "from onnxfold.rewrite import op, rule\n\n@rule\ndef relu_to_neg(x):\n"
        "    'Wrong on purpose.'\n    return op.Relu(x) >> op.Neg(x)\n"
    )
    assert run("optimize", model, "--rules", rules, "-o", tmp_path / "o.onnx").code == 0
    assert "Neg" in ops(tmp_path / "o.onnx")


def test_passes_are_selected_by_name(done, model, tmp_path):
    done("optimize", model, "--passes", "simplify,dead-code", "-o", tmp_path / "o.onnx")
    assert ops(tmp_path / "o.onnx") == ["Add", "Relu"]


@pytest.mark.parametrize(
    ("command", "word"), [("rules", "transpose_of_transpose"), ("passes", "simplify")]
)
def test_rules_and_passes_are_listed(run, done, command, word):
    assert word in done(command).out
    assert word in run(command, "--json").out


DYNAMIC = "g (float[batch, rows, 4] x) => (float[batch, n] y) { t = Relu (x)  y = Flatten (t) }"


def test_dims_that_remain_dynamic(run, tmp_path):
    dynamic = saved(DYNAMIC, tmp_path / "dynamic.onnx", 17)
    fix = ("optimize", dynamic, "-o", tmp_path / "o.onnx", "--input-shape")
    for shape, keep_options in (("x:1,3,4", ("--keep-dim", "batch")), ("x:-1,3,-1", ())):
        result = run(*fix, shape, *keep_options)
        assert result.code == 0, result.err
        dims = onnx.load(tmp_path / "o.onnx").graph.input[0].type.tensor_type.shape.dim
        assert [d.dim_param or d.dim_value for d in dims] == ["batch", 3, 4]


def test_assumptions_are_listed(run, model, tmp_path):
    dynamic = saved(DYNAMIC, tmp_path / "dynamic.onnx", 17)
    result = run("optimize", dynamic, "-o", tmp_path / "o.onnx", "-v")
    assert "Dims of the inputs that have the same name have the same size." in result.out
    assert "assumed" not in run("optimize", model, "-o", tmp_path / "o.onnx", "-v").out


def test_result_beyond_the_tolerances_is_always_reported(run, tmp_path):
    source = saved(MODEL.replace("Relu", "Neg"), tmp_path / "in.onnx", 17)
    rules = "rules.py"
    (tmp_path / rules).write_text(RULES.format(factor=-1.5))
    command = ("optimize", source, "-o", tmp_path / "out.onnx", "-O2", "--rules", tmp_path / rules)
    quiet = run(*command, "-q")
    assert quiet.code == 0 and not quiet.out and (tmp_path / "out.onnx").exists()
    assert "warning" in quiet.err and "different" in quiet.err and "almost_neg" in quiet.err
    result = run(*command, "--json")
    report = json.loads(result.out)
    assert not report["check"]["passed"] and "almost_neg" in report["warnings"][-1]
    assert "almost_neg" in result.err
    assert "almost_neg" in run(*command).out
    (tmp_path / "out.onnx").unlink()
    refused = run(*command, "-q", "--check", 1)
    assert refused.code == 1 and not (tmp_path / "out.onnx").exists()
    (tmp_path / rules).write_text(RULES.format(factor=-1.00001))
    assert run(*command, "-q").err == ""
