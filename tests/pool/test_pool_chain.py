"""A long chain over a large constant stores what a reduction needs as a whole, and its result."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation

SIDE = 4096
BUFFER = SIDE * SIDE * 4  # 64 MiB


def _chain(length: int) -> ir.Model:
    nodes = [
        onnx.helper.make_node(("Neg", "Abs")[k % 2], [f"v{k}"], [f"v{k + 1}"])
        for k in range(length)
    ]
    nodes.append(onnx.helper.make_node("ReduceMean", [f"v{length}"], ["mean"], keepdims=0))
    nodes.append(onnx.helper.make_node("Add", ["x", "mean"], ["y"]))
    weight = onnx.numpy_helper.from_array(np.full((SIDE, SIDE), -1.5, np.float32), "v0")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [2])], [info("y", 1, [2])], [weight])
    opsets = [onnx.helper.make_opsetid("", 18)]
    return ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets))


@pytest.mark.parametrize("fold_all", [False, True])
def test_forty_ops_on_64_mib(fold_all):
    model = _chain(40)
    propagation = ConstantPropagation(Options(fold_all=fold_all))
    propagation(model)
    statistics = propagation.outcome.statistics
    assert [node.op_type for node in model.graph] == ["Add"]
    mean = model.graph.initializers["mean"].const_value
    assert mean.numpy() == np.float32(1.5)
    assert statistics.peak_bytes <= BUFFER * 5 / 4
    assert statistics.materialized == 1
    assert propagation.outcome.folded == 41
