"""Replace the elementary ops of a normalization by one op.

The rules are for level 2, because the op rounds differently. onnxruntime's default session fuses
the same ops into the same kernel. Other runtimes get one op for which they have a kernel. ONNX has
LayerNormalization from opset 17 on, and has no SimplifiedLayerNormalization. onnxruntime accepts
both ops at any opset. The rules that create a normalization are for float32 only, for which
onnxruntime has the kernels.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import *

ort = op.beyond_standard


def _is_mean_of_rows(mean: Any, x: Value) -> Any:
    """Return the condition that a ReduceMean reduces only the last axis of x to size 1."""
    return (mean.axes == (x.rank - 1,)) & (mean.attribute("keepdims", 1) == 1)


def _ones(x: Value) -> Any:
    """Return a scale of ones with the size of the last axis of x."""
    return op.Expand(constant(1.0, FLOAT), constant(x.shape[-1:]))


@rule(
    each={
        "layer_normalization": (op, 17, None, "torch/layer_norm_spelled_out"),
        "layer_normalization_of_onnxruntime": (ort, (1, 16), "onnxruntime", "torch/layer_norm"),
    },
    inexact=True,
)
def normalized_rows(x, epsilon: Constant, ys: Values, zs: Values, ops, opset, target, seen_in):
    """(x - mean(x)) / sqrt(variance(x) + epsilon) == LayerNormalization(x, 1, epsilon)."""
    mean = op("ReduceMean")(x, *ys)
    centered = op.Sub(x, mean)
    squares = any_of(op.Pow(centered, filled(2)), op.Mul(centered, centered))
    variance = op("ReduceMean")(squares, *zs)
    after = ops.LayerNormalization(x, _ones(x), axis=-1, epsilon=epsilon.number)
    return op.Div(centered, op.Sqrt(op.Add(variance, epsilon))) >> after, where(
        x.dtype == FLOAT,
        _is_mean_of_rows(mean, x),
        _is_mean_of_rows(variance, x),
        result.same_shape(x),
    )


@rule(inexact=True, target="onnxruntime", seen_in="torch/rms_norm")
def rows_by_root_mean_square(x, epsilon: Constant, ys: Values):
    """x / sqrt(mean(x * x) + epsilon) == SimplifiedLayerNormalization(x, 1, epsilon)."""
    squares = any_of(op.Pow(x, filled(2)), op.Mul(x, x))
    mean = op("ReduceMean")(squares, *ys)
    root = op.Sqrt(op.Add(mean, epsilon))
    after = ort.SimplifiedLayerNormalization(x, _ones(x), axis=-1, epsilon=epsilon.number)
    return op.Div(x, root) >> after, where(
        x.dtype == FLOAT,
        _is_mean_of_rows(mean, x),
        result.same_shape(x),
    )


_normalization = ort.any_of("LayerNormalization", "SimplifiedLayerNormalization")


@rule(inexact=True, seen_in="torch/layer_norm_spelled_out")
def scale_of_normalization(x, w):
    """LayerNormalization(x, 1) * w == LayerNormalization(x, w) for a vector w."""
    one = filled(1)
    normalized = _normalization(x, one)
    return op.Mul(normalized, w) >> _normalization(x, w), where(
        normalized.is_single_use,
        normalized.axes == (x.rank - 1,),
        w.shape == x.shape[-1:],
    )


@rule(inexact=True, seen_in="torch/layer_norm_spelled_out")
def bias_of_normalization(x, w, b):
    """LayerNormalization(x, w) + b == LayerNormalization(x, w, b) for a vector b."""
    normalization = ort("LayerNormalization")
    normalized = normalization(x, w)
    return op.Add(normalized, b) >> normalization(x, w, b), where(
        normalized.is_single_use,
        normalized.axes == (x.rank - 1,),
        b.shape == x.shape[-1:],
    )
