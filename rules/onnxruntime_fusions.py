"""What onnxruntime makes one kernel of when it loads a model: inexact rules leave it whole."""

from __future__ import annotations

from onnxfold.rules.activations import gelu_by_erf, gelu_by_tanh, x

from onnxfold.rewrite import floating, keep

kept_gelu_by_erf = keep(
    gelu_by_erf,
    where=floating(x),
    doc="Gelu, spelled out with Erf.",
    seen_in="rapidocr/PP-OCRv6_det_small",
)

kept_gelu_by_tanh = keep(
    gelu_by_tanh,
    where=floating(x),
    doc="Gelu's approximation, spelled out with Tanh.",
    seen_in="torch/gelu",
)
