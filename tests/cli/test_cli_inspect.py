import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from model_table import floats, parse, with_weights

import onnxfold
from onnxfold.runtime.backends import targets
from onnxfold.runtime.backends.iree import Iree
from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.support.files import end_unused_mappings
from onnxfold.support.system import cpu_levels
from onnxfold.tools.report import bundle_contents

needs_iree = pytest.mark.skipif(bool(Iree().missing()), reason=str(Iree().missing()))


def test_json(run, swin):
    document = json.loads(run("inspect", swin, "--json").out)
    assert document["opsets"] == {"": 17}
    assert document["inputs"] == [{"name": "pixel_values", "type": "float32[1,3,64,64]"}]
    assert document["nodes"]["LayerNormalization"] == 11
    assert document["stored_bytes"] == swin.stat().st_size
    assert document["largest"][0]["bytes"] == 192 * 48 * 4


def test_table(done, swin):
    result = done("inspect", swin)
    assert "pixel_values" in result.out
    assert "float32[192,48]" in result.out


def test_stored_bytes_include_external_data(run, swin, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(swin), path, save_as_external_data=True, location="w", size_threshold=4096)
    stored = json.loads(run("inspect", path, "--json").out)["stored_bytes"]
    assert stored == path.stat().st_size + (tmp_path / "w").stat().st_size


def test_data_files_may_be_missing(run, swin, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(swin), path, save_as_external_data=True, location="w", size_threshold=4096)
    before = json.loads(run("inspect", path, "--json").out)
    end_unused_mappings()
    (tmp_path / "w").unlink()
    after = json.loads(run("inspect", path, "--json").out)
    assert "'w' cannot be opened" in after["unread"] and before["unread"] is None
    equal_keys = ("nodes", "inputs", "tensors", "tensor_bytes", "largest", "parameters")
    assert all(after[key] == before[key] for key in equal_keys)
    assert abs(after["stored_bytes"] - before["stored_bytes"]) < 1 << 16  # alignment
    assert "external data could not be read" in run("inspect", path).out
    assert run("inspect", path, "--tree").code == 0


MODULES = """
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


def with_scopes(tmp_path, scopes):
    """Save `MODULES` after ``scopes`` has added an exporter's names or metadata to each node."""
    model = with_weights(parse(MODULES), w=floats(64, 64))
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
def test_modules_of_exporters_are_recognized(run, tmp_path, scopes):
    document = json.loads(run("inspect", "--tree", with_scopes(tmp_path, scopes), "--json").out)
    modules = {m["path"]: m for m in document["modules"]}
    assert list(modules)[:5] == ["", "m", "m/layers.0", "m/layers.0/fc", "m/head"]
    nodes = {"": 8, "m": 6, "m/layers.0": 3, "m/layers.0/fc": 2, "m/head": 3}
    nodes |= {"m/head/yes": 1, "m/head/no": 1}
    assert {path: m["nodes"] for path, m in modules.items()} == nodes
    # Two modules read the weight w, so w belongs to their parent. No node reads the pair, so the
    # pair belongs to the root.
    nbytes = {path: m["bytes"] for path, m in modules.items() if m["bytes"]}
    assert nbytes == {"": 64 * 64 * 4 + 8, "m": 64 * 64 * 4}
    assert modules[""]["work"] == pytest.approx(1)
    # both modules have one product of the same size; their other nodes have little or no work
    assert modules["m/layers.0/fc"]["work"] == pytest.approx(modules["m/head"]["work"])
    assert 0 < modules["m"]["work"] < 1  # the If has the work of its branch


def test_module_totals_of_a_real_model(run, swin):
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


def test_depth_limits_the_tree(run, swin):
    rows = [len(run("inspect", "--tree", swin, "--depth", k).out.splitlines()) for k in range(5)]
    assert rows == sorted(rows) and rows[0] < rows[3]
    assert "--depth 3" in run("inspect", "--tree", swin, "--depth", 2).out
    assert len(run("inspect", "--tree", swin).out.splitlines()) <= 45


def test_invalid_scopes_are_ignored(run, tmp_path):
    texts = ["[", "[1, 2]", "(" * 9000, "x" * 20_000, "{}", "['a', 'b'", "", "['']"]

    def scopes(node):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=texts.pop())

    document = json.loads(run("inspect", "--tree", with_scopes(tmp_path, scopes), "--json").out)
    assert [m["path"] for m in document["modules"]] == [""]
    result = run("inspect", "--tree", tmp_path / "model.onnx")
    assert "the nodes have no module names" in result.out


FIRST = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 2] x, float[n, 2] gone) => (float[n, 2] y) <
    float[2] same = {1, 2}, float[2] changed = {1, 2}, float[3] old_name = {5, 6, 7},
    float[2] reshaped = {1, 2}, float[4] removed = {1, 2, 3, 4}
