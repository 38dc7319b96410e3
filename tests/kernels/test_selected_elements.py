"""Which of two elements a folded op selects, as onnxruntime does: bits of zeros and of int64."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from reference_session import reference_session

import onnxfold

ZEROS = [
    *[((5,), (5,), (5,)), ((), (5,), ()), ((), (5,), (5,)), ((1,), (1,), (5,))],
    *[((4, 1), (4, 5), (4, 1)), ((4, 1), (4, 1), (4, 5)), ((4, 5), (), ())],
]
NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 3 * 2**31, 2**62, 2**62 + 2**31]
NUMBERS = np.array(NUMBERS + [-n for n in NUMBERS] + [-(2**63), 2**63 - 1])


def assert_same_bits(op_type: str, arrays: list[np.ndarray], *, fold_all: bool = True) -> None:
    names = [f"w{k}" for k in range(len(arrays))]
    weights = [
        numpy_helper.from_array(np.asarray(a), n) for n, a in zip(names, arrays, strict=True)
    ]
    output = helper.make_tensor_value_info("z", weights[-1].data_type, None)
    graph = helper.make_graph([helper.make_node(op_type, names, ["z"])], "g", [], [output], weights)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (want,) = reference_session(model).run(None, {})
    folded = onnxfold.optimize(model, fold_all=fold_all)
    assert isinstance(folded, onnx.ModelProto) and not (fold_all and folded.graph.node)
    (got,) = reference_session(folded).run(None, {})
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shapes", ZEROS)
def test_signed_zeros_through_where(dtype, shapes):
    """onnxruntime selects by value, axis by axis."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        arrays = [rng.choice(np.array([-0.0, 0.0, -0.0, 1, np.nan], dtype), s) for s in shapes]
        assert_same_bits("Where", [rng.random(shapes[0]) < 0.5, *arrays[1:]])


@pytest.mark.parametrize("op_type", ["Max", "Min", "Clip", "Relu", "Sign"])
@pytest.mark.parametrize("fold_all", [False, True])
def test_order_of_int64(op_type, fold_all):
    """In some vector registers onnxruntime does not find the greater number."""
    rng = np.random.default_rng(0)
    for shapes in (((50,), (50,)), ((7, 1), (1, 9)), ((50,), ()), ((50,), (1,))):
        x, y = (np.asarray(rng.choice(NUMBERS, shape)) for shape in shapes)
        operands = {"Max": [x, y], "Min": [x, y], "Clip": [x, y.reshape(-1)[0]]}.get(op_type, [x])
        assert_same_bits(op_type, operands, fold_all=fold_all)
