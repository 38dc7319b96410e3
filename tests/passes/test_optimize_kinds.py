"""Test `optimize` for protos, IR models and paths, and test `optimize_file`."""

import copy
import json

import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, large, parse, with_weights
from folders import names_in
from model_table import TEXTS

import onnxfold
from onnxfold.api.options import CheckedOptionArguments, Options
from onnxfold.rewrite import op, rule, rule_set

ROWS = {"x": large(2, 64, seed=9)}


@pytest.fixture
def model() -> onnx.ModelProto:
    proto = parse(
        """g (float[batch, 64] x) => (float[batch, 64] y) <float[1] two = {2}> {
            t = Transpose <perm = [1, 0]> (w)
            n = Neg (two)
            s = local.Odd (n)
            h = MatMul (x, t)
            y = Mul (h, n)
        }"""
    )
    del proto.graph.node[2]
    return with_weights(proto, w=large(64, 64))


@pytest.fixture
def path(model, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def _kinds(nodes) -> list[str]:
    return [node.op_type for node in nodes]


def test_a_proto_is_not_changed(model):
    before = copy.deepcopy(model)
    result = onnxfold.optimize(model)
    assert isinstance(result, onnx.ModelProto)
    assert model == before
    assert _kinds(result.graph.node) == ["MatMul", "Mul"]
    assert_same(model, result, ROWS)


def test_an_ir_model_is_changed_and_returned(model):
    opened = ir.from_proto(model)
    assert onnxfold.optimize(opened) is opened
    assert _kinds(opened.graph) == ["MatMul", "Mul"]
    assert_same(model, ir.to_proto(opened), ROWS)


@pytest.mark.parametrize("options", [{}, {"max_growth": 0}, {"check": 1}], ids=str)
def test_the_graph_of_an_ir_model_remains_the_same_object(model, options):
    """The inputs and the dictionaries of the model are the same objects, too."""
    opened = ir.from_proto(model)
    opened.meta["mine"] = "kept"
    opened.graph.meta["mine"] = "kept"
    graph = opened.graph
    functions = opened.functions
    properties = opened.metadata_props
    inputs = list(graph.inputs)
    outputs = list(graph.outputs)
    onnxfold.optimize(opened, **options)
    assert opened.graph is graph
    assert opened.functions is functions and opened.metadata_props is properties
    assert _kinds(graph) == ["MatMul", "Mul"]
    assert all(node.graph is graph for node in graph)
    assert list(map(id, graph.inputs)) == list(map(id, inputs))
    assert [value.name for value in graph.outputs] == [value.name for value in outputs]
    assert opened.meta["mine"] == graph.meta["mine"] == "kept"
    assert_same(model, ir.to_proto(opened), ROWS)


def test_the_graph_remains_the_same_object_at_a_lower_level():
    """The model would grow at level 1, so `optimize` restores it and applies level 0."""
    numbers = "int64[1] o = {0}, int64[1] i = {1}, int64[1] j = {3}"
    slices = "r = Slice (x, i, j, o) y = Slice (r, i, j, i)"
    model = parse(f"g (float[4, 4] x) => (float[2, 2] y) <{numbers}> {{ {slices} }}")
    model.doc_string = "about"
    model.graph.doc_string = "about"
    model.metadata_props.add(key="k", value="v")
    opened = ir.from_proto(model)
    graph = opened.graph
    _, report = onnxfold.optimize(opened, max_growth=0, return_report=True)
    assert any("level 0 was applied" in warning for warning in report.warnings)
    assert opened.graph is graph
    result = ir.to_proto(opened)
    assert _kinds(result.graph.node) == ["Slice", "Slice"]
    assert (result.doc_string, result.graph.doc_string) == ("about", "about")
    assert result.metadata_props == model.metadata_props
    assert result.opset_import == model.opset_import
    assert_same(model, result, {"x": large(4, 4)})


@rule
def wrong(x):
    return op.Neg(x) >> op.Abs(x)


def test_a_failed_check_restores_the_content_of_an_ir_model():
    model = parse("""g (float[n] x, float[n] u) => (float[n] y, float[n] z) <float[n] u> {
        a = local.f (x)
        b = Neg (a)
        y = Add (b, u)
        z = Exp (a)
    }
    <domain: "local", opset_import: ["": 21]> f (x) => (y) { y = Sqrt (x) }""")
    del model.graph.value_info[:]
    model.metadata_props.add(key="k", value="v")
    opened = ir.from_proto(model)
    before = ir.to_proto(opened)
    graph = opened.graph
    rules = [rule_set("wrong", {"wrong": wrong}, doc="One rule.")]
    with pytest.raises(onnxfold.CheckFailedError):
        onnxfold.optimize(opened, check=1, rules=rules)
    assert opened.graph is graph
    assert ir.to_proto(opened) == before
    onnxfold.optimize(opened, check=1)
    assert opened.graph is graph
    assert _kinds(graph) == _kinds(onnxfold.optimize(model).graph.node)


@pytest.mark.parametrize("kind", [str, lambda p: p])
def test_a_path_returns_an_ir_model_and_the_file_is_not_changed(model, path, kind):
    content = path.read_bytes()
    result = onnxfold.optimize(kind(path))
    assert isinstance(result, ir.Model)
    assert path.read_bytes() == content
    onnxfold.save(result, path.with_name("after.onnx"))
    assert_same(model, onnx.load(path.with_name("after.onnx")), ROWS)


def test_unknown_options_raise_an_error(model):
    assert "Neg" in _kinds(onnxfold.optimize(model, keep=["n"]).graph.node)
    with pytest.raises(onnxfold.UsageError, match="unknown option 'folds'"):
        onnxfold.optimize(model, folds=True)


def test_option_arguments_are_the_options():
    assert set(CheckedOptionArguments.__annotations__) == set(Options.__dataclass_fields__)


def test_a_file_is_optimized_in_place(model, path):
    report = onnxfold.optimize_file(path, path)
    after = onnx.load(path)
    assert _kinds(after.graph.node) == ["MatMul", "Mul"]
    assert_same(model, after, ROWS)
    assert report.folded == 2
    assert report.nodes_before == {"MatMul": 1, "Mul": 1, "Neg": 1, "Transpose": 1}
    assert report.nodes_after == {"MatMul": 1, "Mul": 1}
    assert report.bytes_after == path.stat().st_size
    assert names_in(path.parent) == ["model.onnx"]


def test_a_second_run_folds_nothing_and_changes_nothing(path):
    onnxfold.optimize_file(path, path)
    first = path.read_bytes()
    assert onnxfold.optimize_file(path, path).folded == 0
    assert path.read_bytes() == first


def test_optimize_file_with_checks(path):
    assert onnxfold.optimize_file(path, path, check=2).check.passed
    assert names_in(path.parent) == ["model.onnx"]


def test_the_report_is_json(path):
    report = onnxfold.optimize_file(path, path, check=1, advise=True, keep=["n"])
    record = json.loads(json.dumps(report.to_dict()))
    assert record["folded"] == 1
    assert record["pool"]["materialized"] == 1
    assert [(k["op_type"], k["reason"]) for k in record["kept"]] == [("Neg", "kept by option")]
    assert set(record["stages"]) == {"load", "fold", "check", "outlook", "save"}


def test_constants_of_every_form_are_counted_and_lifted(tmp_path):
    """The results for a message, a file and a loaded model have the same nodes.

    A Constant node remains if its result is a graph output, or if the node is in a function.
    """
    model = parse(TEXTS["constants of every form"])
    onnx.save(model, tmp_path / "m.onnx")
    report = onnxfold.optimize_file(tmp_path / "m.onnx", tmp_path / "n.onnx", check=1)
    result = onnx.load(tmp_path / "n.onnx")
    assert report.nodes_before["Constant"] == 5
    assert [n.output[0] for n in result.graph.node if n.op_type == "Constant"] == ["z"]
    assert report.nodes_after == onnxfold.optimize(model, return_report=True)[1].nodes_after
    opened = onnxfold.optimize(onnxfold.load(tmp_path / "m.onnx"))
    assert _kinds(opened.graph) == _kinds(result.graph.node)
    assert _kinds(onnxfold.optimize(model, passes=()).graph.node) == _kinds(model.graph.node)


def test_equal_constants_after_their_consumers(tmp_path):
    """onnxruntime accepts any order of nodes, because it sorts them."""
    model = parse(TEXTS["constants behind their users"])
    onnx.save(model, tmp_path / "m.onnx")
    report = onnxfold.optimize_file(tmp_path / "m.onnx", tmp_path / "n.onnx", check=1, level=0)
    assert report.check.equal
    assert report.nodes_after == {"Reshape": 3}


def test_a_custom_op_is_reported_with_its_domain(tmp_path):
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            a = local.Odd (w)
            y = Add (x, a)
        }"""
    )
    onnx.save(model, tmp_path / "m.onnx")
    report = onnxfold.optimize_file(tmp_path / "m.onnx", tmp_path / "n.onnx")
    assert report.nodes_after == {"Add": 1, "local::Odd": 1}
    (kept,) = report.kept
    assert (kept.op_type, kept.value, kept.graph) == ("local::Odd", "a", "g")


def test_progress_contains_every_stage(path):
    seen = []
    onnxfold.optimize_file(path, path, progress=lambda *args: seen.append(args))
    stages = list(dict.fromkeys(stage for stage, _, _ in seen))
    assert stages == ["load", "fold", "save"]
    assert all(0 <= done <= total for _, done, total in seen)


def test_a_memory_limit_changes_no_bit(path, tmp_path):
    model = parse("g (float x) => (float[n] y) { a = Exp (w) b = Mul (a, a) y = Add (x, b) }")
    onnx.save(with_weights(model, w=large(600, 1000)), path)
    for name, limit in (("free", None), ("bound", 1 << 20)):
        onnxfold.optimize_file(path, tmp_path / name, memory_limit=limit, fold_all=True)
    assert (tmp_path / "free").read_bytes() == (tmp_path / "bound").read_bytes()


def test_errors_name_the_invalid_file(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(onnxfold.ModelError, match=r"bad\.onnx"):
        onnxfold.optimize(tmp_path / "bad.onnx")
    with pytest.raises(onnxfold.UsageError, match="check"):
        onnxfold.optimize_file(tmp_path / "bad.onnx", tmp_path / "o.onnx", check=-1)
    assert not (tmp_path / "o.onnx").exists()
