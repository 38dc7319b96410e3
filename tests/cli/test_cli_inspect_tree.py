"""`onnxfold inspect --tree`."""

from __future__ import annotations

import json

import onnx
import onnx.parser
import pytest

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 64] x, float[64, 64] u, bool flag) => (float[n, 64] y) <float[2] pair = {1, 2}> {
    t = Transpose (w)
    h = MatMul (x, t)
    r = Relu (h)
    k = MatMul (r, w)
    b = If (flag) <
        then_branch = yes () => (float[n, 64] o) { o = MatMul (k, u) },
        else_branch = no () => (float[n, 64] p) { p = Neg (k) }
    >
    y = Add (b, h)
}
"""


def saved(tmp_path, scopes):
    """The model, with what an exporter would write of each node that is named by its result."""
    import numpy as np

    model = onnx.parser.parse_model(MODEL)
    weight = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    graphs = [model.graph, *(a.g for n in model.graph.node for a in n.attribute if a.HasField("g"))]
    for node in (node for graph in graphs for node in graph.node):
        scopes(node)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def torchscript(node):
    places = {"h": "/m/layers.0/fc", "t": "/m/layers.0/fc", "r": "/m/layers.0", "k": "/m/head"}
    places |= {"o": "/m/head/yes", "p": "/m/head/no"}
    node.name = f"{places.get(node.output[0], '')}/{node.op_type}"


def dynamo(node):
    places = {
        "h": ["", "m", "m.layers.0", "m.layers.0.fc"],
        "t": ["", "m", "m.layers.0", "m.layers.0.fc"],
        "r": ["", "m", "m.layers.0"],
        "k": ["", "m", "m.head"],
        "o": ["", "m", "m.head", "m.head.yes"],
        "p": ["", "m", "m.head", "m.head.no"],
    }
    scopes = places.get(node.output[0], ["_empty_nn_module_stack_from_metadata_hook"])
    node.name = f"node_{node.output[0]}"
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str([*scopes, "mm_1"]))


@pytest.mark.parametrize("scopes", [torchscript, dynamo])
def test_the_modules_that_exporters_write(run, tmp_path, scopes):
    document = json.loads(run("inspect", "--tree", saved(tmp_path, scopes), "--json").out)
    modules = {m["path"]: m for m in document["modules"]}
    assert list(modules)[:5] == ["", "m", "m/layers.0", "m/layers.0/fc", "m/head"]
    assert {path: m["nodes"] for path, m in modules.items()} == {
        "": 8,
        "m": 6,
        "m/layers.0": 3,
        "m/layers.0/fc": 2,
        "m/head": 3,
        "m/head/yes": 1,
        "m/head/no": 1,
    }
    # two modules read the weight: it is of the one that holds them; nothing reads the pair
    assert {path: m["bytes"] for path, m in modules.items() if m["bytes"]} == {
        "": 64 * 64 * 4 + 8,
        "m": 64 * 64 * 4,
    }
    assert modules[""]["work"] == pytest.approx(1)
    # each has one product of the same size; the other ops and the constant are small or nothing
    assert modules["m/layers.0/fc"]["work"] == pytest.approx(modules["m/head"]["work"])
    assert 0 < modules["m"]["work"] < 1  # the rest is what the branch costs


def test_a_real_model(run, swin):
    document = json.loads(run("inspect", "--tree", swin, "--json").out)
    modules = {m["path"]: m for m in document["modules"]}
    inventory = json.loads(run("inspect", swin, "--json").out)
    assert modules[""]["nodes"] == sum(inventory["nodes"].values())
    assert modules[""]["bytes"] == inventory["tensor_bytes"]
    blocks = [f"m/swin/encoder/layers.0/blocks.{k}" for k in (0, 1)]
    both = sum(modules[block]["work"] for block in blocks)
    assert both < modules["m/swin/encoder/layers.0"]["work"] < 1
    for path, module in modules.items():
        inner = [m for p, m in modules.items() if p.rpartition("/")[0] == path and p]
        assert sum(m["nodes"] for m in inner) <= module["nodes"]
        assert sum(m["bytes"] for m in inner) <= module["bytes"]


def test_the_depth(run, swin):
    rows = [len(run("inspect", "--tree", swin, "--depth", k).out.splitlines()) for k in range(5)]
    assert rows == sorted(rows) and rows[0] < rows[3]
    assert "--depth 3" in run("inspect", "--tree", swin, "--depth", 2).out
    assert len(run("inspect", "--tree", swin).out.splitlines()) <= 45


def test_scopes_that_make_no_sense_are_no_scopes(run, tmp_path):
    texts = ["[", "[1, 2]", "(" * 9000, "x" * 20_000, "{}", "['a', 'b'", "", "['']"]

    def scopes(node):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=texts.pop())

    document = json.loads(run("inspect", "--tree", saved(tmp_path, scopes), "--json").out)
    assert [m["path"] for m in document["modules"]] == [""]
    result = run("inspect", "--tree", tmp_path / "model.onnx")
    assert "say nothing of modules" in result.out
