"""Sums and products of sizes that runtimes do not compute exactly."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from reference_session import reference_session

from onnxfold import optimize


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd"])
@pytest.mark.parametrize("factors", [(2**62 - 1, -1), (2**53 + 1, 5), (2**40, 2**40), (7, -3)])
@pytest.mark.parametrize("level", [0, 1])
def test_a_reduction_is_what_onnxruntime_makes_of_it(op, factors, level):
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[2, 3] x) => (int64 y)
        {{ s = Shape (x) p = Mul (s, c) y = {op} <keepdims = 0> (p) }}"""
    )
    constant = ir.tensor(np.array(factors), name="c")
    model.graph.initializer.append(ir.serde.serialize_tensor(constant))
    feeds = {"x": np.zeros((2, 3), np.float32)}
    optimized = optimize(model, level=level)
    (want,), (got,) = (reference_session(m).run(None, feeds) for m in (model, optimized))
    assert want == got
