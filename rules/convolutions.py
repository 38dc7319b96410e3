"""Convolutions and what is next to them: normalization, scales and biases.

Scaling a weight rounds once more, or once less, than scaling the result, so most rules here are
for level 2. The new weights are computed in float64 and rounded once. The bias is another matter:
onnxruntime's CPU kernels of Conv and ConvTranspose, which are for float32, add it to the finished
sum of each element, as an Add after the convolution does. A first bias is exact therefore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnxfold.rules.numbers import is_scale
from onnxfold.rules.weights import (
    affordable,
    affordable_new,
    along,
    if_given,
    narrow,
    per_channel,
    spread,
    wide,
)

from onnxfold.rewrite import (
    Matched,
    any_of,
    anything,
    attributes,
    constant,
    constants,
    given,
    has_one_output,
    is_scalar_like,
    op,
    optional,
    rank_of,
    rule,
    same_shape,
    shape_of,
    single_use,
    values,
)

x, rest = values("x *rest")
w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
e = attributes("e")

_conv, _transposed = op("Conv"), op("ConvTranspose")
_DOUBLE = ir.DataType.DOUBLE


# -------------------------------------------------------------------- channels


_scales, _shifts = op.any_of("Mul", "Div"), op.any_of("Add", "Sub")
_rank = rank_of(w)


@given
def _channels(w: Matched) -> int:
    return w.sizes[0]


@given
def _transposed_channels(w: Matched, transposed: Matched) -> int:
    return w.sizes[1] * int(transposed.attribute("group"))


@given
def _by_groups(w: Matched, transposed: Matched) -> tuple[int, ...]:
    """A transposed convolution's weight is [groups, in, out, ...] but for its first two axes."""
    groups = transposed.attribute("group")
    return (groups, w.sizes[0] // groups, *w.sizes[1:])


@given
def _factor_by_groups(shape: Sequence[int]) -> tuple[int, ...]:
    return (shape[0], 1, shape[2], *(1 for _ in shape[3:]))


def _scaled_weight(scales: Any, factor: Any) -> Any:
    return narrow(scales(wide(w), along(factor, 0, _rank)), w)


def _scaled_transposed_weight(scales: Any, factor: Any) -> Any:
    shape = _by_groups(w, _transposed)
    factors = op.Reshape(factor, constant(_factor_by_groups(shape)))
    scaled = scales(op.Reshape(wide(w), constant(shape)), factors)
    return narrow(op.Reshape(scaled, constant(shape_of(w))), w)


_KINDS = (
    (_conv, _scaled_weight, _channels),
    (_transposed, _scaled_transposed_weight, _transposed_channels(w, _transposed)),
)

# -------------------------------------------------------------------- batch normalization


def _batch_normalization(kind: Any, scaled: Any, channels: Any) -> Any:
    convolution = kind(x, w, optional(b))
    pattern = op.BatchNormalization(
        convolution, scale, shift, mean, variance, epsilon=e, momentum=anything
    )
    factor = op.Div(wide(scale), op.Sqrt(op.Add(wide(variance), constant(e, _DOUBLE))))
    moved = op.Sub(wide(shift), op.Mul(wide(mean), factor))
    bias = any_of(op.Add(moved, op.Mul(wide(b), factor)), moved)
    return rule(
        pattern >> kind(x, scaled(op.Mul, factor), narrow(bias, w)),
        # before opset 14, further outputs ask for training
        where=single_use(convolution)
        & has_one_output(pattern)
        & affordable(w, frees=(w, b, scale, shift, mean, variance), makes=(channels,)),
        opset=(7, None),
        inexact=True,
        doc=f"{kind!r} does the scaling and shifting of BatchNormalization, in inference.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    )


conv_batch_normalization = _batch_normalization(*_KINDS[0])

conv_transpose_batch_normalization = _batch_normalization(*_KINDS[1])

# -------------------------------------------------------------------- scales and biases


def _scaling(kind: Any, scaled: Any, channels: Any) -> Any:
    convolution = kind(x, w, optional(b))
    factor = spread(wide(c), channels)
    return rule(
        _scales(convolution, c)
        >> kind(x, scaled(_scales, factor), narrow(_scales(wide(b), factor), w)),
        where=single_use(convolution)
        & per_channel(c, convolution, 1, _rank)
        & is_scale(_scales, c)
        & affordable(w, frees=(w, b, c), makes=(if_given(channels, b),)),
        inexact=True,
        opset=(7, None),
        doc=f"{kind!r} is scaled by a constant, one number a channel or one for all.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    )


@given
def _is_second_sum(c: Matched, b: Matched | None = None) -> bool:
    """The convolution rounds the sum with its own bias before the constant is added."""
    return c.dtype != ir.DataType.FLOAT or (b is not None and bool(b.array.any()))


def _shifting(kind: Any, channels: Any) -> Any:
    convolution = kind(x, w, optional(b))
    bias = any_of(wide(b), constant(-0.0, _DOUBLE))  # leaves the sign of a zero that is added
    return rule(
        _shifts(convolution, c) >> kind(x, w, narrow(_shifts(bias, spread(wide(c), channels)), w)),
        where=single_use(convolution)
        & per_channel(c, convolution, 1, _rank)
        & affordable_new(c, frees=(b, c), makes=(channels,)),
        inexact=_is_second_sum,
        opset=(7, None),
        doc=f"{kind!r} adds a constant, one number a channel or one for all, with its bias.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    )


convolution_scaled = [_scaling(*kind) for kind in _KINDS]

convolution_shifted = [_shifting(kind, channels) for kind, _, channels in _KINDS]

# -------------------------------------------------------------------- a scale or bias before it

_scaled_input = op.Mul(x, c)


convolution_of_scaled = [
    rule(
        kind(_scaled_input, w, *rest)
        >> kind(x, narrow(op.Mul(wide(w), op.Reshape(wide(c), constant([1]))), w), *rest),
        where=is_scalar_like(c)
        & single_use(_scaled_input)
        & (rank_of(c) <= rank_of(x))
        & affordable(w, frees=(w, c)),
        inexact=True,
        doc="The weight takes the scale of the input.",
        seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
    )
    for kind in (_conv, _transposed)
]


@given
def _in_channels(w: Matched) -> int:
    return w.sizes[1]


@given
def _is_ungrouped(conv: Matched) -> bool:
    return bool(conv.attribute("group") == 1)


_scaled_channels = _scales(x, c)

convolution_of_scaled_channels = rule(
    _conv(_scaled_channels, w, *rest)
    >> _conv(
        x,
        narrow(_scales(wide(w), along(spread(wide(c), _in_channels), 1, _rank)), w),
        *rest,
    ),
    where=_is_ungrouped(_conv)
    & ~is_scalar_like(c)
    & per_channel(c, _scaled_channels, 1, _rank)
    & same_shape(x, _scaled_channels)
    & single_use(_scaled_channels)
    & affordable(w, frees=(w, c)),
    opset=(7, None),
    inexact=True,
    doc="The weight takes the scales of the input's channels.",
    seen_in="torch/preprocessing",
)


@given
def is_unpadded(conv: Matched) -> bool:
    """Every element of the result sees a whole window of the input."""
    if conv.attribute("auto_pad") not in (None, "NOTSET", "VALID"):
        return False
    return not any(conv.attribute("pads") or ())


@given
def _window(w: Matched) -> int:
    """Elements of the weight for each channel of the result."""
    return math.prod(w.sizes[1:])


_shifted = _shifts(x, c)
_shift = op.Reshape(_shifts(constant(0.0, _DOUBLE), wide(c)), constant([1]))
_windows = op.Reshape(wide(w), constant((_channels, _window)))
_moved = op.MatMul(_windows, op.Expand(_shift, constant((_window,))))

convolution_of_shifted = rule(
    _conv(_shifted, w, optional(b))
    >> _conv(x, w, narrow(any_of(op.Add(wide(b), _moved), _moved), w)),
    where=is_unpadded(_conv)
    & is_scalar_like(c)
    & same_shape(x, _shifted)
    & single_use(_shifted)
    & affordable_new(c, frees=(b, c), makes=(_channels,)),
    opset=(7, None),
    inexact=True,
    doc="What the input is shifted by comes to the same in every window: it is the bias's.",
    seen_in="rapidocr-onnxruntime/ch_PP-OCRv4_det_infer",
)
