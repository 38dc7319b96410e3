"""Test constants whose values in onnxruntime depend on threads or on positions of elements.

The number of threads can change the order of a sum. The position of an element can change signs of
zeros in Where, and comparisons of int64.
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import graph, parse, with_weights
from reference_session import reference_options, reference_session

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
    weights = {f"w{k}": RNG.standard_normal(shape, np.float32) for k, shape in enumerate(shapes)}
    text = f"g (float[1,1] x) => (y) {{ c = {op_type}({', '.join(weights)}) y = Add(x, c) }}"
    return with_weights(parse(text, 17), **weights)


def run(proto: onnx.ModelProto, threads: int) -> bytes:
    options = reference_options()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": np.zeros((1, 1), np.float32)})[0].tobytes()


@pytest.mark.parametrize("name", CASES)
def test_results_that_depend_on_the_threads_are_not_folded(name):
    proto = model(*CASES[name])
    is_stable = run(proto, 1) == run(proto, 3)
    folded = onnxfold.optimize(proto)
    assert len(folded.graph.node) == (1 if is_stable else 2)
    for threads in (1, 2, 3):
        assert run(folded, threads) == run(proto, threads)


def test_report_has_the_reason_and_level_2_folds(tmp_path):
    proto = model(*CASES["a matrix times a column"])
    onnx.save(proto, tmp_path / "in.onnx")
    report = onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    if run(proto, 1) == run(proto, 3):  # on some CPUs, the result does not depend on the threads
        assert not report.kept
    else:
        (kept,) = report.kept
        assert (kept.op_type, "number of its threads" in kept.reason) == ("MatMul", True)
    report = onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", level=2)
    assert not report.kept
    assert dict(report.nodes_after) == {"Add": 1}


def test_other_nodes_of_the_model_are_folded():
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


ZEROS = [
    ((5,), (5,), (5,)),
    ((), (5,), ()),
    ((), (5,), (5,)),
    ((1,), (1,), (5,)),
    ((4, 1), (4, 5), (4, 1)),
    ((4, 1), (4, 1), (4, 5)),
    ((4, 5), (), ()),
]
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 3 * 2**31, 2**62, 2**62 + 2**31]
NUMBERS = np.array(NUMBERS + [-n for n in NUMBERS] + [-(2**63), 2**63 - 1])


def assert_same_bits(op_type: str, arrays: list[np.ndarray], *, fold_all: bool = True) -> None:
    weights = {f"w{k}": array for k, array in enumerate(arrays)}
    model = graph("", f"z = {op_type}({', '.join(weights)})", opset=18, **weights)
    (want,) = reference_session(model).run(None, {})
    folded = onnxfold.optimize(model, fold_all=fold_all)
    assert isinstance(folded, onnx.ModelProto) and not (fold_all and folded.graph.node)
    (got,) = reference_session(folded).run(None, {})
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shapes", ZEROS)
def test_signed_zeros_through_where(dtype, shapes):
    """onnxruntime's Where changes some elements from -0.0 to 0.0.

    The changed elements depend on the axes along which the operands are broadcast.
    """
    rng = np.random.default_rng(0)
    for _ in range(8):
        arrays = [rng.choice(np.array([-0.0, 0.0, -0.0, 1, np.nan], dtype), s) for s in shapes]
        assert_same_bits("Where", [rng.random(shapes[0]) < 0.5, *arrays[1:]])


@pytest.mark.parametrize("op_type", ["Max", "Min", "Clip", "Relu", "Sign"])
@pytest.mark.parametrize("fold_all", [False, True])
def test_order_of_int64(op_type, fold_all):
    """onnxruntime's SIMD code compares the lower halves of int64 as signed numbers.

    So the result for an element can depend on the position of the element.
    """
    rng = np.random.default_rng(0)
    for shapes in (((50,), (50,)), ((7, 1), (1, 9)), ((50,), ()), ((50,), (1,))):
        x, y = (np.asarray(rng.choice(NUMBERS, shape)) for shape in shapes)
        operands = {"Max": [x, y], "Min": [x, y], "Clip": [x, y.reshape(-1)[0]]}.get(op_type, [x])
        assert_same_bits(op_type, operands, fold_all=fold_all)
