"""Convolutions and what is next to them: normalization, scales, biases and padding.

Scaling a weight rounds once more, or once less, than scaling the result, so most rules here are
for level 2. The new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnxfold.rules.weights import affordable, along, narrow, per_channel, spread, wide

from onnxfold.rewrite import (
    anything,
    attributes,
    computed,
    constant,
    constants,
    filled,
    is_scalar_like,
    op,
    optional,
    rule,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.predicates import as_predicate

x, rest = values("x *rest")
w, b, c, scale, shift, mean, variance = constants("w b c scale shift mean variance")
pads, axes = constants("pads axes")
e, p = attributes("e p")

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
        & affordable(b if bias else c, frees=(*bias, c), makes=() if bias else (channels,)),
        inexact=True,
        opset=(8, None),
        doc=f"{kind!r} adds a constant with its bias.",
    )


def _all_kinds(make: Any, *ops: str) -> list[Any]:
    return [make(each, *kind, *bias) for each in ops for kind in _KINDS for bias in ((), (b,))]


convolution_scaled = _all_kinds(_scaling, "Mul", "Div")

convolution_shifted = _all_kinds(_shifting, "Add", "Sub")

# -------------------------------------------------------------------- a scale before it

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

# -------------------------------------------------------------------- padding

_pool, _max_pool = op("AveragePool"), op("MaxPool")


def _padded(node: Any, find: Callable[[Match], list[int] | None]) -> Any:
    """The pads of a convolution or pool together with those of the Pad before it."""

    def both(match: Match) -> tuple[int, ...] | None:
        added = find(match)
        old = match.attribute(node, "pads")
        if added is None or min(added, default=0) < 0:
            return None
        rank = len(added) // 2
        if any(added[k] or added[rank + k] for k in (0, 1)):
            return None
        spatial = [*added[2:rank], *added[rank + 2 :]]
        automatic = match.attribute(node, "auto_pad")
        if automatic == "VALID":
            return tuple(spatial)
        if automatic != "NOTSET" or old is None or len(old) != len(spatial):
            return None
        return tuple(int(a) + b for a, b in zip(old, spatial, strict=True))

    return both


def _given_pads(match: Match) -> list[int] | None:
    """What Pad adds on each side of every axis: all beginnings, then all ends."""
    array, rank = match.array(pads), match.rank(x)
    chosen = match[axes]
    if array is None or rank is None:
        return None
    amounts = [int(v) for v in array.ravel()]
    if chosen is None:
        return amounts if len(amounts) == 2 * rank else None
    positions = match.array(chosen)
    if positions is None:
        return None
    found = [0] * (2 * rank)
    for k, position in enumerate(int(v) % rank for v in positions.ravel()):
        found[position], found[rank + position] = amounts[k], amounts[len(amounts) // 2 + k]
    return found


def _attribute_pads(match: Match) -> list[int] | None:
    return list(match[p])


_zero_pad = op.Pad(x, pads, optional(filled(0)), optional(axes))
_old_pad = op.Pad(x, pads=p)


def _with_pads(node: Any, find: Any, *operands: Any, **more: Any) -> Any:
    both = computed(_padded(node, find))
    return node(x, *operands, pads=both, auto_pad=None, **more)


def _has_pads(node: Any, find: Any) -> Callable[[Match], bool]:
    return lambda match: _padded(node, find)(match) is not None


conv_of_pad = [
    rule(
        _conv(padding, *rest) >> _with_pads(_conv, find, *rest),
        where=_has_pads(_conv, find),
        opset=versions,
        doc="Conv pads with zeros itself.",
    )
    for padding, find, versions in (
        (_zero_pad, _given_pads, (11, None)),
        (_old_pad, _attribute_pads, (2, 10)),
    )
]


def _pads_itself(find: Any, node: Any) -> Callable[[Match], bool]:
    """The pool may take over the padding: no window lies in it, or hangs over it, as a whole."""

    def pads_itself(match: Match) -> bool:
        both = _padded(node, find)(match)
        kernel = match.attribute(node, "kernel_shape")
        dilations = match.attribute(node, "dilations")
        return (
            both is not None
            and not match.attribute(node, "ceil_mode")
            and (dilations is None or set(dilations) <= {1})
            and all(amount < size for amount, size in zip(both, (*kernel, *kernel), strict=True))
        )

    return pads_itself


def _counts_padding(node: Any) -> Callable[[Match], bool]:
    """What the pool pads itself is part of the average already, or there is nothing."""

    def counts_padding(match: Match) -> bool:
        old = match.attribute(node, "pads")
        return bool(match.attribute(node, "count_include_pad")) or (
            old is not None and not any(old)
        )

    return counts_padding


average_pool_of_pad = [
    rule(
        _pool(padding) >> _with_pads(_pool, find, count_include_pad=1),
        where=as_predicate(_pads_itself(find, _pool)) & _counts_padding(_pool),
        opset=versions,
        doc="AveragePool pads with zeros itself, and counts them.",
    )
    for padding, find, versions in (
        (_zero_pad, _given_pads, (11, None)),
        (_old_pad, _attribute_pads, (7, 10)),
    )
]

max_pool_of_lowest_pad = rule(
    _max_pool(op.Pad(x, pads, filled(-math.inf), optional(axes)))
    >> _with_pads(_max_pool, _given_pads),
    where=_pads_itself(_given_pads, _max_pool),
    opset=(11, None),
    inexact=True,
    doc="MaxPool pads with what is smaller than everything itself; a NaN may be elsewhere.",
)

_not_negative = op.any_of("Relu", "Sigmoid", "Abs")(x)

max_pool_of_zero_pad = rule(
    _max_pool(op.Pad(_not_negative, pads, optional(filled(0)), optional(axes)))
    >> _max_pool(_not_negative, pads=computed(_padded(_max_pool, _given_pads)), auto_pad=None),
    where=_pads_itself(_given_pads, _max_pool),
    opset=(11, None),
    inexact=True,
    doc="Of what is not negative the maximum with zeros is that without them, but for NaN, -0.0.",
)
