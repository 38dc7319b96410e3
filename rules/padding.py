"""Padding before convolutions and pools, which pad themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxfold.rewrite import (
    Matched,
    attributes,
    constants,
    filled,
    given,
    known,
    op,
    optional,
    result,
    rule,
    values,
)

x, w, rest = values("x w *rest")
pads, axes = constants("pads axes")
p = attributes("p")

_conv, _pool, _max_pool = op("Conv"), op("AveragePool"), op("MaxPool")


@given
def _given_pads(x: Matched, pads: Matched, axes: Matched | None = None) -> list[int] | None:
    """What Pad adds on each side of every axis: all beginnings, then all ends."""
    amounts, rank = pads.ints, x.rank
    if axes is None:
        return list(amounts) if len(amounts) == 2 * rank else None
    found = [0] * (2 * rank)
    for k, position in enumerate(axis % rank for axis in axes.ints):
        found[position], found[rank + position] = amounts[k], amounts[len(amounts) // 2 + k]
    return found


@given
def _padded(node: Matched, added: Sequence[int]) -> tuple[int, ...] | None:
    """The pads of a convolution or pool together with those of the Pad before it."""
    rank = len(added) // 2
    if min(added, default=0) < 0 or any(added[k] or added[rank + k] for k in (0, 1)):
        return None
    spatial = (*added[2:rank], *added[rank + 2 :])
    automatic, old = node.attribute("auto_pad"), node.attribute("pads")
    if automatic == "VALID":
        return spatial
    if automatic != "NOTSET" or old is None or len(old) != len(spatial):
        return None
    return tuple(a + b for a, b in zip(old, spatial, strict=True))


_zero_pad = op.Pad(x, pads, optional(filled(0)), optional(axes))
_old_pad = op.Pad(x, pads=p)


_paddings = ((_zero_pad, _given_pads, (11, None)), (_old_pad, p, (2, 10)))
"""A Pad with zeros, what it adds, and the opsets that have it."""


@given
def _may_see_whole_axis(node: Matched, weight: Matched, result: Matched) -> bool:
    """True if a kernel may be as long as its axis, where onnxruntime sums in another order.

    It does so for one channel only, and if there is neither padding nor a stride nor a dilation.
    """
    if any(step > 1 for name in ("strides", "dilations") for step in node.attribute(name) or ()):
        return False
    more = all(isinstance(d, int) and d > 1 for d in result.shape[2:])
    return weight.shape[1] == 1 and not more


conv_of_pad = [
    rule(
        _conv(padding, w, *rest) >> _conv(x, w, *rest, pads=_padded(_conv, added), auto_pad=None),
        where=known(_padded(_conv, added)),
        inexact=_may_see_whole_axis(_conv, w, result),
        opset=versions,
        doc="Conv pads with zeros itself.",
    )
    for padding, added, versions in _paddings
]


@given
def _pads_itself(node: Matched, pads: Sequence[int]) -> bool:
    """The pool may take over the padding: no window lies in it, or hangs over it, as a whole."""
    kernel = node.attribute("kernel_shape")
    return (
        not node.attribute("ceil_mode")
        and set(node.attribute("dilations") or ()) <= {1}
        and all(amount < size for amount, size in zip(pads, (*kernel, *kernel), strict=True))
    )


@given
def _counts_padding(node: Matched) -> bool:
    """What the pool pads itself is part of the average already, or there is nothing."""
    old = node.attribute("pads")
    return bool(node.attribute("count_include_pad")) or (old is not None and not any(old))


average_pool_of_pad = [
    rule(
        _pool(padding) >> _pool(x, pads=_padded(_pool, added), auto_pad=None, count_include_pad=1),
        where=_pads_itself(_pool, _padded(_pool, added)) & _counts_padding(_pool),
        opset=(max(versions[0], 7), versions[1]),
        doc="AveragePool pads with zeros itself, and counts them.",
    )
    for padding, added, versions in _paddings
]

_pads = _padded(_max_pool, _given_pads)

max_pool_of_lowest_pad = rule(
    _max_pool(op.Pad(x, pads, filled(-math.inf), optional(axes)))
    >> _max_pool(x, pads=_pads, auto_pad=None),
    where=_pads_itself(_max_pool, _pads),
    opset=(11, None),
    inexact=True,
    doc="MaxPool pads with what is smaller than everything itself; a NaN may be elsewhere.",
)

_not_negative = op.any_of("Relu", "Sigmoid", "Abs")(x)

max_pool_of_zero_pad = rule(
    _max_pool(op.Pad(_not_negative, pads, optional(filled(0)), optional(axes)))
    >> _max_pool(_not_negative, pads=_pads, auto_pad=None),
    where=_pads_itself(_max_pool, _pads),
    opset=(11, None),
    inexact=True,
    doc="Of what is not negative the maximum with zeros is that without them, but for NaN, -0.0.",
)
