"""Test the checks of graphs, ops, opset imports and functions when a model is loaded."""

import onnx
import onnx_ir as ir
import pytest
from model_table import parse
from onnx import helper

import onnxfold
from onnxfold.ir import storage
from onnxfold.support.errors import ModelError


def graph(body: str) -> onnx.ModelProto:
    return parse(f"g (float[2] x, bool b) => (float[2] y) <float[2] c = {{1, 2}}> {{ {body} }}")


def functions(count: int, body: str) -> onnx.ModelProto:
    """Return a model of y = F0(x) with ``count`` functions, which have the same ``body``.

    ``{after}`` in ``body`` is the number of the next function, or 0 in the last function.
    """
    made = "".join(
        f'<domain: "local", opset_import: ["" : 21, "local" : 1]> F{i} (u) => (v) '
        f"{{ {body.format(after=(i + 1) % count)} }}"
        for i in range(count)
    )
    return parse(f"g (float[2] x) => (float[2] y) {{ y = local.F0(x) }} {made}")


@pytest.mark.parametrize(
    ("body", "reason", "node"),
    [
        ("y = Add(y, x)", "graph 'g' depends on its own result", None),
        ("y = Add(x, t) s = Neg(y) t = Neg(s)", "its own result", None),
        (
            "y = If(b) <then_branch = t () => (float[2] r) { r = Neg(y) },"
            " else_branch = e () => (float[2] q) { q = Neg(x) }>",
            "its own result",
            None,
        ),
        ("y = Constant()", "requires one value, but has 0", "Constant -> y"),
    ],
)
def test_graphs_that_cannot_run(body: str, reason: str, node: str | None) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        storage.from_proto(graph(body))
    assert caught.value.node == node


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Constant<val = 1>()", "a Constant has no attribute 'val' of type INT"),
        ("k = Constant<value = [1]>() y = Add(k, c)", "no attribute 'value' of type INTS"),
        ("y = Cast(c)", "'to' is missing.*Cast"),
        (
            "y = If(b) <then_branch = t (float[2] r) => (float[2] s) { s = Neg(r) },"
            " else_branch = e () => (float[2] q) { q = Neg(x) }>",
            "node 'y': the branches of an If have no inputs",
        ),
        ("k = Constant<value = float {1}>() y = Add(k, c)", "'value' is .* have field 't'"),
    ],
)
def test_errors_of_invalid_nodes(tmp_path, body: str, reason: str) -> None:
    model = graph(body)
    if "value = float" in body:
        model.graph.node[0].attribute[0].ClearField("t")
    with pytest.raises(ModelError, match=reason):
        onnxfold.optimize(model)
    onnx.save(model, tmp_path / "m.onnx")
    for run in (
        lambda path: onnxfold.optimize(path),
        lambda path: onnxfold.optimize_file(path, tmp_path / "o.onnx"),
        lambda path: onnxfold.split(path, tmp_path / "b", runtime_constants=["x"]),
    ):
        with pytest.raises(ModelError, match=reason) as caught:
            run(tmp_path / "m.onnx")
        assert caught.value.file == str(tmp_path / "m.onnx")
    assert not (tmp_path / "o.onnx").exists()


_BODY = "b (int64 i, bool k, float[2] u) => (bool l, float[2] v) { l = Identity(k) v = Neg(u) }"
_ADD = "a (float[2] u, float[2] v) => (float[2] w) { w = Add(u, v) }"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = If(b) <then_branch = t () => (float[2] r) { r = Neg(x) }>", "has no else_branch"),
        (f"y = Loop(c, b) <body = {_BODY}>", "2 inputs, but its body has 3"),
        (f"y = Loop(c, b, x, x) <body = {_BODY}>", "4 inputs, but its body has 3"),
        (f"y, z = Loop(c, b, x) <body = {_BODY}>", "2 outputs, but its body returns 1"),
        ("y = Loop(c, b, x) <body = b () => () { }>", "Loop has"),
        (f"y = Scan(x) <num_scan_inputs = 1, body = {_ADD}>", "inputs, but its body has"),
        (
            f"y, z = Scan(x, x) <num_scan_inputs = 1, body = {_ADD}>",
            "outputs, but its body returns",
        ),
        (
            "y = If() <then_branch = t () => (float[2] r) { r = Neg(x) },"
            " else_branch = e () => (float[2] q) { q = Abs(x) }>",
            "has no inputs",
        ),
    ],
)
def test_bodies_have_the_inputs_and_outputs_of_their_node(tmp_path, body: str, reason: str) -> None:
    model = graph(body)
    for given in (model, model.SerializeToString(), ir.serde.deserialize_model(model)):
        for run in (
            lambda given: onnxfold.optimize(given),
            lambda given: onnxfold.split(given, tmp_path / "b", runtime_constants=["x"]),
            lambda given: onnxfold.compare(given, given),
        ):
            with pytest.raises(ModelError, match=f"node '(If|Loop|Scan) -> y': .*{reason}"):
                run(given)


