"""The order of 64 bit integers, as onnxruntime finds it: wrongly in some vector registers."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from reference_session import reference_session

import onnxfold

NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 3 * 2**31, 2**62, 2**62 + 2**31]
NUMBERS = np.array(NUMBERS + [-n for n in NUMBERS] + [-(2**63), 2**63 - 1])


@pytest.mark.parametrize("op_type", ["Max", "Min", "Clip", "Relu", "Sign"])
@pytest.mark.parametrize("fold_all", [False, True])
def test_order(op_type, fold_all):
    rng = np.random.default_rng(0)
    output = helper.make_tensor_value_info("z", 7, None)
    for shapes in (((50,), (50,)), ((7, 1), (1, 9)), ((50,), ()), ((50,), (1,))):
        arrays = [rng.choice(NUMBERS, shape) for shape in shapes]
        names = ["x", "y"] if op_type in ("Max", "Min", "Clip") else ["x"]
        if op_type == "Clip":
            arrays[1] = arrays[1].reshape(-1)[:1].reshape(())
        weights = [
            numpy_helper.from_array(np.asarray(a), n) for n, a in zip(names, arrays, strict=False)
        ]
        graph = helper.make_graph(
            [helper.make_node(op_type, names, ["z"])], "g", [], [output], weights
        )
        imports = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8)
        (want,) = reference_session(model).run(None, {})
        folded = onnxfold.optimize(model, fold_all=fold_all)
        assert not (fold_all and folded.graph.node)
        (got,) = reference_session(folded).run(None, {})
        assert got.tobytes() == want.tobytes()
