"""Signed zeros through Where, as onnxruntime selects them: by value, axis by axis."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from reference_session import reference_session

import onnxfold

SHAPES = [
    ((5,), (5,), (5,)),
    ((), (5,), ()),
    ((), (5,), (5,)),
    ((1,), (1,), (5,)),
    ((4, 1), (4, 5), (4, 1)),
    ((4, 1), (4, 1), (4, 5)),
    ((4, 5), (), ()),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shapes", SHAPES)
def test_zeros_of_both_branches(dtype, shapes):
    rng = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    output = helper.make_tensor_value_info("z", kind, None)
    for _ in range(8):
        arrays = [rng.choice(np.array([-0.0, 0.0, -0.0, 1, np.nan], dtype), s) for s in shapes]
        arrays[0] = rng.random(shapes[0]) < 0.5
        weights = [
            numpy_helper.from_array(np.asarray(a), n) for n, a in zip("cxy", arrays, strict=True)
        ]
        graph = helper.make_graph(
            [helper.make_node("Where", list("cxy"), ["z"])], "g", [], [output], weights
        )
        imports = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        (want,) = reference_session(model).run(None, {})
        folded = onnxfold.optimize(model, fold_all=True)
        assert not [n for n in folded.graph.node if n.op_type == "Where"]
        (got,) = reference_session(folded).run(None, {})
        assert got.tobytes() == want.tobytes()
