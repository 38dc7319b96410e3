"""Nodes that no runtime computes, in ``nonsense.txt``: they stay, or the model is refused."""

from pathlib import Path

import onnx
import pytest

import onnxfold

LINES = Path(__file__).with_name("nonsense.txt").read_text().splitlines()
REFUSED = ("y = Constant()", "y = If(c)", "y = Loop()", "y = Scan(x)")
OPERANDS = {"float[2] v": "{1, 2}", "float[1, 2] m": "{1, 2}"}
OTHERS = """float[1, 1, 2, 2] q = {1, 2, 3, 4}, int64[1] i = {0}, int64 z = {0}, int64 one = {1},
    int64[1] large = {4611686018427387904}, int64 most = {9223372036854775807},
    int64[1] negative = {-5}, int64[1] huge = {9223372036854775807}"""


@pytest.mark.parametrize("nodes", [line for line in LINES if line and line[0] != "#"])
@pytest.mark.parametrize("constant", [True, False])
def test_what_nobody_computes_stays(nodes: str, constant: bool) -> None:
    inputs, values = ["float[2, N] x", "bool c"], [OTHERS]
    for operand, elements in OPERANDS.items():
        (values if constant else inputs).append(f"{operand} = {elements}" if constant else operand)
    for opset in (11, 13, 21):
        model = onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : {opset}]>
            g ({", ".join(inputs)}) => (float[k] y) <{", ".join(values)}> {{ {nodes} }}"""
        )
        if nodes in REFUSED:
            with pytest.raises(onnxfold.ModelError):
                onnxfold.optimize(model, level=2)
            continue
        after = onnxfold.optimize(model, level=2)
        assert after.graph.node[-1].op_type in nodes, opset
