"""Test the optimized models of ``folds.txt`` and ``cleanups.txt``.

A further test checks that the invalid nodes in ``nonsense.txt`` are kept or raise `ModelError`.
"""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, count_ops, fold, interface
from model_table import Way, cases, feeds, parse

import onnxfold


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("folds.txt")))
def test_folds(graph: str, way: Way) -> None:
    model = parse(graph)
    inputs = [i.name for i in model.graph.input]
    folded = fold(model, is_valid="not valid" not in way.words, **way.options("sizes", *inputs))
    assert folded.ops == way.ops, folded.reasons
    for what, text in way.asserted:
        if what == "weights":
            assert sorted(folded.weights) == sorted(text.split())
        else:
            assert text in folded.reasons[what.removeprefix("stays ")]
    for feed in feeds(model, way) if "not run" not in way.words else ():
        assert_same(model, folded.proto, feed)
    if not {"max_growth", "fold_all"} & way.values.keys():
        assert folded.proto.ByteSize() <= model.ByteSize() + 64


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("cleanups.txt")))
def test_cleanups(graph: str, way: Way) -> None:
    options = way.options("x", "sizes")
    model = parse(graph)
    result = onnxfold.optimize(model, **options)
    onnx.checker.check_model(result)
    assert interface(result) == interface(model)
    assert count_ops(ir.from_proto(result)) == way.ops
    for _, names in way.asserted:
        assert [t.name for t in result.graph.initializer] == names.split()
    for feed in feeds(model, way) if "not run" not in way.words else ():
        assert_same(model, result, feed)
    assert onnxfold.optimize(result, **options) == result


LINES = Path(__file__).with_name("nonsense.txt").read_text().splitlines()
REFUSED = ("y = Constant()", "y = If(c)", "y = Loop()", "y = Scan(x)")
OPERANDS = {"float[2] v": "{1, 2}", "float[1, 2] m": "{1, 2}"}
OTHERS = """float[1, 1, 2, 2] q = {1, 2, 3, 4}, int64[1] i = {0}, int64 z = {0}, int64 one = {1},
    int64[1] large = {4611686018427387904}, int64 most = {9223372036854775807},
    int64[1] negative = {-5}, int64[1] huge = {9223372036854775807}"""


@pytest.mark.parametrize("nodes", [line for line in LINES if line and line[0] != "#"])
@pytest.mark.parametrize("constant", [True, False])
def test_invalid_nodes_are_kept(nodes: str, constant: bool) -> None:
    inputs = ["float[2, N] x", "bool c"]
    values = [OTHERS]
    for operand, elements in OPERANDS.items():
        (values if constant else inputs).append(f"{operand} = {elements}" if constant else operand)
    for opset in (11, 13, 21):
        text = f"g ({', '.join(inputs)}) => (float[k] y) <{', '.join(values)}> {{ {nodes} }}"
        model = parse(text, opset)
        if nodes in REFUSED:
            with pytest.raises(onnxfold.ModelError):
                onnxfold.optimize(model, level=2)
            continue
        after = onnxfold.optimize(model, level=2)
        assert after.graph.node[-1].op_type in nodes, opset
