"""Test that bisection finds the first value that differs between two models."""

import re

import numpy as np
import onnx
import pytest
from model_table import SWIN, parse
from onnx import numpy_helper

from onnxfold.tools.comparison import compare


def weight_by_an_ulp(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
    tensor = weights[node.input[1]]
    array = numpy_helper.to_array(tensor).copy()
    index = np.abs(array).argmax()
    array.flat[index] = np.nextafter(array.flat[index], np.float32(np.inf))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def attribute(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
    node.attribute[0].i = -2  # the original axis is -1


def order_of_inputs(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
    node.input[:] = reversed(node.input)


def another_op(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
    node.op_type = "Tanh"


@pytest.mark.parametrize(
    ("plant", "op", "places"),
    [
        (weight_by_an_ulp, "LayerNormalization", (0, 1)),
        (attribute, "Softmax", (0, 3)),
        (order_of_inputs, "Sub", (5, 7)),
        (another_op, "Erf", (0, 3)),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_changed_node_is_found(plant, op, places, which) -> None:
    model = onnx.load(SWIN)
    node = [node for node in model.graph.node if node.op_type == op][places[which]]
    plant(node, {tensor.name: tensor for tensor in model.graph.initializer})
    difference = compare(SWIN, model, exact=True, bisect=True).first_difference
    assert difference is not None and difference.nodes_b
    assert difference.nodes_a[-1].startswith(f"{node.output[0]} = {op}("), str(difference)
    assert difference.runs <= 5


@pytest.mark.parametrize(
    "call",
    [
        "y = If(flag) <then_branch = t () => (float[2] o) {{ a = Exp(h) o = {}(a) }},"
        " else_branch = e () => (float[2] p) {{ p = Neg(h) }}>",
        "y = Loop<body = l (int64 i, bool g, float[2] s) => (bool c, float[2] o)"
        " {{ c = Identity(g) a = Exp(s) o = {}(a) }}>(turns, , h)",
        "y, w = Scan<num_scan_inputs = 1, body = s (float[2] v, float e) => (float[2] o, float q)"
        " {{ q = Neg(e) a = Exp(v) o = {}(a) }}>(h, x)",
        "y = local.f(h)",
    ],
    ids=["If", "Loop", "Scan", "function"],
)
def test_difference_in_a_body_names_its_node(call) -> None:
    def model(op):
        text = "g (float[2] x) => (float[2] z) <int64 turns = {3}, bool flag = {1}> "
        text += "{ h = Sin(x) " + call.format(op) + " z = Abs(y) }"
        function = '<domain: "local", opset_import: ["" : 21]> f (h) => (r) { r = %s(h) }'
        return parse(text + function % op)

    difference = compare(model("Sin"), model("Cos"), bisect=True).first_difference
    assert difference is not None and difference.value == "y"
    op = re.search(r"= ([\w.]+)", call)[1].replace(".", "::")
    assert re.match(rf"y(, w)? = {op}\(", difference.nodes_a[-1])


def changed_swin() -> onnx.ModelProto:
    model = onnx.load(SWIN)
    weight = next(t for t in model.graph.initializer if t.name.endswith("classifier.bias"))
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    return model


def test_difference_is_described() -> None:
    result = compare(SWIN, changed_swin(), bisect=True)
    text = str(result.first_difference)
    assert "the first value that differs is 'logits'" in text
    assert "Gemm(" in text and "classifier.bias: " in text and ": equal" in text
    assert "10 of 10 elements differ" in text
    document = result.to_dict()["first_difference"]
    assert document["value"] == "logits" and "= Gemm(" in document["nodes_b"][-1]
    with pytest.raises(AssertionError, match="the first value that differs"):
        result.assert_equal()


def test_models_with_external_data(tmp_path) -> None:
    for name, model in (("a", onnx.load(SWIN)), ("b", changed_swin())):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "model.onnx"
        onnx.save(model, path, save_as_external_data=True, location="w", size_threshold=0)
    result = compare(tmp_path / "a" / "model.onnx", tmp_path / "b" / "model.onnx", bisect=True)
    difference = result.first_difference
    assert difference is not None and difference.value == "logits", result.notes


@pytest.mark.slow
def test_large_values_are_spread_over_runs() -> None:
    """The models have 21 values of 16 MB. Each run returns only some of them."""
    chain = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(20))
    text = "g (float[4194304] v0) => (float[4194304] y) {{ " + chain + " y = {}(v20) }}"
    result = compare(parse(text.format("Neg")), parse(text.format("Abs")), bisect=True)
    difference = result.first_difference
    assert difference is not None and difference.value == "y"
    assert 9 <= difference.runs <= 17


def test_wrong_fold_is_found_by_name() -> None:
    a = parse(
        "g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {1, 2}>() "
        "d = Exp(c) e = Add(x, d) y = Neg(e) }"
    )
    b = parse(
        "g (float[2] x) => (float[2] y) <float[2] d = {2.75, 7.5}> { e = Add(x, d) y = Neg(e) }"
    )
    difference = compare(a, b, bisect=True).first_difference
    assert difference is not None and difference.value == "d"
    assert (
        difference.nodes_a == ["c = Constant(value=float32[2])", "d = Exp(c)"]
        and not difference.nodes_b
    )
    assert "stores it" in str(difference)


def test_constant_outputs_and_strings_are_compared() -> None:
    text = (
        "g (float[2] x) => (float[2] y) <int64[1] s = {{2}}> "
        "{{ c = Constant<value = float {{{}}}>() d = Exp(c) y = Expand(d, s) }}"
    )
    difference = compare(parse(text.format(1)), parse(text.format(2)), bisect=True).first_difference
    assert difference is not None and difference.value == "c"
    text = 'g (string[2] x) => (string[2] y) <string[1] s = {{"{}"}}> {{ y = StringConcat(x, s) }}'
    difference = compare(
        parse(text.format("a")), parse(text.format("b")), bisect=True
    ).first_difference
    assert difference is not None and difference.value == "y"


def test_random_values_are_ignored() -> None:
    text = (
        "g (float[2] x) => (float[2] y, float[2] z) {{ r = RandomNormal<shape = [2]>() "
        "s = Mul(x, r) y = Sub(s, s) z = {}(x) }}"
    )
    difference = compare(parse(text.format("Neg")), parse(text.format("Abs")), bisect=True)
    assert difference.first_difference is not None and difference.first_difference.value == "z"


def test_equal_models_have_no_first_difference() -> None:
    result = compare(SWIN, SWIN, bisect=True)
    assert result.equal and result.first_difference is None and not result.notes
