"""A long chain over a large constant needs memory for a few of its values, and stores one."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.options import FoldOptions
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
    propagation = ConstantPropagation(FoldOptions(fold_all=fold_all))
    propagation(model)
    statistics = propagation.outcome.statistics
    assert [node.op_type for node in model.graph] == ["Add"]
    mean = model.graph.initializers["mean"].const_value
    assert mean.numpy() == np.float32(1.5)
    assert statistics.peak_bytes <= 3 * BUFFER
    assert statistics.materialized == 1
    assert statistics.intermediates_materialized == 0
    assert propagation.outcome.folded == 41


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_holds_what_the_pool_says(tmp_path):
    """What the pool counts as freed is freed: resident memory grows by three values at most."""
    path = tmp_path / "chain.onnx"
    onnx.save(ir.to_proto(_chain(40)), path)
    code = (
        "import sys, onnxfold; from onnxfold.report.memory import peak_rss_bytes as peak;"
        "import onnxruntime, onnxfold.passes.pipeline, onnxfold.kernels, onnxfold.api;"
        "before = peak(); onnxfold.optimize_file(sys.argv[1], sys.argv[1], level=0, fsync=False);"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 3.5 * BUFFER
