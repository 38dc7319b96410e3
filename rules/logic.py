"""Not before Where, And, and after comparisons."""

from __future__ import annotations

import onnx_ir as ir
from onnxfold.rules.numbers import no_negative_zero

from onnxfold.rewrite import op, rule, values

x, y, c = values("x y c")

# On onnxruntime -0.0 becomes 0.0 where it is taken from the first branch, and stays in the second:
# unless the second one repeats along the last axis together with the condition, then vice versa.


where_not = rule(
    op.Where(op.Not(c), x, y) >> op.Where(c, y, x),
    inexact=lambda x, y: x.is_float and not (no_negative_zero(x) and no_negative_zero(y)),
    doc="Where(not c, x, y) is Where(c, y, x).",
    seen_in="khmersm/model",
)

and_of_nots = rule(
    op.And(op.Not(x), op.Not(y)) >> op.Not(op.Or(x, y)),
    doc="(not x) and (not y) is not (x or y).",
    seen_in="ppocr-vectron/ctc_decode",
)

not_of_greater = rule(
    op.Not(op.Greater(x, y)) >> op.LessOrEqual(x, y),
    where=lambda x: x.dtype in (ir.DataType.INT32, ir.DataType.INT64),
    opset=(12, None),
    doc="not (x > y) is x <= y for integers; not for floats, where every comparison with NaN is"
    " false.",
    seen_in="pmsh-ocr/decoder_loop",
)