def test_calls_have_no_more_inputs_and_outputs_than_the_function() -> None:
    for call in ("y = local.F0(x, x)", "y, z = local.F0(x)"):
        model = functions(1, "v = Neg(u)")
        model.graph.node[0].CopyFrom(graph(call).graph.node[0])
        with pytest.raises(ModelError, match="has only 1 inputs and 1 outputs"):
            onnxfold.optimize(model)


def test_unusual_models_are_accepted(tmp_path) -> None:
    """Any order of nodes, omitted operands, unknown attributes and unknown ops are accepted."""
    for body in (
        "y = Neg(t) t = Abs(x)",
        "y = Clip(x, , c0) c0 = Constant<value_float = 1.0>()",
        "y = Neg<hint = 1>(x)",
        "y = local.What(x, , x)",
        "y = NoSuchOp(x)",
        "y = If(b) <then_branch = t () => (float[2] r) { r = Neg(s) },"
        " else_branch = e () => (float[2] q) { q = Neg(x) }> s = Abs(x)",
    ):
        assert len(storage.from_proto(graph(body)).graph) > 0
    model = graph("y = local.What(x)")
    attributes = model.graph.node[0].attribute
    attributes.add(name="empty", type=onnx.AttributeProto.TENSOR)  # a tensor without a data type
    onnxfold.optimize_file(model, tmp_path / "m.onnx", report=tmp_path / "page.html")
    attributes.add(
        name="sparse", type=onnx.AttributeProto.SPARSE_TENSOR
    )  # an empty sparse tensor is invalid
    with pytest.raises(ModelError, match="'sparse' has no value, or its type is not"):
        onnxfold.optimize(model)


@pytest.mark.parametrize(
    ("opsets", "reason"),
    [
        ([("", 0)], "opset 0 of ONNX is not supported"),
        ([("", -1)], "opset -1"),
        ([("", 2**40)], "opset 1099511627776 .* supports 1 to"),
        ([("", 21), ("local", 2**40)], "opset 1099511627776 of local"),
        ([], "no opset is imported"),
    ],
)
def test_opsets(opsets: list[tuple[str, int]], reason: str) -> None:
    model = graph("y = Neg(x)")
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*opset) for opset in opsets)
    with pytest.raises(ModelError, match=reason):
        storage.from_proto(model)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (functions(1, "v = local.F{after}(u)"), "calls itself"),
        (functions(3, "t = Neg(u) v = local.F{after}(t)"), "calls itself"),
    ],
)
def test_recursive_functions(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        storage.from_proto(model)


def test_functions_that_expand_exponentially() -> None:
    """Each function calls the next one twice, so the inlined model would not fit in memory."""
    model = functions(40, "t = local.F{after}(u) v = local.F{after}(t)")
    del model.functions[-1].node[:]
    model.functions[-1].node.append(helper.make_node("Neg", ["u"], ["v"]))
    with pytest.raises(ModelError, match="yields more than"):
        storage.from_proto(model)
    del model.functions[:30]
    model.graph.node[0].op_type = "F30"
    assert len(storage.from_proto(model).functions) == 10
    model.functions.append(model.functions[0])
    with pytest.raises(ModelError, match="defined twice"):
        storage.from_proto(model)


@pytest.mark.parametrize("word", [b"DATA", b"MORE", b"SIZE", b"local", b"F1", b"\1x"])
def test_names_of_all_kinds_are_utf8(word: bytes) -> None:
    model = functions(2, "v = Neg(u)")
    model.metadata_props.add(key="DATA", value="MORE")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "SIZE"
    data = model.SerializeToString()
    broken = data.replace(word, word[:-1] + b"\xd6")
    with pytest.raises(ModelError, match="not UTF-8"):
        storage.from_proto(onnx.ModelProto.FromString(broken))


def test_messages_are_one_short_line() -> None:
    model = graph("y = Neg(x)")
    model.graph.node[0].input[0] = "a\nb\x1b[31m" + "x" * 5000
    with pytest.raises(ModelError) as caught:
        storage.from_proto(model)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1100
    assert "a\\nb" in str(caught.value)
