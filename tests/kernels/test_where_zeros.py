"""Signed zeros through Where, as onnxruntime selects them."""

import numpy as np
import onnx
import pytest
from onnx import helper

import onnxfold
from onnxfold.kernels.registry import find


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_zeros_of_both_branches(dtype):
    condition = np.array([True, False, True, False, True])
    x = np.array([-0.0, -0.0, 0.0, 1, -np.inf], dtype)
    y = np.array([-0.0, -0.0, 1, 0.0, np.nan], dtype)
    kernel = find("Where", 17)
    assert kernel is not None
    (folded,) = kernel([condition, x, y], {}, n_outputs=1, opset=17)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Where", ["c", "x", "y"], ["z"])],
        "g",
        [info("c", 9, [5]), info("x", kind, [5]), info("y", kind, [5])],
        [info("z", kind, [5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    constant = onnx.ModelProto()
    constant.CopyFrom(model)
    del constant.graph.input[:]
    for name, array in (("c", condition), ("x", x), ("y", y)):
        constant.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    stored = onnxfold.optimize(constant, fold_all=True).graph.initializer[0]
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, {"c": condition, "x": x, "y": y})
    for got in (folded, onnx.numpy_helper.to_array(stored)):
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(want))
