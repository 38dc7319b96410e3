"""Rules that bring constants together do so once a link, however long the chain is."""

import onnx.parser
import onnx_ir as ir
import pytest

from onnxfold.options import Options
from onnxfold.passes.simplify import Simplify


@pytest.mark.parametrize("links", [200, 800])
def test_one_rewrite_a_link(links):
    """The constants' own products are left to constant propagation, not rewritten again."""
    weights = ", ".join(f"float c{k} = {{{1 + 1 / (k + 2)}}}" for k in range(links))
    nodes = " ".join(f"m{k + 1} = Mul(m{k}, c{k})" for k in range(links))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] m0) => (float[4] m{links}) <{weights}> {{ {nodes} }}"""
    simplify = Simplify(options=Options(level=2))
    simplify(ir.from_proto(onnx.parser.parse_model(text)))
    assert simplify.report.counts == {"mul_mul": links - 1}
    assert simplify.report.loops == []
    assert simplify.report.visits < 5 * links
