"""What is left of the shape arithmetic in ``shapes.txt``, with the same results at all sizes."""

import ast
from pathlib import Path

import pytest
from model_table import Way, cases, feeds
from symbolic_check import parse, rewrite


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("shapes.txt")))
def test_shapes(graph: str, way: Way) -> None:
    model = parse(graph, way.options("sizes", "n", "x").get("opset", 21))
    rewritten = rewrite(model)
    assert way.ops is None or rewritten.ops == way.ops
    for what, value in way.asserted:
        assert rewritten.constant(what.split()[1]) == ast.literal_eval(value)
    assert [o.name for o in rewritten.after.graph.output] == [o.name for o in model.graph.output]
    rewritten.check(*feeds(model, way))
