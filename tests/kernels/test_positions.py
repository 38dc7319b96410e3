"""onnxruntime computes an element of these ops alike at all positions, or rules know of it.

Vector code computes most elements of a tensor, and scalar code the last ones. `make test-cpus` runs
this on CPUs with other vector instructions.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from kernel_rows import OPSET, assert_identical, onnxruntime_results
from kernel_values import FLOATS, NUMBERS, edges, moderate, random_bits, taken

from onnxfold.analysis.facts import ModelFacts
from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite.matched import Matched

UNARY = [*ops_with(Trait.EXACT), *ops_with(Trait.VECTORIZED)]
BINARY = ["Add", "Div", "Mul", "Sub"]
# Vectors have up to 16 elements of 32 bits, and loops process up to four of them at once.
LENGTHS = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, 1000)


def telling_values(dtype: np.dtype) -> np.ndarray:
    """Some values of a dtype, without NaN and each once."""
    rng = np.random.default_rng(0)
    parts = [edges(dtype), moderate(rng, dtype, (40,)), random_bits(rng, dtype, (40,))]
    found = np.concatenate(parts)
    if dtype in FLOATS:
        found = found[~np.isnan(found)]
    bits = np.unique(found.view(f"u{dtype.itemsize}"))
    return rng.permutation(bits).view(dtype)


def varies(op_type: str, dtype: np.dtype, attributes: dict[str, object]) -> bool:
    """Whether rules take a result for one that depends on the position."""
    node = onnx.helper.make_node(op_type, ["x"], ["y"], **attributes)
    kind = ir.DataType.from_numpy(dtype).value
    given = onnx.helper.make_tensor_value_info("x", kind, ["N"])
    result = onnx.ValueInfoProto(name="y")
    graph = onnx.helper.make_graph([node], "g", [given], [result])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    of_model = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    made = Matched(of_model.graph.outputs[0], ModelFacts(of_model))
    return made.is_position_dependent or made.is_rounded_by_position


def assert_alike(op_type: str, operands: list[np.ndarray], attributes: dict[str, object]) -> None:
    def run(*arrays: np.ndarray) -> np.ndarray | None:
        found = onnxruntime_results(op_type, arrays, attributes, OPSET, 1)
        return None if found is None else found[0]

    count = len(operands[0])
    each = [run(*(x[k : k + 1] for x in operands)) for k in range(count)]
    if each[0] is None:  # onnxruntime has no kernel
        return
    alone = np.concatenate(each)
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        for _ in range(3):
            chosen = rng.integers(0, count, length)
            together = run(*(x[chosen] for x in operands))
            what = f"{op_type} {operands[0].dtype} {attributes} of {length} elements"
            assert_identical(together, alone[chosen], what)


@pytest.mark.parametrize("op_type", [op_type for op_type in UNARY if op_type != "Cast"])
def test_unary(op_type):
    for dtype in taken(op_type, OPSET):
        if dtype in NUMBERS and not varies(op_type, dtype, {}):
            assert_alike(op_type, [telling_values(dtype)], {})


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_cast(source):
    for target in NUMBERS:
        attributes = {"to": ir.DataType.from_numpy(target).value}
        if source != target and not varies("Cast", source, attributes):
            assert_alike("Cast", [telling_values(source)], attributes)


@pytest.mark.parametrize("op_type", BINARY)
def test_binary(op_type):
    for dtype in taken(op_type, OPSET):
        if dtype in NUMBERS:
            x = telling_values(dtype)
            y = telling_values(dtype)[::-1].copy()
            if op_type == "Div" and dtype not in FLOATS:
                y = np.maximum(y, 1)  # no division traps
            assert_alike(op_type, [x, y], {})


@pytest.mark.parametrize("attributes", [{"alpha": 0.3, "beta": -0.1}, {"alpha": 0.3, "beta": 0.0}])
def test_hard_sigmoid(attributes):
    dtype = np.dtype(np.float32)
    if not varies("HardSigmoid", dtype, attributes):
        assert_alike("HardSigmoid", [telling_values(dtype)], attributes)
