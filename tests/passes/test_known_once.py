"""One run of the passes knows each thing once: one pool, one analysis, one rewriter's rules."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx.parser
from onnx import numpy_helper

import onnxfold
from onnxfold import storage
from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.kernels.evaluator import Evaluator
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.pool import Pool
from onnxfold.rewrite.driver import Rewriter

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[N,32] x) => (float[N,64] y) { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }
"""


def test_each_thing_is_made_once(monkeypatch, tmp_path):
    model = onnx.parser.parse_model(TEXT)
    weight = np.random.default_rng(0).random((64, 32), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "in.onnx")
    made: Counter[str] = Counter()

    def count(kind: type) -> None:
        make = kind.__init__

        def counted(self: object, *args: object, **options: object) -> None:
            made[kind.__name__] += 1
            make(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", counted)

    kinds = (Pool, Evaluator, KnownValues, SymbolicAnalysis, Rewriter)
    for kind in kinds:
        count(kind)
    onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert made == {kind.__name__: 1 for kind in kinds}


def test_a_pass_that_is_used_again_knows_nothing_of_the_model_before():
    text = """
        <ir_version: 10, opset_import: ["": 21, "f": 1]>
        g () => (float[2] y) {{ one = Constant<value_floats = [1.0, 1.0]>() y = f.of(one) }}
        <opset_import: ["": 21], domain: "f">
        of (x) => (y) {{ y = {op}(x, x) }}
    """
    propagation = ConstantPropagation()
    for op, expected in (("Add", 2), ("Sub", 0)):
        model = storage.from_proto(onnx.parser.parse_model(text.format(op=op)))
        propagation(model)
        assert propagation.outcome.folded == 1
        array = model.graph.outputs[0].const_value.numpy()
        np.testing.assert_array_equal(array, np.full(2, expected, np.float32))
