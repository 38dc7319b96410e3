"""Padding before convolutions and pools, which pad themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from onnxfold.rewrite import (
    attributes,
    computed,
    constants,
    filled,
    op,
    optional,
    result,
    rule,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.predicates import as_predicate

x, rest = values("x *rest")
pads, axes = constants("pads axes")
p = attributes("p")

_conv, _pool, _max_pool = op("Conv"), op("AveragePool"), op("MaxPool")


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


def _may_see_whole_axis(match: Match) -> bool:
    """True if a kernel may be as long as its axis, where onnxruntime sums in another order.

    It does so for one channel only, and if there is no padding.
    """
    weight, shape = match.shape(match[rest][0]), match.shape(result)
    if weight is None or shape is None:
        return True
    return weight[1] == 1 and not all(isinstance(d, int) and d > 1 for d in shape[2:])


conv_of_pad = [
    rule(
        _conv(padding, *rest) >> _with_pads(_conv, find, *rest),
        where=_has_pads(_conv, find),
        inexact=_may_see_whole_axis,
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
