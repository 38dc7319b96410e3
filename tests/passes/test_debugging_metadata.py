"""Test that debugging metadata of exporters is removed and all other metadata is kept."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, large, parse, with_weights

import onnxfold

STACK = 'File "/home/somebody/model.py", line 7, in forward\n    return self.fc(x) * 2'
SCOPES = "['', 'fc', 'linear']"
REMOVED_OF_NODES = {
    "namespace": ": model.Net/fc: torch.nn.modules.linear.Linear/linear: aten.linear.default",
    "pkg.torch.onnx.class_hierarchy": "['model.Net', 'torch.nn.modules.linear.Linear']",
    "pkg.torch.onnx.fx_node": "%linear : [num_users=1] = call_function[target=aten.linear]",
    "pkg.torch.onnx.stack_trace": STACK,
}
KEPT_OF_NODES = {"pkg.torch.onnx.name_scopes": SCOPES, "quantization_group": "7"}
FEEDS = {"x": large(2, 64, seed=9)}


@pytest.fixture
def model() -> onnx.ModelProto:
    """Return a model with the metadata of PyTorch's exporter, two branches and a function."""
    proto = with_weights(
        parse(
            """g (float[2, 64] x, bool is_large) => (float[2, 64] y) {
                t = Transpose <perm = [1, 0]> (w)
                h = MatMul (x, t)
                b = If (is_large) <
                    then_branch = one () => (float[2, 64] p) { p = Exp (h) },
                    else_branch = other () => (float[2, 64] q) { q = Neg (h) }
                >
                y = local.Twice (b)
            }
            <domain: "local", opset_import: ["" : 21]>
            Twice (a) => (r) { r = Add (a, a) }"""
        ),
        w=large(64, 64),
    )
    branches = [attribute.g for attribute in proto.graph.node[2].attribute]
    graphs = [proto.graph, *branches, *proto.functions]
    for owner in (node for graph in graphs for node in graph.node):
        for key, text in {**REMOVED_OF_NODES, **KEPT_OF_NODES}.items():
            owner.metadata_props.add(key=key, value=text)
    proto.graph.metadata_props.add(
        key="pkg.torch.export.ExportedProgram.graph_signature", value="p_fc_weight: PARAMETER"
    )
    proto.graph.metadata_props.add(key="author", value="somebody")
    weight = proto.graph.value_info.add(name="w")
    weight.metadata_props.add(key="pkg.torch.onnx.original_node_name", value="p_fc_weight")
    kind = "pkg.torch.export.graph_signature.InputSpec.kind"
    weight.metadata_props.add(key=kind, value="PARAMETER")
    proto.graph.input[0].metadata_props.add(key=kind, value="USER_INPUT")
    proto.metadata_props.add(key="labels", value="cat,dog")
    proto.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="of the model: it stays")
    return proto


def keys_in(proto: onnx.ModelProto) -> set[str]:
    """Return the metadata keys of the main graph, functions, nodes, and values.

    The metadata of subgraphs, model inputs, and values in functions is not included.
    """
    model = ir.from_proto(proto)
    found = set(model.graph.metadata_props)
    for function in model.functions.values():
        found.update(function.metadata_props)
        for node in function:
            found.update(node.metadata_props)
    for node in model.graph.all_nodes():
        found.update(node.metadata_props)
        for value in (*node.inputs, *node.outputs):
            if value is not None and not value.is_graph_input():
                found.update(value.metadata_props)
    return found


def test_metadata_is_removed_from_nodes_values_and_graphs(model):
    feeds = {**FEEDS, "is_large": np.array(True)}
    optimized, report = onnxfold.optimize(model, return_report=True)
    assert keys_in(optimized) == {*KEPT_OF_NODES, "author"}
    assert b"/home/somebody" not in optimized.graph.SerializeToString()
    assert report.removed_metadata_bytes > 6 * sum(map(len, REMOVED_OF_NODES.values()))
    assert "of debugging metadata; keep_metadata keeps it" in report.to_text()
    assert_same(model, optimized, feeds)


def test_metadata_of_the_model_and_its_interface_is_kept(model):
    optimized = onnxfold.optimize(model)
    assert optimized.metadata_props == model.metadata_props
    assert optimized.graph.input[0].metadata_props == model.graph.input[0].metadata_props


def test_keep_metadata_keeps_debugging_metadata(model):
    optimized, report = onnxfold.optimize(model, keep_metadata=True, return_report=True)
    assert keys_in(optimized) >= {*KEPT_OF_NODES, *REMOVED_OF_NODES, "author"}
    assert report.removed_metadata_bytes == 0
    assert "debugging metadata" not in report.to_text()


def test_other_tools_may_use_the_key_namespace(model):
    for node in model.graph.node:
        entries = [entry for entry in node.metadata_props if entry.key == "namespace"]
        del node.metadata_props[:]
        node.metadata_props.extend(entries)
    assert "namespace" in keys_in(onnxfold.optimize(model))


def test_reported_bytes_are_those_of_the_file():
    model = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    for key, text in REMOVED_OF_NODES.items():
        model.graph.node[0].metadata_props.add(key=key, value=text)
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=SCOPES)
    optimized, report = onnxfold.optimize(model, return_report=True)
    # the length fields of the node and of the graph become one byte shorter
    assert model.ByteSize() - optimized.ByteSize() == report.removed_metadata_bytes + 2


@pytest.mark.parametrize("how", ["optimize", "ir.Model", "optimize_file"])
def test_metadata_does_not_affect_folds(tmp_path, how):
    """The bytes of removed metadata are not spent on folds that make the model larger."""
    numbers = range(12)
    nodes = "".join(f"t{k} = Sin (p{k}) m{k} = MatMul (x, t{k})\n" for k in numbers)
    nodes += "".join(f"p{k} = Gather <axis = 1> (w{k}, r{k})\n" for k in numbers)
    names = ", ".join(f"m{k}" for k in numbers)
    signature = "(float[2, 64] x) => (float[2, 50] y)"
    plain = parse(f"g {signature} {{ {nodes} y = Sum ({names}) }}")
    random = np.random.default_rng(0)
    rows = {f"r{k}": random.integers(0, 2, 50) for k in numbers}
    with_weights(plain, **rows, **{f"w{k}": large(64, 2, seed=k) for k in numbers})
    described = onnx.ModelProto.FromString(plain.SerializeToString())
    described.graph.node[0].metadata_props.add(key="pkg.torch.onnx.fx_node", value="x" * 500_000)
    results = []
    for given in (plain, described):
        if how == "optimize":
            results.append(onnxfold.optimize(given))
        elif how == "ir.Model":
            results.append(ir.to_proto(onnxfold.optimize(ir.from_proto(given))))
        else:
            onnx.save(given, tmp_path / "in.onnx")
            onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", fsync=False)
            results.append(onnx.load(tmp_path / "out.onnx"))
    ops = [[node.op_type for node in result.graph.node] for result in results]
    assert 0 < ops[0].count("Gather") < len(numbers)
    assert ops[0] == ops[1]
    assert results[0].ByteSize() == results[1].ByteSize()


def test_metadata_is_removed_from_both_parts_of_a_bundle(model, tmp_path):
    for keep in (False, True):
        folder = tmp_path / f"bundle_{keep}"
        onnxfold.split(
            model,
            folder,
            runtime_constants=["is_large"],
            backend="onnxruntime",
            keep_metadata=keep,
        )
        parts = [onnx.load(path).graph.SerializeToString() for path in folder.glob("*.onnx")]
        assert any(b"stack_trace" in part for part in parts) == keep
