"""Convolutions and what is next to them: normalization, scales and biases.

Scaling a weight rounds once more, or once less, than scaling the result, so most rules here are
for level 2. The new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxfold.rules.numbers import is_scale
from onnxfold.rules.weights import (
    affordable,
    affordable_new,
    along,
    narrow,
    per_channel,
    spread,
    wide,
)

from onnxfold.rewrite import (
    anything,
    attributes,
    computed,
    constant,
    constants,
    is_scalar_like,
    op,
    rule,
    same_shape,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match

x, rest = values("x *rest")
w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
e = attributes("e")

_conv, _transposed = op("Conv"), op("ConvTranspose")
_DOUBLE = ir.DataType.DOUBLE


# -------------------------------------------------------------------- channels


def _rank(match: Match) -> int | None:
    return match.rank(w)


def _first_axis(match: Match) -> tuple[int, int] | None:
    """Where the output channels are in a Conv's weight."""
    rank = _rank(match)
    return None if rank is None else (0, rank)


def _channel_axis(match: Match) -> tuple[int, int] | None:
    """Where the channels are in the result."""
    rank = _rank(match)
    return None if rank is None else (1, rank)


def _channels(match: Match) -> int | None:
    shape = match.static_shape(w)
    return None if shape is None else shape[0]


def _transposed_channels(match: Match) -> int | None:
    shape = match.static_shape(w)
    groups = match.attribute(_transposed, "group")
    return None if shape is None else int(shape[1] * groups)


