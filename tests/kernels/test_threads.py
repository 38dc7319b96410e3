"""What onnxruntime computes differently with more threads: no value is the right one."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import parse, with_weights

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
    weights = {f"w{k}": RNG.standard_normal(shape, np.float32) for k, shape in enumerate(shapes)}
    text = f"g (float[1,1] x) => (y) {{ c = {op_type}({', '.join(weights)}) y = Add(x, c) }}"
    return with_weights(parse(text, 17), **weights)


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


def test_the_others_of_the_model_fold():
    proto = parse(
        """g (float[1,1] x) => (y, z)
        { c = MatMul(w0, w1) e = Exp(v) t = Tanh(e) y = Add(x, c) z = Add(y, t) }""",
        17,
    )
    weights = (RNG.standard_normal(shape, np.float32) for shape in ((225, 512), (512, 1)))
    proto = with_weights(
        proto, **dict(zip(("w0", "w1"), weights, strict=True)), v=np.full((225, 1), 2, np.float32)
    )
    folded = onnxfold.optimize(proto)
    assert {node.op_type for node in folded.graph.node} <= {"MatMul", "Add"}
