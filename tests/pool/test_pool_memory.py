"""Resident memory of whole processes: what the pool says, whatever the model weighs."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20
RUN = """
import json, sys, onnxfold
from onnxfold.memory import peak_rss_bytes as peak
import onnxruntime, onnxfold.passes.pipeline, onnxfold.kernels, onnxfold.api
before = peak()
options = json.loads(sys.argv[3])
report = onnxfold.optimize_file(sys.argv[1], sys.argv[2], level=0, fsync=False, **options)
print(json.dumps({"growth": peak() - before, "pool": report.to_dict()["pool"]}))
"""


def grown(source, target, **options) -> tuple[int, dict]:
    """Bytes by which a process grows while it optimizes, and what its pool counted."""
    command = [sys.executable, "-c", RUN, str(source), str(target), json.dumps(options)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    record = json.loads(done.stdout)
    return record["growth"], record["pool"]


def saved(path, nodes, weights: dict[str, np.ndarray], outputs) -> None:
    """A model with external data; an input x keeps a node in it."""
    tensors = []
    with open(f"{path}.data", "wb") as data:
        for name, array in weights.items():
            tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            place = {"location": f"{path.name}.data", "offset": data.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            array.tofile(data)
            tensors.append(tensor)
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def info(name: str, dtype: int = TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def tensors(path) -> dict[str, np.ndarray]:
    model = onnx.load(path)
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize(
    ("op_types", "held", "sessions"), [(("Neg", "Abs"), 1, 0), (("Tanh", "Exp", "Neg"), 2, 3)]
)
def test_forty_ops_and_a_mean(tmp_path, op_types, held, sessions):
    """64 MiB go through: a reduction and onnxruntime's functions get all of them at once."""
    ops = [op_types[k % len(op_types)] for k in range(40)]
    nodes = [helper.make_node(op, [f"v{k}"], [f"v{k + 1}"]) for k, op in enumerate(ops)]
    nodes.append(helper.make_node("ReduceMean", ["v40"], ["mean"], keepdims=0))
    weight = np.random.default_rng(0).standard_normal((4096, 4096), np.float32)
    saved(tmp_path / "in.onnx", nodes, {"v0": weight}, [info("mean", shape=[])])
    growth, pool = grown(tmp_path / "in.onnx", tmp_path / "out.onnx", fold_all=True)
    assert pool["peak_bytes"] < held * 64 * MIB + 16 * MIB
    assert growth < pool["peak_bytes"] + sessions * 64 * MIB + 48 * MIB


def test_a_fold_larger_than_the_limit(tmp_path):
    """256 MiB of float32, Cast and transposed, within 32 MiB: straight into the file."""
    nodes = [
        helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT16),
        helper.make_node("Transpose", ["c"], ["y"], perm=[1, 0]),
    ]
    weight = np.random.default_rng(0).standard_normal((16384, 4096), np.float32)
    out = [info("y", TensorProto.FLOAT16, [4096, 16384])]
    saved(tmp_path / "in.onnx", nodes, {"w": weight}, out)
    growth, pool = grown(tmp_path / "in.onnx", tmp_path / "out.onnx", memory_limit=32 * MIB)
    assert growth < 112 * MIB  # two slabs of the result, and what is read for them
    assert pool["peak_bytes"] <= 96 * MIB
    assert pool["spilled_bytes"] == 0
    folded = tensors(tmp_path / "out.onnx")["y"]
    np.testing.assert_array_equal(folded[:, ::97], weight.T.astype(np.float16)[:, ::97])


def test_results_that_are_needed_twice_go_to_the_disk(tmp_path):
    """Eight casts of 64 MiB with two users each, within 48 MiB."""
    nodes, weights, outputs = [], {}, []
    for k in range(4):
        weights[f"w{k}"] = np.random.default_rng(k).standard_normal((4096, 2048), np.float32)
        nodes += [
            helper.make_node("Floor", [f"w{k}"], [f"c{k}"]),
            helper.make_node("Transpose", [f"c{k}"], [f"a{k}"], perm=[1, 0]),
            helper.make_node("Neg", [f"c{k}"], [f"b{k}"]),
        ]
        outputs += [info(f"a{k}", shape=[2048, 4096]), info(f"b{k}", shape=[4096, 2048])]
    saved(tmp_path / "in.onnx", nodes, weights, outputs)
    growth, pool = grown(
        tmp_path / "in.onnx", tmp_path / "out.onnx", memory_limit=48 * MIB, fold_all=True
    )
    assert growth < 160 * MIB
    assert pool["spilled_bytes"] == 4 * 32 * MIB
    assert pool["peak_bytes"] <= 96 * MIB
    folded = tensors(tmp_path / "out.onnx")
    for k in range(4):
        floor = np.floor(weights[f"w{k}"])
        np.testing.assert_array_equal(folded[f"a{k}"], floor.T)
        np.testing.assert_array_equal(folded[f"b{k}"], -floor)


@pytest.mark.parametrize("limit", [None, 16 * MIB])
def test_what_only_shape_matters_of_takes_no_memory(tmp_path, limit):
    """Slice of a GiB of one number, and the shape of a TiB."""
    nodes = [
        helper.make_node("Expand", ["one", "square"], ["t"]),
        helper.make_node("Slice", ["t", "from", "to", "axes"], ["part"]),
        helper.make_node("ConstantOfShape", ["huge"], ["z"]),
        helper.make_node("Shape", ["z"], ["shape"]),
    ]
    weights = {
        "one": np.full((), 2.5, np.float32),
        "square": np.int64([16384, 16384]),
        "from": np.int64([0, 0]),
        "to": np.int64([2, 2]),
        "axes": np.int64([0, 1]),
        "huge": np.int64([1 << 20, 1 << 20]),
    }
    outputs = [info("part", shape=[2, 2]), info("shape", TensorProto.INT64, [2])]
    saved(tmp_path / "in.onnx", nodes, weights, outputs)
    growth, pool = grown(tmp_path / "in.onnx", tmp_path / "out.onnx", memory_limit=limit)
    assert growth < 12 * MIB
    assert pool["peak_bytes"] < 4096
    folded = tensors(tmp_path / "out.onnx")
    np.testing.assert_array_equal(folded["part"], np.full((2, 2), 2.5, np.float32))
    np.testing.assert_array_equal(folded["shape"], [1 << 20, 1 << 20])
