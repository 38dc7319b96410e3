"""What passes other than folding leave of the models in ``cleanups.txt``."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, count_ops, interface
from model_table import Way, cases, feeds, parse

import onnxfold


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("cleanups.txt")))
def test_cleanups(graph: str, way: Way) -> None:
    options = way.options("x")
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
