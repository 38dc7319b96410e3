"""Test that shape inference records types and changes nothing else in a model."""

import copy
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from model_table import MODELS, ROOT, SWIN, TEXTS, parse, with_weights

import onnxfold
from onnxfold.support.errors import MissingFileError, ModelError, UsageError

REAL = (
    SWIN,
    MODELS / "t5-decoder.onnx",
    MODELS / "lora" / "torchscript.onnx",
    ROOT / "tests" / "data" / "lstm_gru.onnx",
    ROOT / "tests" / "data" / "control_flow.onnx",
)


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield the graphs and functions of a model."""
    pending = [model.graph, *model.functions]
    for graph in pending:
        yield graph
        for node in graph.node:
            pending += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model without the value_info of its graphs and functions."""
    model = copy.deepcopy(model)
    for graph in graphs(model):
        del graph.value_info[:]
    return model


def types(graph: onnx.GraphProto | onnx.FunctionProto) -> dict[str, str]:
    """Return the types in the value_info of a graph as text, by the name of the value."""
    found = {}
    for info in graph.value_info:
        kind = info.type.tensor_type
        sizes = [
            d.dim_param or (d.dim_value if d.HasField("value") else "?") for d in kind.shape.dim
        ]
        dtype = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        shape = f"[{','.join(map(str, sizes))}]" if kind.HasField("shape") else ""
        found[info.name] = f"{dtype}{shape}"
    return found


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_models(path: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    target = tmp_path / "out.onnx"
    original = onnx.load(path)
    onnx.save(bare(original), source)
    report = onnxfold.infer_shapes_file(source, target)
    result = onnx.load(target)
    assert bare(result) == bare(original)
    assert report.before.dtype == report.before.rank == 0
    assert report.after.dtype == report.after.rank == report.values > 0
    assert report.changed == report.values and not report.not_inferred
    onnx.checker.check_model(result, full_check=True)
    onnxfold.compare(source, target).assert_equal()


def test_all_sizes_of_a_model_are_known() -> None:
    _, report = onnxfold.infer_shapes(bare(onnx.load(SWIN)), return_report=True)
    assert report.after.static == report.after.sizes == report.values
    _, report = onnxfold.infer_shapes(MODELS / "t5-decoder.onnx", return_report=True)
    assert report.after.static < report.after.sizes == report.values


TEXT = """g (float[B,S,8] x, bool c) => (float[B,N] y, float[K] z) {
    shape = Constant<value_ints = [0, -1]>()
    both = Concat<axis=1>(x, x)
    flat = Reshape(both, shape)
    u = If (c) <
        then_branch = a () => (float[B,N] p) { r = Relu(flat) p = Neg(r) },
        else_branch = b () => (float[B,N] q) { s = Abs(flat) q = Exp(s) }>
    t = custom.F(x)
    k = Relu(t)
    z = ReduceSum<keepdims=0>(k)
    y = local.G(u)
}
<domain: "local", opset_import: ["" : 21]>
G (i) => (o) { n = Shape(i) m = Cast<to=1>(n) o = Mul(i, m) }"""


def test_names_expressions_subgraphs_and_functions() -> None:
    model = parse(TEXT)
    before = copy.deepcopy(model)
    result, report = onnxfold.infer_shapes(model, return_report=True)
    assert model == before and bare(result) == bare(before)
    assert types(result.graph) == {
        "both": "float[B,2*S,8]",
        "flat": "float[B,16*S]",
        "u": "float[B,16*S]",
    }
    branches = result.graph.node[3].attribute
    assert [types(branch.g) for branch in branches] == [
        {"r": "float[B,16*S]"},
        {"s": "float[B,16*S]"},
    ]
    assert types(result.functions[0]) == {"n": "int64[?]", "m": "float[?]"}
    assert report.not_inferred == {"custom::F": 1}
    assert report.to_dict()["after"]["rank"] == report.after.rank


def test_other_entries_are_not_changed() -> None:
    """Only inferred types change. Denotations, documentation and metadata of entries are kept.

    Entries of values that inference does not cover are not changed.
    """
    text = """g (float[B,4] x) => (float[B,4] y) <float[7,4] t, float[B,4] u, float[3,4] w> {
        t = Relu(x)  u = custom.F(t)  w = Identity(c)  y = Add(u, w) }"""
    model = with_weights(parse(text), c=[1.0, 2.0, 3.0, 4.0])
    (entry,) = [entry for entry in model.graph.value_info if entry.name == "t"]
    entry.doc_string = "negated"
    entry.type.denotation = "IMAGE"
    entry.metadata_props.add(key="k", value="v")
    entry.type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    model.graph.value_info.add(name="c").type.tensor_type.elem_type = 1
    model.graph.value_info.add(name="nothing", doc_string="no value")
    expected = copy.deepcopy(model)
    for entry in expected.graph.value_info:
        if entry.name == "t":
            entry.type.tensor_type.shape.dim[0].dim_param = "B"
        if entry.name == "w":
            entry.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
            del entry.type.tensor_type.shape.dim[:]
            entry.type.tensor_type.shape.dim.add(dim_value=4)
    assert onnxfold.infer_shapes(model) == expected


def test_names_of_outer_values_are_kept() -> None:
    """The analysis renames values that shadow outer values. The model keeps its names."""
    text = """g (float[B,2] x, bool c) => (float[B,N] y) {
        h = Relu(x)
        y = If (c) <then_branch = a () => (float[B,N] p) { h = Concat<axis=1>(x, x) p = Neg(h) },
                    else_branch = b () => (float[B,N] q) { q = Concat<axis=1>(x, x) }> }"""
    model = parse(text)
    for result in (
        onnxfold.infer_shapes(model),
        ir.to_proto(onnxfold.infer_shapes(ir.from_proto(model))),
    ):
        for before, after in zip(graphs(model), graphs(result), strict=True):
            assert [n.output for n in before.node] == [n.output for n in after.node]
        assert types(result.graph) == {"h": "float[B,2]"}
        assert types(result.graph.node[1].attribute[0].g) == {"h": "float[B,4]"}


class Program:
    """A substitute for ``torch.onnx.ONNXProgram`` with the members that onnxfold uses."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_kinds_of_models(tmp_path: Path) -> None:
    proto = bare(onnx.load(SWIN))
    path = tmp_path / "in.onnx"
    onnx.save(proto, path)
    expected = types(onnxfold.infer_shapes(proto).graph)
    assert len(expected) > 900
    made = onnxfold.infer_shapes(proto.SerializeToString())
    assert isinstance(made, bytes)
    assert types(onnx.load_from_string(made).graph) == expected
    opened = onnxfold.infer_shapes(path)
    onnxfold.save(opened, tmp_path / "saved.onnx")
    assert types(onnx.load(tmp_path / "saved.onnx").graph) == expected
    assert bare(onnx.load(tmp_path / "saved.onnx")) == proto
    model = ir.from_proto(proto)
    graph = model.graph
    order = list(model.graph)
    assert onnxfold.infer_shapes(model) is model
    assert model.graph is graph and list(graph) == order
    assert types(ir.to_proto(model).graph).items() >= expected.items()
    program = Program(ir.from_proto(proto))
    assert onnxfold.infer_shapes(program) is program and program.released == 1
    assert types(ir.to_proto(program.model).graph).items() >= expected.items()


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    onnxfold.infer_shapes_file(REAL[1], target)
    first = target.read_bytes()
    report = onnxfold.infer_shapes_file(target, target)
    assert report.changed == 0 and report.before == report.after
    assert target.read_bytes() == first
    assert list(tmp_path.iterdir()) == [target]


def test_data_that_an_ir_model_cannot_represent_is_kept(tmp_path: Path, caplog) -> None:
    """A protobuf model keeps the order of its nodes and its training information."""
    model = parse(TEXTS["branches and a function"])
    model.graph.node.reverse()
    model.training_info.add().initialization.name = "initialization"
    source = tmp_path / "in.onnx"
    target = tmp_path / "out.onnx"
    onnx.save(model, source)
    onnxfold.infer_shapes_file(source, target)
    for result in (onnxfold.infer_shapes(model), onnx.load(target)):
        assert bare(result) == bare(model)
        assert types(result.graph)["t"] == "float[4,4]"
    assert not caplog.records
    onnxfold.infer_shapes(source)
    assert "training information is discarded" in caplog.text


@pytest.mark.parametrize(
    ("source", "target", "error", "text"),
    [
        ("missing.onnx", "out.onnx", MissingFileError, "no such file"),
        ("text.onnx", "out.onnx", ModelError, "not an ONNX model"),
        ("in.onnx", "missing/out.onnx", UsageError, "its folder does not exist"),
        ("in.onnx", ".", UsageError, "it is a folder"),
    ],
)
def test_invalid_paths(tmp_path: Path, monkeypatch, source, target, error, text) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.onnx").write_text("hello, world\n")
    onnx.save(parse(TEXT), "in.onnx")
    with pytest.raises(error, match=text):
        onnxfold.infer_shapes_file(source, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "text.onnx"]
