"""Test that onnxruntime's result for an element does not depend on the position of the element.

Vector code computes most elements of a tensor, and scalar code computes the last ones. The tests
skip ops and dtypes that rules treat as position-dependent. `make test-cpus` runs these tests on
CPUs with other vector instructions.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from kernel_rows import OPSET, assert_identical, onnxruntime_results
from kernel_values import FLOATS, NUMBERS, edges, moderate, random_bits, supported_dtypes

from onnxfold.analysis.facts import ModelFacts
from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite.matched import Matched

UNARY = [*ops_with(Trait.EXACT), *ops_with(Trait.VECTORIZED)]
BINARY = ["Add", "Div", "Mul", "Sub"]
# Vectors have up to 16 elements of 32 bits. Loops process up to four vectors at once.
LENGTHS = (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65, 1000)


def sample_values(dtype: np.dtype) -> np.ndarray:
    """Return distinct values of a dtype, except NaN, in random order."""
    rng = np.random.default_rng(0)
    parts = [edges(dtype), moderate(rng, dtype, (40,)), random_bits(rng, dtype, (40,))]
    found = np.concatenate(parts)
    if dtype in FLOATS:
        found = found[~np.isnan(found)]
    bits = np.unique(found.view(f"u{dtype.itemsize}"))
    return rng.permutation(bits).view(dtype)


def is_position_dependent(op_type: str, dtype: np.dtype, attributes: dict[str, object]) -> bool:
    """Return whether rules treat the result of an op with one operand as position-dependent."""
    node = onnx.helper.make_node(op_type, ["x"], ["y"], **attributes)
    kind = ir.DataType.from_numpy(dtype).value
    x_info = onnx.helper.make_tensor_value_info("x", kind, ["N"])
    result = onnx.ValueInfoProto(name="y")
    graph = onnx.helper.make_graph([node], "g", [x_info], [result])
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    of_model = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    matched = Matched(of_model.graph.outputs[0], ModelFacts(of_model))
    return matched.is_position_dependent or matched.is_rounded_by_position


def assert_position_independent(
    op_type: str, operands: list[np.ndarray], attributes: dict[str, object]
) -> None:
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
    for dtype in supported_dtypes(op_type, OPSET):
        if dtype in NUMBERS and not is_position_dependent(op_type, dtype, {}):
            assert_position_independent(op_type, [sample_values(dtype)], {})


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_cast(source):
    for target in NUMBERS:
        attributes = {"to": ir.DataType.from_numpy(target).value}
        if source != target and not is_position_dependent("Cast", source, attributes):
            assert_position_independent("Cast", [sample_values(source)], attributes)


@pytest.mark.parametrize("op_type", BINARY)
def test_binary(op_type):
    for dtype in supported_dtypes(op_type, OPSET):
        if dtype in NUMBERS:
            x = sample_values(dtype)
            y = sample_values(dtype)[::-1].copy()
            if op_type == "Div" and dtype not in FLOATS:
                y = np.maximum(y, 1)  # divisions by 0 and some divisions by -1 trap
            assert_position_independent(op_type, [x, y], {})


@pytest.mark.parametrize("attributes", [{"alpha": 0.3, "beta": -0.1}, {"alpha": 0.3, "beta": 0.0}])
def test_hard_sigmoid(attributes):
    dtype = np.dtype(np.float32)
    if not is_position_dependent("HardSigmoid", dtype, attributes):
        assert_position_independent("HardSigmoid", [sample_values(dtype)], attributes)