def _by_groups(match: Match) -> tuple[int, ...] | None:
    """A transposed convolution's weight is [groups, in, out, ...] but for its first two axes."""
    shape, groups = match.static_shape(w), match.attribute(_transposed, "group")
    return None if shape is None else (groups, shape[0] // groups, *shape[1:])


def _factor_by_groups(match: Match) -> tuple[int, ...] | None:
    shape = _by_groups(match)
    return None if shape is None else (shape[0], 1, shape[2], *(1 for _ in shape[3:]))


def _scaled_weight(factor: Any) -> Any:
    return narrow(op.Mul(wide(w), along(factor, _first_axis)), w)


def _scaled_transposed_weight(factor: Any) -> Any:
    grouped = op.Reshape(wide(w), constant(computed(_by_groups)))
    scaled = op.Mul(grouped, op.Reshape(factor, constant(computed(_factor_by_groups))))
    return narrow(op.Reshape(scaled, constant(computed(lambda m: m.static_shape(w)))), w)


_KINDS = (
    (_conv, _scaled_weight, _channels),
    (_transposed, _scaled_transposed_weight, _transposed_channels),
)

# -------------------------------------------------------------------- batch normalization


def _one_output(node: Callable[[Match], ir.Node]) -> Callable[[Match], bool]:
    """Before opset 14, the further outputs of BatchNormalization ask for training."""
    return lambda match: sum(bool(v.name) for v in node(match).outputs) == 1


def _batch_normalization(kind: Any, scaled: Any, channels: Any, *bias: Any) -> Any:
    convolution = kind(x, w, *bias)
    pattern = op.BatchNormalization(
        convolution, scale, shift, mean, variance, epsilon=e, momentum=anything
    )
    factor = op.Div(wide(scale), op.Sqrt(op.Add(wide(variance), constant(e, _DOUBLE))))
    moved = op.Sub(wide(shift), op.Mul(wide(mean), factor))
    if bias:
        moved = op.Add(moved, op.Mul(wide(bias[0]), factor))
    return rule(
        pattern >> kind(x, scaled(factor), narrow(moved, w)),
        where=single_use(convolution)
        & _one_output(lambda m: m.node(pattern))
        & affordable(
            w,
            frees=(w, *bias, scale, shift, mean, variance),
            makes=(channels,),
        ),
        opset=(7, None),
        inexact=True,
        doc=f"{kind!r} does the scaling and shifting of BatchNormalization, in inference.",
    )


conv_batch_normalization = [_batch_normalization(*_KINDS[0], *bias) for bias in ((), (b,))]

conv_transpose_batch_normalization = [
    _batch_normalization(*_KINDS[1], *bias) for bias in ((), (b,))
]

# -------------------------------------------------------------------- scales and biases


def _scaling(name: str, kind: Any, scaled: Any, channels: Any, *bias: Any) -> Any:
    """A Mul or Div by a constant, one number a channel or one for all."""
    scales, multiplies = getattr(op, name), name == "Mul"
    convolution = kind(x, w, *bias)
    vector = spread(wide(c), channels)
    factor = vector if multiplies else op.Reciprocal(vector)
    biases = [narrow(scales(wide(each), vector), w) for each in bias]
    return rule(
        scales(convolution, c) >> kind(x, scaled(factor), *biases),
        where=single_use(convolution)
        & per_channel(c, convolution, _channel_axis)
        & is_scale(name, c)
        & affordable(w, frees=(w, *bias, c), makes=(channels,) if bias else ()),
        inexact=True,
        opset=(8, None),
        doc=f"{kind!r} scales its result itself, its bias included.",
    )


def _shifting(name: str, kind: Any, scaled: Any, channels: Any, *bias: Any) -> Any:
    """An Add or Sub of a constant, one number a channel or one for all."""
    shifts = getattr(op, name)
    convolution = kind(x, w, *bias)
    vector = spread(wide(c), channels)
    alone = vector if name == "Add" else op.Neg(vector)
    moved = shifts(wide(bias[0]), vector) if bias else alone
    return rule(
        shifts(convolution, c) >> kind(x, w, narrow(moved, w)),
        where=single_use(convolution)
        & per_channel(c, convolution, _channel_axis)
        & affordable_new(c, frees=(*bias, c), makes=(channels,)),
        inexact=True,
        opset=(8, None),
        doc=f"{kind!r} adds a constant with its bias.",
    )


def _all_kinds(make: Any, *ops: str) -> list[Any]:
    return [make(each, *kind, *bias) for each in ops for kind in _KINDS for bias in ((), (b,))]


convolution_scaled = _all_kinds(_scaling, "Mul", "Div")

convolution_shifted = _all_kinds(_shifting, "Add", "Sub")

# -------------------------------------------------------------------- a scale or bias before it

_scaled_input = op.Mul(x, c)


def _no_more_than_scalar(match: Match) -> bool:
    """The scale does not raise the rank of what it scales."""
    rank = match.rank(x)
    return rank is not None and (match.rank(c) or 0) <= rank


convolution_of_scaled = [
    rule(
        kind(_scaled_input, w, *rest) >> kind(x, narrow(op.Mul(wide(w), _once), w), *rest),
        where=is_scalar_like(c)
        & single_use(_scaled_input)
        & _no_more_than_scalar
        & affordable(w, frees=(w, c)),
        inexact=True,
        doc="The weight takes the scale of the input.",
    )
    for kind in (_conv, _transposed)
    for _once in (op.Reshape(wide(c), constant([1])),)
]


def _in_channels(match: Match) -> int | None:
    shape = match.static_shape(w)
    return None if shape is None else shape[1]


def _second_axis(match: Match) -> tuple[int, int] | None:
    """Where the input channels are in a Conv's weight."""
    rank = _rank(match)
    return None if rank is None else (1, rank)


def _ungrouped(match: Match) -> bool:
    return bool(match.attribute(_conv, "group") == 1)


convolution_of_scaled_channels = [
    rule(
        _conv(scaled, w, *rest)
        >> _conv(x, narrow(op.Mul(wide(w), along(factor, _second_axis)), w), *rest),
        where=_ungrouped
        & ~is_scalar_like(c)
        & per_channel(c, scaled, _channel_axis)
        & same_shape(x, scaled)
        & single_use(scaled)
        & affordable(w, frees=(w, c)),
        opset=(8, None),
        inexact=True,
        doc="The weight takes the scales of the input's channels.",
    )
    for vector in (spread(wide(c), _in_channels),)
    for scaled, factor in ((op.Mul(x, c), vector), (op.Div(x, c), op.Reciprocal(vector)))
]


def _unpadded(match: Match) -> bool:
    """Every element of the result sees a whole window of the input."""
    if match.attribute(_conv, "auto_pad") not in (None, "NOTSET", "VALID"):
        return False
    return not any(match.attribute(_conv, "pads") or ())


def _window(match: Match) -> tuple[int, int] | None:
    """A Conv's weight as one row for each channel of the result."""
    shape = match.static_shape(w)
    return None if shape is None else (shape[0], math.prod(shape[1:]))


def _of_shifted(shifted: Any, negative: bool, *bias: Any) -> Any:
    rows = op.Reshape(wide(w), constant(computed(_window)))
    number = op.Reshape(op.Neg(wide(c)) if negative else wide(c), constant([1]))
    size = constant(computed(lambda m: (window := _window(m)) and window[1:]))
    moved = op.MatMul(rows, op.Expand(number, size))
    return rule(
        _conv(shifted, w, *bias)
        >> _conv(x, w, narrow(op.Add(wide(bias[0]), moved) if bias else moved, w)),
        where=_unpadded
        & is_scalar_like(c)
        & same_shape(x, shifted)
        & single_use(shifted)
        & affordable_new(c, frees=(*bias, c), makes=(_channels,)),
        opset=(8, None),
        inexact=True,
        doc="What the input is shifted by comes to the same in every window: it is the bias's.",
    )


convolution_of_shifted = [
    _of_shifted(shifted, negative, *bias)
    for shifted, negative in ((op.Add(x, c), False), (op.Sub(x, c), True))
    for bias in ((), (b,))
]
