"""Slices of slices at every bound, with steps forwards, on axes of known and unknown size."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from reference_session import reference_session

from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite.rule import builtin_rule_sets

ENDS = (-9, -2, 0, 3)


@pytest.mark.parametrize(
    "size, steps",
    [
        *((7, steps) for steps in ((1, 1), (2, 3))),
        *(("N", steps) for steps in ((1, 1), (2, 3))),
    ],
)
def test_slices_of_slices(size, steps):
    nodes, outputs = [], []
    for first in itertools.product(ENDS, repeat=2):
        name = f"t{len(nodes)}"
        bounds = [f"c{n}" for n in first]
        nodes.append(helper.make_node("Slice", ["x", *bounds, "", f"c{steps[0]}"], [name]))
        for second in itertools.product((-2, 0, 9), repeat=2):
            outputs.append(f"y{len(nodes)}")
            bounds = [f"c{n}" for n in second]
            last = [name, *bounds, "", f"c{steps[1]}"]
            nodes.append(helper.make_node("Slice", last, outputs[-1:]))
    constants = [
        onnx.numpy_helper.from_array(np.array([n]), f"c{n}") for n in {*ENDS, *range(-2, 4), 9}
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None]) for name in outputs],
        constants,
    )
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    rewritten = ir.from_proto(made)
    simplify = Simplify([found for found in builtin_rule_sets() if found.name == "slices"])
    simplify(rewritten)
    assert simplify.report.counts["slice_of_slice"] >= (len(outputs) if size == 7 else 1)
    before, after = (reference_session(m) for m in (made, ir.to_proto(rewritten)))
    feeds = {"x": np.arange(7, dtype=np.float32)}
    for want, found in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, want)