> {
    c = Constant <value = float[2] {8, 9}> ()
    a = Add (x, same)
    y = Mul (a, c)
}
"""
SECOND = """
<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[m, 2] x) => (float[n, 2] y, float[n, 2] a) <
    float[2] same = {1, 2}, float[2] changed = {1, 3}, float[3] new_name = {5, 6, 7},
    float[1, 2] reshaped = {1, 2}, float[5] added = {1, 2, 3, 4, 5}
> {
    c = Constant <value = float[2] {8, 9}> ()
    a = local.f (x, same)
    y = Add (a, c)
}
<domain: "local", opset_import: ["" : 21]>
f (p, q) => (r) { r = Add (p, q) }
"""


@pytest.fixture
def two(tmp_path):
    for name, text in (("a.onnx", FIRST), ("b.onnx", SECOND)):
        onnx.save(onnx.parser.parse_model(text), tmp_path / name)
    return tmp_path / "a.onnx", tmp_path / "b.onnx"


def test_differences_of_two_models(run, two):
    document = json.loads(run("inspect", *two, "--json").out)
    ops = {"Add": [1, 2], "Constant": [1, 1], "Mul": [1, 0], "local::f": [0, 1]}
    assert document["ops"] == ops
    changes = {c["name"]: (c["before"], c["after"]) for c in document["header"]}
    assert changes == {
        "IR version": ("8", "10"),
        "opset ai.onnx": ("17", "21"),
        "opset local": (None, "1"),
        "functions": (None, "1"),
    }
    assert [(c["name"], c["before"], c["after"]) for c in document["inputs"]] == [
        ("x", "float32[n,2]", "float32[m,2]"),
        ("gone", "float32[n,2]", None),
    ]
    assert [(c["name"], c["before"]) for c in document["outputs"]] == [("a", None)]
    kinds = {t["name"]: t["kind"] for t in document["tensors"]}
    assert kinds == {
        "changed": "changed",
        "reshaped": "changed",
        "old_name": "renamed",
        "removed": "removed",
        "added": "added",
    }
    assert document["tensors"][0]["name"] == "added"
    assert (document["same_tensors"], document["same_bytes"]) == (2, 16)
    renamed = next(t for t in document["tensors"] if t["kind"] == "renamed")
    assert renamed["after"]["name"] == "new_name"


def test_text_lists_changed_tensors(done, two):
    result = done("inspect", *two)
    assert "old_name -> new_name" in result.out
    assert "2 tensors are the same (16 bytes), 2 changed" in result.out


def test_model_equals_itself(run, swin):
    document = json.loads(run("inspect", swin, swin, "--json").out)
    assert document["tensors"] == document["header"] == document["inputs"] == []
    assert all(before == after for before, after in document["ops"].values())
    assert "change" in run("inspect", swin, swin).out


def test_changed_bit_of_a_weight_in_a_data_file(run, swin, tmp_path):
    model = onnx.load(swin)
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="a.data")
    largest = max(model.graph.initializer, key=lambda t: t.ByteSize())
    array = onnx.numpy_helper.to_array(largest).copy()
    array.reshape(-1).view(np.uint32)[-1] ^= 1
    largest.CopyFrom(onnx.numpy_helper.from_array(array, largest.name))
    onnx.save(model, tmp_path / "b.onnx")
    document = json.loads(run("inspect", tmp_path / "a.onnx", tmp_path / "b.onnx", "--json").out)
    assert [(t["name"], t["kind"]) for t in document["tensors"]] == [(largest.name, "changed")]


def test_inspect_matches_the_report_of_optimize(run, swin, tmp_path):
    report = onnxfold.optimize_file(swin, tmp_path / "out.onnx")
    document = json.loads(run("inspect", swin, tmp_path / "out.onnx", "--json").out)
    assert document["bytes_after"] == report.bytes_after
    after = {op: counts[1] for op, counts in document["ops"].items() if counts[1]}
    assert after == report.nodes_after
    assert document["inputs"] == document["outputs"] == []
    assert {t["kind"] for t in document["tensors"]} >= {"removed", "added"}
    assert "all ops" in run("inspect", swin, tmp_path / "out.onnx").out


FOLDED = """
g (float[batch, 64] x, float[batch, 64] r, float[64] s) => (float[batch, 64] y) {
    product = MatMul(r, w)
    scaled = Mul(product, s)
    y = Add(x, scaled)
}
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> None:
    """Use an empty cache, without kernels of other tests and of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def bundle(tmp_path, own_cache):
    """Write a bundle whose runtime constants are r and s, and return its folder."""

    def split(**arguments: object) -> Path:
        folder = tmp_path / "bundle"
        model = with_weights(parse(FOLDED), w=floats(64, 64))
        onnxfold.split(model, folder, runtime_constants=["r", "s"], fsync=False, **arguments)
        return folder

    return split


def test_bundle_without_kernels(done, bundle):
    folder = bundle(backend="onnxruntime")
    document = json.loads(done("inspect", folder, "--json").out)
    assert document["path"] == str(folder)
    assert document["runtime_constants"] == ["r", "s"] and document["cached"] == ["scaled"]
    assert document["kernels"] == []
    assert document["entry_bytes"] == (folder / "entry.onnx").stat().st_size
    assert document["here"] == [
        {
            "outputs": ["scaled"],
            "backend": "onnxruntime",
            "target_cpu": None,
            "reason": "it was not compiled",
        }
    ]
    assert "it was not compiled" in done("inspect", folder / "manifest.json").out


@needs_iree
@pytest.mark.skipif("x86-64-v2" not in cpu_levels(), reason="the CPU is no x86-64 with SSE 4")
def test_kernels_of_a_bundle_and_the_backend_in_use(done, bundle, monkeypatch):
    folder = bundle(backend="iree", target_cpu=["generic", "x86-64-v2"])
    sizes = {path.stat().st_size for path in (folder / "kernels").iterdir()}
    monkeypatch.setattr(Kernel, "is_slower", False)
    document = json.loads(done("inspect", folder, "--json").out)
    kernels = document["kernels"]
    assert [kernel["target_cpu"] for kernel in kernels] == ["x86-64", "x86-64-v2"]
    assert {kernel["bytes"] for kernel in kernels} == sizes
    assert all(kernel["seconds"] and kernel["onnxruntime_seconds"] for kernel in kernels)
    assert document["cpu"] == cpu_levels()[-1]
    (here,) = document["here"]
    assert (here["backend"], here["target_cpu"], here["reason"]) == ("iree", "x86-64-v2", None)

    table = done("inspect", folder).out
    assert "target CPU" in table and f"runs here ({cpu_levels()[-1]})" in table

    monkeypatch.setattr(Kernel, "is_slower", True)
    (here,) = json.loads(done("inspect", folder, "--json").out)["here"]
    assert (here["backend"], here["target_cpu"]) == ("onnxruntime", None)
    assert here["reason"] == "onnxruntime is faster than the kernel that iree compiled"


@needs_iree
@pytest.mark.skipif("x86-64-v2" not in cpu_levels(), reason="the CPU is no x86-64 with SSE 4")
def test_damaged_kernels_are_not_shown_as_running(done, bundle, monkeypatch):
    folder = bundle(backend="iree", target_cpu=["generic", "x86-64-v2"])
    monkeypatch.setattr(Kernel, "is_slower", False)
    generic, best = (folder / kernel.file for kernel in open_bundle(folder).manifest.kernels)
    best.write_bytes(b"damaged")
    (here,) = json.loads(done("inspect", folder, "--json").out)["here"]
    assert (here["backend"], here["target_cpu"]) == ("iree", "x86-64")
    generic.unlink()
    document = json.loads(done("inspect", folder, "--json").out)
    assert [kernel["bytes"] for kernel in document["kernels"]] == [None, len(b"damaged")]
    (here,) = document["here"]
    assert here["backend"] == "onnxruntime"
    assert "is not the file that was compiled" in here["reason"]
    assert "No such file" in here["reason"]
    assert "missing" in done("inspect", folder).out


@needs_iree
def test_component_that_is_not_compiled_has_a_reason(done, tmp_path, own_cache):
    model = parse(
        """g (int64 length, float[n] x) => (float[m] y) {
            zero = Constant<value = int64 {0}> ()
            one = Constant<value = int64 {1}> ()
            steps = Range(zero, length, one)
            floats = Cast<to = 1>(steps)
            y = Mul(x, floats)
        }"""
    )
    folder = tmp_path / "bundle"
    onnxfold.split(model, folder, runtime_constants=["length"], backend="iree", fsync=False)
    document = json.loads(done("inspect", folder, "--json").out)
    (kernel,) = document["kernels"]
    assert (kernel["bytes"], kernel["reason"]) == (None, "IREE miscompiles Range for some values")
    assert document["here"][0]["reason"] == "IREE miscompiles Range for some values"


@needs_iree
@pytest.mark.skipif("x86-64-v3" not in cpu_levels(), reason="the CPU has no AVX2")
def test_kernel_for_a_higher_cpu_level_has_a_reason(done, bundle, monkeypatch):
    folder = bundle(backend="iree", target_cpu="x86-64-v3")
    for module in (targets, bundle_contents):
        monkeypatch.setattr(module, "default_cpu", lambda: "x86-64-v2")
    monkeypatch.setattr(targets, "cpu_levels", lambda: ("x86-64", "x86-64-v2"))
    table = done("inspect", folder).out
    assert "runs here (x86-64-v2)" in table
    assert "its kernel needs x86-64-v3, and this CPU has x86-64-v2" in " ".join(table.split())


def test_a_damaged_bundle_is_an_error(run, bundle):
    folder = bundle(backend="onnxruntime")
    (folder / "manifest.json").write_text("{}")
    result = run("inspect", folder)
    assert result.code == 2
    assert "manifest.json: not the manifest of a bundle" in result.err
