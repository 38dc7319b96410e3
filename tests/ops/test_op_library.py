"""Test a custom op with a definition in Python and a library that the test compiles."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxfold
from onnxfold.cli import main
from onnxfold.rewrite import op, rule
from onnxfold.testing import certify

FOLDER = Path(__file__).parent
OPS = FOLDER / "reversal.py"
HEADER = '<ir_version: 8, opset_import: ["" : 17, "tests" : 1]>'
FOLDED = """g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> {
    r = tests.Reverse (w)
    y = Add (x, r)
}"""
SHAPED = """g (float[N, S, 4] x) => (float[N, M] y)
<int64[1] first = {0}, int64[1] rest = {-1}> {
    r = tests.Reverse (x)
    s = Shape (r)
    n = Gather (s, first)
    to = Concat <axis = 0> (n, rest)
    y = Reshape (r, to)
}"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("library") / "reverse.so"
    command = [compiler, "-shared", "-fPIC", "-w", "-o", path, FOLDER / "reverse.c"]
    subprocess.run(command, check=True)
    return path


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def run(model: onnx.ModelProto, library: Path, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


def ops_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_constant_calls_are_folded(library):
    made = onnxfold.optimize(parsed(FOLDED), ops=[OPS], custom_ops=[library])
    assert ops_of(made) == ["Add"]
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(made, library, x), run(parsed(FOLDED), library, x))


def test_calls_are_not_folded_without_the_library():
    made = onnxfold.optimize(parsed(FOLDED), ops=[OPS])
    assert ops_of(made) == ["Reverse", "Add"]
    (decision,) = onnxfold.plan(parsed(FOLDED), ops=[OPS]).decisions
    assert "custom_ops" in str(decision.reason)


def test_shape_inference_uses_the_definition(library):
    made = onnxfold.optimize(parsed(SHAPED), ops=[OPS])
    assert ops_of(made) == ["Reverse", "Reshape"]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(made, library, x), run(parsed(SHAPED), library, x))


def test_infer_shapes_records_the_type_of_the_result():
    made = onnxfold.infer_shapes(parsed(SHAPED), ops=[OPS])
    (value,) = [value for value in made.graph.value_info if value.name == "r"]
    dims = [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
    assert dims == ["N", "S", 4]


def test_command_line_compares(library, tmp_path, capsys):
    source = tmp_path / "in.onnx"
    out = tmp_path / "out.onnx"
    onnx.save(parsed(FOLDED), source)
    options = ["--ops", str(OPS), "--custom-ops", str(library)]
    assert main(["optimize", str(source), "-o", str(out), "--check", "2", *options]) == 0
    assert "check: equal bit for bit" in capsys.readouterr().out
    assert ops_of(onnx.load(out)) == ["Add"]
    assert main(["compare", str(source), str(out), "--custom-ops", str(library)]) == 0


def test_a_rule_about_a_custom_op_is_certified(library):
    custom = op.domain("tests")

    @rule
    def reversed_twice(x):
        """Reversing twice changes nothing."""
        return custom.Reverse(custom.Reverse(x)) >> x

    @rule
    def reversed_once(x):
        """A wrong identity."""
        return custom.Reverse(x) >> op.Neg(x)

    model = "(float[N,4] x) r = tests.Reverse(x) y = tests.Reverse(r)"
    certify(reversed_twice, model, ops=[OPS], custom_ops=[library])
    with pytest.raises(AssertionError, match="reversed_once"):
        certify(reversed_once, model, ops=[OPS], custom_ops=[library])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "the file defines no op"),
        ("from onnxfold import nothing", "cannot load the ops: line 1"),
    ],
)
def test_files_without_definitions_are_rejected(tmp_path, text, message):
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(onnxfold.UsageError, match=message):
        onnxfold.optimize(parsed(FOLDED), ops=[path])
