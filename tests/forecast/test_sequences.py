"""Constants that are sequences: they have no bytes of their own to predict."""

from __future__ import annotations

import numpy as np
import onnx
from model_table import with_weights

import onnxfold


def test_a_sequence_of_constants_that_is_read_twice(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[9, 8] x) => (float[9, 8] y, float[9, 8] z) {
            halves = SplitToSequence <axis = -1> (table, four)
            sines = SequenceAt (halves, zero)
            cosines = SequenceAt (halves, one)
            turned = Neg (cosines)
            first = Concat <axis = -1> (turned, sines)
            second = Concat <axis = -1> (sines, cosines)
            y = Mul (x, first)
            z = Mul (x, second)
        }"""
    )
    table = np.random.default_rng(0).standard_normal((9, 8)).astype(np.float32)
    model = with_weights(model, table=table, four=4, zero=0, one=1)
    onnx.save(model, tmp_path / "in.onnx")
    report = onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", check=1)
    assert report.check.equal
    assert dict(report.nodes_after) == {"Mul": 2}
