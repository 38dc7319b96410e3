"""What onnxruntime computes in this process: ops that are certain to be quick, whatever they get.

Another process costs a third of a second, which most models need not pay: what they have
onnxruntime compute are functions of single elements, sums and quantized weights. Its kernels for
these go over their operands once, take no more memory than those and the result, and read no
element as a place or a size, so there is nothing in a tensor that could make them crash or hang. No
schema says so of an op; that is why they are listed. All others run in the child, as does what
onnx's shape inference could not tell the result of.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxfold.kernels.operation import Operation

UNARY = frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu"),
        *("Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Selu"),
        *("Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
"""Ops that ONNX defines element by element, of one operand, and IEEE 754 does not to the bit."""

_ONCE = UNARY | {
    *("Cast", "Clip", "DequantizeLinear", "Max", "Min", "Pow", "QuantizeLinear", "Where"),
    *("LogSoftmax", "Softmax"),
}
_REDUCTION = "Reduce"
_PRODUCTS = {"Gemm", "MatMul"}
# All elements of one operand meet all of the other at most: this takes milliseconds.
_MOST_PRODUCTS = 1 << 24


def is_certain(operation: Operation) -> bool:
    """True if onnxruntime may compute the operation in this process.

    Args:
        operation: Its operands may be results of others in the same session.
    """
    node = operation.node
    if node.domain != "":
        return False
    buffers = [b for b in (*operation.operands, *operation.results) if b is not None]
    if any(b.type_proto is not None or b.dtype == ir.DataType.STRING for b in buffers):
        return False
    if node.op_type.startswith(_REDUCTION):
        return True
    if not operation.results:
        return False
    if node.op_type in _PRODUCTS:
        return math.prod(b.size for b in operation.operands if b is not None) <= _MOST_PRODUCTS
    return node.op_type in _ONCE or operation.kernel is not None
