"""Ops of onnxruntime's own domain, which nobody but onnxruntime knows."""

from __future__ import annotations

from onnx import TensorProto as T

from ..builder import Builder

DOMAIN = "com.microsoft"


def contrib(b: Builder) -> None:
    """One op of onnxruntime's own on a value of the graph."""
    x = b.pick([T.FLOAT], (1, 3), where=lambda v: v.rank > 0)
    op_type = b.choose(["Gelu", "FastGelu", "QuickGelu", "BiasGelu", "FusedMatMul", "Inverse"])
    if op_type == "QuickGelu":
        b.node(op_type, [x], domain=DOMAIN, alpha=b.choose([1.702, 1.0, None]))
    elif op_type in ("BiasGelu", "FastGelu"):
        b.node(op_type, [x, b.leaf(T.FLOAT, [x.dims[-1]])], domain=DOMAIN)
    elif op_type == "FusedMatMul":
        y = b.leaf(T.FLOAT, [b.dim(), x.dims[-1]])
        b.node(op_type, [x, y], domain=DOMAIN, transB=1, alpha=b.choose([1.0, 0.5]))
    elif op_type == "Inverse":
        b.node(op_type, [b.leaf(T.FLOAT, [b.dim(2), b.dim(2)])], domain=DOMAIN)
    else:
        b.node(op_type, [x], domain=DOMAIN)
