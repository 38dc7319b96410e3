"""Test the counts of multiply-accumulates, operations, parameters and uncounted nodes.

The expected counts are computed by hand from the definitions in `onnxfold.analysis.costs`.
"""

import numpy as np
import onnx
import pytest
from model_table import parse, saved

from onnxfold import UsageError
from onnxfold.tools.report.module_tree import take_modules

CASES = {
    "y = MatMul (a, b)": ("float[2,3,4] a, float[4,5] b", 2 * 3 * 5 * 4),
    "y = Gemm <transA = 1> (a, b, c)": ("float[4,3] a, float[4,5] b, float[5] c", 3 * 5 * 4),
    "y = Conv <group = 2> (a, b)": ("float[1,4,8,8] a, float[6,2,3,3] b", 6 * 6 * 6 * 18),
    "y = ConvTranspose <strides = [2, 2]> (a, b)": (
        "float[1,4,8,8] a, float[4,3,2,2] b",
        4 * 8 * 8 * 3 * 2 * 2,
    ),
    "y = LSTM <hidden_size = 6> (a, b, c)": (
        "float[7,2,3] a, float[1,24,3] b, float[1,24,6] c",
        7 * 2 * (4 * 6 * 3 + 4 * 6 * 6),
    ),
    "y = GRU <hidden_size = 6> (a, b, c)": (
        "float[7,2,3] a, float[1,18,3] b, float[1,18,6] c",
        7 * 2 * (3 * 6 * 3 + 3 * 6 * 6),
    ),
    'y = Einsum <equation = "bij,bjk->bik"> (a, b)': (
        "float[2,3,4] a, float[2,4,5] b",
        2 * 3 * 4 * 5,
    ),
    "y = Attention (a, b, c)": (
        "float[1,2,5,8] a, float[1,2,7,8] b, float[1,2,7,8] c",
        2 * (2 * 5 * 7 * 8),
    ),
    "y = Add (a, b)": ("float[2,1] a, float[3] b", 0, 6),
    "y = Exp (a)": ("float[2,3] a", 0, 6),
    "y = ReduceSum (a)": ("float[2,3] a", 0, 6),
    "y = MaxPool <kernel_shape = [2, 2]> (a)": ("float[1,1,4,4] a", 0, 9 * 4),
    "y = GlobalAveragePool (a)": ("float[1,1,4,4] a", 0, 16),
    "y = Transpose (a)": ("float[2,3] a", 0, 0),
    "y = Cast <to = 10> (a)": ("float[2,3] a", 0, 0),
}


def totals(tmp_path, body, inputs, outputs="float y", **dims):
    path = tmp_path / "model.onnx"
    model = parse(f"g ({inputs}) => ({outputs}) {{ {body} }}", 23)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    return take_modules(path, dims).modules[0]


@pytest.mark.parametrize("body", CASES)
def test_operations_of_a_node(body, tmp_path):
    inputs, macs, *flops = CASES[body]
    found = totals(tmp_path, body, inputs)
    assert (found.macs, [found.flops], found.uncounted) == (macs, flops or [2 * macs], 0)


def test_dynamic_sizes(tmp_path):
    body = "y = MatMul (a, b)"
    inputs = "float[batch, 4] a, float[4, 5] b"
    assert totals(tmp_path, body, inputs).macs == 64 * 20
    assert totals(tmp_path, body, inputs, batch=3).macs == 3 * 20
    with pytest.raises(UsageError, match="no input has a dimension 'bacth'; did you mean 'batch'"):
        totals(tmp_path, body, inputs, bacth=3)


@pytest.mark.parametrize(
    "body",
    ["k = NonZero (a)  f = Cast <to = 1> (k)  z = Exp (f)  y = Identity (z)", "y = custom.Op (a)"],
)
def test_nodes_with_unknown_operations_are_counted(body, tmp_path):
    found = totals(
        tmp_path, f"{body} m = MatMul (a, b)", "float[2,2] a, float[2,2] b", "float y, float m"
    )
    assert (found.macs, found.uncounted) == (8, 1)


def test_constant_nodes_cost_nothing_and_an_if_counts_one_branch(tmp_path):
    found = totals(
        tmp_path,
        """w = Constant <value = float[2,2] {1, 2, 3, 4}> ()
        v = MatMul (w, w)
        y = If (c) <
            then_branch = t () => (float[2,2] p) { p = MatMul (a, v) },
            else_branch = e () => (float[2,2] q) { r = MatMul (a, v)  q = MatMul (r, v) }
        >""",
        "float[2,2] a, bool c",
    )
    assert (found.macs, found.uncounted) == (2 * 8, 0)
    assert found.parameters == 4


def test_parameters_are_weights_of_all_types(tmp_path):
    weights = {
        "f": np.ones((3, 4), np.float16),
        "q": np.ones(5, np.int8),
        "shape": np.ones(2, np.int64),
        "mask": np.ones(7, np.bool_),
    }
    text = "g (float[2] x) => (float[2] y) { y = Neg (x) }"
    path = saved(text, tmp_path / "model.onnx", 23, **weights)
    assert take_modules(path).modules[0].parameters == 3 * 4 + 5
