"""Our passes, onnxscript's and onnx-ir's in one ``ir.passes.Sequential``."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common
from onnxscript import rewriter
from onnxscript.optimizer._constant_folding import FoldConstantsPass

import onnxfold
from onnxfold import passes, storage

SWIN = Path(__file__).parents[2] / "models" / "swin.onnx"


def theirs() -> list[ir.passes.PassBase]:
    return [
        FoldConstantsPass(shape_inference=True, input_size_limit=8192, output_size_limit=1 << 18),
        rewriter.RewritePass(rewriter._DEFAULT_REWRITE_RULES),
        common.RemoveUnusedNodesPass(),
        common.CommonSubexpressionEliminationPass(),
    ]


def ours() -> list[ir.passes.PassBase]:
    names = ("constant-propagation", "simplify", "constant-propagation", "dead-code", "deduplicate")
    return [passes.create(name) for name in names]


@pytest.mark.parametrize("order", ["theirs first", "ours first", "ours around"])
def test_in_one_sequence(order, tmp_path):
    steps = {
        "theirs first": [*theirs(), *ours()],
        "ours first": [*ours(), *theirs()],
        "ours around": [*ours(), *theirs(), *ours()],
    }[order]
    model = storage.load(SWIN)
    before = len(list(model.graph.all_nodes()))
    assert ir.passes.Sequential(*steps)(model).modified
    assert len(list(model.graph.all_nodes())) < before / 2
    out = tmp_path / "out.onnx"
    storage.save(model, out, fsync=False)
    onnx.checker.check_model(onnx.load(out))
    # onnxscript's rules may change the last bits; ours add nothing to that
    assert onnxfold.compare(SWIN, out, rtol=1e-4, atol=1e-5).passed
