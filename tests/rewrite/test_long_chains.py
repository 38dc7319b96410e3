"""Rules that bring constants together do so once a link, however long the chain is."""

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnxfold.analysis.symbolic.application import Applications
from onnxfold.options import Options
from onnxfold.passes.simplify import Simplify


def chain(links: int) -> ir.Model:
    nodes = [helper.make_node("Mul", [f"m{k}", f"c{k}"], [f"m{k + 1}"]) for k in range(links)]
    weights = [helper.make_tensor(f"c{k}", 1, [], [1 + 1 / (k + 2)]) for k in range(links)]
    value = helper.make_tensor_value_info
    inputs, outputs = (
        value("m0", TensorProto.FLOAT, [4]),
        value(f"m{links}", TensorProto.FLOAT, [4]),
    )
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], weights)
    opsets = [onnx.helper.make_opsetid("", 17)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))


@pytest.mark.parametrize("links", [200, 800])
def test_nobody_computes_elements_that_nobody_asks_for(links, monkeypatch):
    """Types and shapes of all products follow from those of a few: floats are no sizes."""
    decided = []
    decide = Applications._decide

    def counted(self, *arguments):
        decided.append(arguments)
        return decide(self, *arguments)

    monkeypatch.setattr(Applications, "_decide", counted)
    simplify = Simplify(options=Options(level=2))
    simplify(chain(links))
    assert simplify.report.counts == {"mul_mul": links - 1}
    assert 0 < len(decided) <= 3


@pytest.mark.parametrize("links", [200, 800])
def test_one_rewrite_a_link(links):
    """The constants' own products are left to constant propagation, not rewritten again."""
    simplify = Simplify(options=Options(level=2))
    simplify(chain(links))
    assert simplify.report.counts == {"mul_mul": links - 1}
    assert simplify.report.loops == []
    assert simplify.report.visits < 5 * links
