"""Element-wise ops whose results in onnxruntime do not depend on the position of an element."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.ops import Trait, ops


def is_position_dependent(op_type: str, dtype: ir.DataType) -> bool:
    """Return whether onnxruntime's result for an element may depend on its position.

    Its SIMD code compares the lower halves of int64 as signed numbers; Relu(-0.0) is -0.0 in its
    SIMD code for float16, and 0.0 in other code.
    """
    is_ordered = op_type in ops(Trait.ORDERS) and dtype == ir.DataType.INT64
    return is_ordered or (op_type, dtype) == ("Relu", ir.DataType.FLOAT16)
