"""What onnxruntime computes differently with more threads: no value is the right one."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import onnxfold

RNG = np.random.default_rng(0)
CASES = {
    "a matrix times a column": ("MatMul", [(225, 512), (512, 1)]),
    "a matrix times a matrix": ("MatMul", [(64, 96), (96, 32)]),
    "softplus": ("Softplus", [(517, 811)]),
    "exp": ("Exp", [(517, 811)]),
    "a sum over rows": ("ReduceSum", [(300, 700)]),
}


def model(op_type: str, shapes: list[tuple[int, ...]]) -> onnx.ModelProto:
    """y = x + op(weights)"""
    names = [f"w{k}" for k in range(len(shapes))]
    nodes = [
        helper.make_node(op_type, names, ["c"]),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 1])],
        [helper.make_tensor_value_info("y", 1, None)],
        [
            numpy_helper.from_array(RNG.standard_normal(shape, np.float32), name)
            for name, shape in zip(names, shapes, strict=True)
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(proto: onnx.ModelProto, threads: int) -> bytes:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": np.zeros((1, 1), np.float32)})[0].tobytes()


@pytest.mark.parametrize("name", CASES)
def test_a_result_that_depends_on_the_threads_stays(name):
    proto = model(*CASES[name])
    settled = run(proto, 1) == run(proto, 3)
    folded = onnxfold.optimize(proto)
    assert len(folded.graph.node) == (1 if settled else 2)
    for threads in (1, 2, 3):
        assert run(folded, threads) == run(proto, threads)


def test_the_reason_is_recorded_and_level_2_folds(tmp_path):
    proto = model(*CASES["a matrix times a column"])
    onnx.save(proto, tmp_path / "in.onnx")
    report = onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    if run(proto, 1) == run(proto, 3):  # what it depends on is the processor, too
        assert not report.kept
    else:
        (kept,) = report.kept
        assert (kept.op_type, "how many threads" in kept.reason) == ("MatMul", True)
    report = onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", level=2)
    assert not report.kept
    assert dict(report.nodes_after) == {"Add": 1}


def test_the_others_in_the_same_session_fold():
    proto = model(*CASES["a matrix times a column"])
    proto.graph.initializer.append(numpy_helper.from_array(np.full((225, 1), 2, np.float32), "v"))
    proto.graph.node.insert(1, helper.make_node("Exp", ["v"], ["e"]))
    proto.graph.node.insert(2, helper.make_node("Tanh", ["e"], ["t"]))
    proto.graph.node.append(helper.make_node("Add", ["y", "t"], ["z"]))
    proto.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    folded = onnxfold.optimize(proto)
    assert {node.op_type for node in folded.graph.node} <= {"MatMul", "Add"}
