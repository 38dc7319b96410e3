"""Test the types that models record for values. Their dim names must be valid in every run."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from fold_check import large, parse, with_weights

import onnxfold
from onnxfold.ir import storage
from onnxfold.passes import create

ROOT = Path(__file__).parents[2]
MODELS = ("tests/data/lstm_gru.onnx", "tests/data/control_flow.onnx", "models/swin.onnx")


def described(text: str) -> dict[str, list[int | str]]:
    return entries(written(parse(text)).graph)


def written(proto: onnx.ModelProto) -> onnx.ModelProto:
    return onnxfold.optimize(proto, passes=["value-info"])


def entries(graph: onnx.GraphProto) -> dict[str, list[int | str]]:
    return {v.name: dims_of(v) for v in graph.value_info}


def dims_of(info: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]


def test_names_and_expressions():
    found = described(
        """g (float[B,S,8] x, float[P,8] p) => (float[K] y) {
            shape = Constant<value_ints = [0, -1]>()
            flat = Reshape(x, shape)
            both = Concat<axis=1>(x, x)
            less = Slice(x, one, last, one)
            places = NonZero(flat)
            half = MaxPool<kernel_shape=[2], strides=[2]>(x)
            odd = Concat<axis=0>(p, p, p)
            one = Constant<value_ints = [1]>()
            last = Constant<value_ints = [9223372036854775807]>()
            y = Flatten(odd)
        }"""
    )
    assert found["flat"] == ["B", "8*S"]
    assert found["both"] == ["B", "2*S", 8]
    assert found["odd"] == ["3*P", 8]
    assert found["half"] == ["B", "S", 4]
    assert found["less"] == ["B", "max(0, S - 1)", 8]
    assert found["places"] == [2, 0], "the number of nonzero elements has no name"
    assert "shape" not in found


def test_recorded_dims_of_the_file():
    """Stale sizes are replaced. A dim name is kept if it denotes only one size."""
    found = described(
        """g (float[B,3] x, float[N,3] z) => (float y) <
            float[7] stale, int64[2,found] n, int64[2,found] m, int64[2,alone] k,
            float[odd,3] w, float[B,3] c, float[5,4] e
        > {
            stale = Relu(x)  n = NonZero(x)  m = NonZero(z)  k = NonZero(stale)
            w = Concat<axis=0>(x, z)  c = custom.F(x)  e = custom.F(c)
            a = ReduceSum(w)  y = Add(a, a)
        }"""
    )
    assert found["stale"] == ["B", 3]
    assert found["n"] == found["m"] == [2, 0], "one name denotes two sizes"
    assert found["k"] == [2, "alone"]
    assert found["w"] == ["odd", 3]
    assert found["c"] == ["B", 3] and found["e"] == [5, 4], "nothing else is known about the op"


def test_no_expression_equals_a_dim_name_of_an_input():
    """An exporter may name a dim like an expression. Runtimes treat equal texts as equal sizes."""
    proto = parse(
        "g (float[S] x, float[T] z) => (float[V] y) { a = Concat<axis=0>(x, x)"
        " b = Relu(a) y = Concat<axis=0>(b, z) }"
    )
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "2 * S"
    assert entries(written(proto).graph)["b"] == [0]


def test_subgraphs_and_functions():
    text = """g (float[B] x, bool c) => (float[N] y) {
        t, u = If (c) <
            then_branch = a () => (float[M] p, float q) { r = Concat<axis=0>(x, x) p = Relu(r)
                q = ReduceSum(r) },
            else_branch = b () => (float[M] v, float w) { v = Neg(x) w = ReduceSum(x) }>
        y = local.F(t)
    }
    <domain: "local", opset_import: ["" : 21]> F (i) => (o) { s = Shape(i) o = Cast<to=1>(s) }"""
    model = written(parse(text))
    branch = model.graph.node[0].attribute[0].g
    assert entries(branch) == {"r": ["2*B"]}
    assert model.functions[0].value_info[0].type.tensor_type.elem_type == onnx.TensorProto.INT64
    onnx.checker.check_model(model)


def test_a_shape_without_a_type_is_not_written():
    text = """g (float[B] x) => (float[B] y) {
        t = custom.F(x)  u = Relu(t)  v = Neg(x)  y = Add(u, v) }"""
    model = storage.from_proto(parse(text))
    for node in model.graph:
        node.outputs[0].shape = node.outputs[0].shape or ir.Shape([3])
    create("value-info")(model)
    onnx.checker.check_model(storage.to_proto(model))


@pytest.mark.parametrize("path", MODELS)
def test_shapes_that_inference_restores_are_written_only_on_request(path, tmp_path):
    target = tmp_path / "out.onnx"
    source = onnx.shape_inference.infer_shapes(onnx.load(ROOT / path))
    assert source.graph.value_info
    onnx.save(source, tmp_path / "in.onnx")
    onnxfold.optimize_file(tmp_path / "in.onnx", target)
    assert not onnx.load(target).graph.value_info
    report = onnxfold.optimize_file(ROOT / path, target, value_info=True)
    assert onnx.load(target).graph.value_info
    assert bool(report.assumptions) == ("swin" not in path)


def test_recorded_types_that_no_inference_restores_are_kept():
    text = """g (float[B,4] x, int64[2] sizes) => (float[K,L] y)
        <float[B,4] t, float[B,4] u, float[3,8] v, float[B,4] w> {
            t = custom.F(x)  u = Relu(t)  w = Neg(x)  v = Reshape(u, sizes)
            y = custom.G(v, w) }"""
    model = parse(text)
    [noted] = [entry for entry in model.graph.value_info if entry.name == "w"]
    assert entries(onnxfold.optimize(model).graph) == {"t": ["B", 4], "u": ["B", 4], "v": [3, 8]}
    noted.doc_string = "negated"
    assert entries(onnxfold.optimize(model).graph)["w"] == ["B", 4]


def test_recorded_shapes_are_correct(tmp_path):
    """Compare the recorded shapes of values with their shapes in a run of onnxruntime."""
    target = tmp_path / "out.onnx"
    onnxfold.optimize_file(ROOT / MODELS[0], target, value_info=True)
    model = onnx.load(target)
    model.graph.output.extend(model.graph.value_info)
    names = [v.name for v in model.graph.output]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    dims = {v.name: dims_of(v) for v in model.graph.output}
    for batch, seq in ((2, 5), (7, 3)):
        feeds = {"input_ids": np.ones((batch, seq), np.int64)}
        sizes = {"batch": batch, "seq": seq}
        for name, array in zip(names, session.run(names, feeds), strict=True):
            for dim, actual in zip(dims[name], array.shape, strict=True):
                if str(dim).isidentifier():  # a size with its own name
                    sizes.setdefault(str(dim), actual)
                assert dim == 0 or eval(str(dim), {}, sizes) == actual, name


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_model_with_nothing_to_fold_does_not_grow_by_a_byte(tmp_path, level):
    text = """g (float[n, 512] x) => (float[n, 512] y) {
        a = MatMul (x, w) b = Relu (a) y = Sigmoid (b) }"""
    model = with_weights(parse(text, 17), w=large(512, 512))
    del model.opset_import[1:]
    model.opset_import[0].ClearField("domain")  # exporters omit the empty domain
    source = tmp_path / "in.onnx"
    target = tmp_path / "out.onnx"
    onnx.save(model, source)
    onnxfold.optimize_file(source, target, level=level)
    assert target.stat().st_size <= source.stat().st_size


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, ["M", "K"]),
        ({"dims": {"batch": 2}}, [2, "K"]),
        ({"dims": {"batch": 2, "S": 4}}, [2, 12]),
        ({"input_shapes": {"x": [2, 3, 4]}}, [2, 12]),
    ],
)
def test_fixed_inputs_fix_outputs(options, shape):
    model = parse("g (float[batch,3,S] x) => (float[M,K] y) { y = Flatten(x) }")
    (output,) = onnxfold.optimize(model, **options).graph.output
    assert dims_of(output) == shape


def test_recorded_shapes_let_onnxruntime_fuse_an_add_of_convolutions(tmp_path: Path):
    """With recorded shapes, onnxruntime fuses the Add into the convolution.

    Without recorded shapes, onnxruntime cannot infer that the dynamic shapes are equal. If the
    number of channels equals onnxruntime's block size (8 on AVX2, 16 on AVX-512), onnxruntime fuses
    the Add in any case.
    """
    weights = {name: np.ones((4, 4, 3, 3), np.float32) for name in ("v", "w")}
    text = """g (float[1,4,H,W] x) => (float[1,4,h,k] y) {
        a = Conv<pads=[1,1,1,1]>(x, v) r = Sigmoid(a) b = Conv<pads=[1,1,1,1]>(r, w)
        s = Add(b, a) y = Conv(s, w)
    }"""
    model = with_weights(parse(text, 17), **weights)
    found = {}
    for level, target in ((1, None), (2, "onnxruntime")):
        made = onnxfold.optimize(model, level=level, target=target)
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        ort.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])
        optimized = onnx.load(tmp_path / "optimized.onnx").graph
        found[level] = entries(made.graph), [node.op_type for node in optimized.node]
    assert found[1][0] == {}
    assert "Add" in found[1][1]
    assert found[2][0] == {"a": [1, 4, "H", "W"], "b": [1, 4, "H", "W"]}
    assert "Add" not in found[2][1]
