"""Test models that import no opset of ONNX.

onnxruntime assumes the newest opset that it supports.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import with_weights
from reference_session import reference_session

import onnxfold
from onnxfold.ir.storage.opsets import assumed_opset
from onnxfold.tools.report.inventory import take_inventory

FEEDS = {"x": np.array([[1, -2], [3, 4]], np.float32)}
DOMAINS = ("com.microsoft", "ai.onnx.ml")


def model_of(nodes: str, domain: str = "com.microsoft") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["{domain}": 1]> g (float[2, 2] x) => (float[2, 2] y)'
    return onnx.parser.parse_model(f"{text} {{ {nodes} }}")


def imports_of(model: onnx.ModelProto) -> dict[str, int]:
    return {imported.domain: imported.version for imported in model.opset_import}


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    (want,), (found,) = (reference_session(m).run(None, FEEDS) for m in (before, after))
    np.testing.assert_array_equal(want, found)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_nodes_of_onnx_are_folded_at_the_opset_that_onnxruntime_assumes(domain, level):
    """The axes of ReduceSum are an input only since opset 13, so an older opset would not fit."""
    model = model_of("r = ReduceSum <keepdims = 0> (w, axes) y = Add (x, r)", domain)
    weights = {"w": np.ones((2, 3, 2), np.float32), "axes": np.array([1])}
    model = with_weights(model, **weights)
    made = onnxfold.optimize(model, level=level)
    assert [node.op_type for node in made.graph.node] == ["Add"]
    assert imports_of(made) == {domain: 1, "": assumed_opset()}
    onnx.checker.check_model(made)
    assert_same(model, made)
    opened = ir.from_proto(model)
    onnxfold.optimize(opened, level=level)
    assert ir.to_proto(opened).graph.node == made.graph.node
    assert imports_of(ir.to_proto(opened)) == imports_of(made)


def test_without_nodes_of_onnx_nothing_is_imported():
    """An older onnxruntime would reject a result that imports the newest opset."""
    model = with_weights(
        model_of("a = com.microsoft.Gelu (w) y = com.microsoft.BiasGelu (x, v)"),
        w=np.ones((2, 2), np.float32),
        v=np.ones(2, np.float32),
    )
    made = onnxfold.optimize(model)
    assert [node.op_type for node in made.graph.node] == ["BiasGelu"]
    assert imports_of(made) == {"com.microsoft": 1}
    assert_same(model, made)


def test_functions_have_their_own_opset():
    text = """
        <ir_version: 8, opset_import: ["local": 1]> g (float[2, 2] x) => (float[2, 2] y) {
            a = local.f (x)
            y = local.h (a)
        }
        <domain: "local", opset_import: ["": 18]> f (x) => (y) { y = Relu (x) }
        <domain: "local", opset_import: ["": 19]> h (x) => (y) { y = Neg (x) }
    """
    model = onnx.parser.parse_model(text)
    made = onnxfold.optimize(model, passes=("inline-functions",))
    assert [node.op_type for node in made.graph.node] == ["f", "h"]
    assert_same(model, made)
    same = onnx.parser.parse_model(text.replace("18", str(assumed_opset())))
    made = onnxfold.optimize(same, passes=("inline-functions",))
    assert [node.op_type for node in made.graph.node] == ["Relu", "h"]
    assert_same(same, made)


@pytest.mark.parametrize("domain", DOMAINS)
def test_all_functions_accept_models_without_an_opset(domain, tmp_path: Path):
    model = with_weights(
        model_of("e = Exp (w) k = Mul (x, e) y = Relu (k)", domain),
        w=np.ones((2, 2), np.float32),
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    report = onnxfold.optimize_file(path, tmp_path / "out.onnx", check=1, value_info=True)
    assert report.check is not None and report.check.equal
    assert onnxfold.compare(path, tmp_path / "out.onnx", bisect=True).equal
    assert onnxfold.compare(model, ir.from_proto(model)).equal
    assert take_inventory(path).opsets == {"": assumed_opset(), domain: 1}
    assert [decision.op_type for decision in onnxfold.explain(path) if decision.folded] == ["Exp"]
    bundle = onnxfold.split(
        path, tmp_path / "bundle", runtime_constants=["x"], backend="onnxruntime"
    )
    (want,) = reference_session(model).run(None, FEEDS)
    (found,) = onnxfold.Session(bundle).run(None, FEEDS)
    np.testing.assert_array_equal(want, found)
