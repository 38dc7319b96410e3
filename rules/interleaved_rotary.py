"""Rotary position embeddings of neighbours as one op of onnxruntime's own (target "onnxruntime").

Elements 0 and 1 of a head are turned by one angle, 2 and 3 by the next, as GPT-J does it. Cosines
and sines are computed once for each pair and repeated for both. float32 only, as for halves.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxfold.rules.rotary import rows_of_all

from onnxfold.rewrite import attributes, constant, constants, op, rule, values

x, cosines, sines, sizes = values("x cosines sines sizes")
first, second, end, last, other_end, other_last = constants(
    "first second end last other_end other_last"
)
once, again, ys, zs = values("once again *ys *zs")
joined, joined_too = values("joined joined_too")
axis = attributes("axis")

_ms = op.domain("com.microsoft")

# -------------------------------------------------------------------- what exporters write

_even = op.Slice(x, first, end, last, 2)
_odd = op.Slice(x, second, other_end, other_last, 2)
_pairs = op.Concat(
    op.any_of("Unsqueeze")(op.Neg(_odd), *ys), op.any_of("Unsqueeze")(_even, *zs), axis=axis
).named("pairs")
_turned = op.Reshape(_pairs, sizes).named("turned")


def _table(half: Any, name: str, once: Any, joined: Any) -> Any:
    """Cosines or sines, each of them twice."""
    repeated = op.any_of("Tile", "Expand")(half, once).named(f"repeated_{name}")
    return op.Reshape(repeated, joined).named(f"all_{name}")


interleaved_rotary = [
    rule(
        op.Add(
            op.Mul(x, _table(cosines, "cosines", once, joined)),
            op.Mul(_turned, _table(sines, "sines", again, joined_too)),
        )
        >> op.Reshape(
            _ms.RotaryEmbedding(
                op.Reshape(x, constant(lambda x: (0, 0, x.shape[2] * x.shape[3]))),
                positions,
                # [positions, size of a half]
                op.Reshape(cosines, constant(lambda cosines: (-1, cosines.shape[3]))),
                op.Reshape(sines, constant(lambda sines: (-1, sines.shape[3]))),
                interleaved=1,
                num_heads=lambda x: x.shape[2],
            ),
            constant(lambda x: (0, 0, *x.shape[2:])),
        ),
        where=[
            lambda x: (
                x.dtype == ir.DataType.FLOAT and x.rank == 4 and x.sizes_of([2, 3])[1] % 2 == 0
            ),
            # every other element of the last axis, from the first one and from the second
            lambda x, first, end, last, second, other_end, other_last: (
                (first.number, second.number) == (0, 1)
                and {int(last.number), int(other_last.number)} <= {-1, 3}
                and min(end.number, other_end.number) >= x.shape[3]
            ),
            # the pairs are on an axis of their own, the last one, and then as they were
            lambda x, axis, pairs, turned: (
                axis in (-1, 4)
                and pairs.shape == (*x.shape[:3], x.shape[3] // 2, 2)
                and turned.shape == x.shape
            ),
            # there is a number for each pair of a position, the same for all heads
            lambda x, cosines, sines, has_batch=has_batch: (
                cosines.shape
                == sines.shape
                == (x.shape[0] if has_batch else 1, x.shape[1], 1, x.shape[3] // 2, 1)
            ),
            lambda cosines, sines, repeated_cosines, repeated_sines: (
                repeated_cosines.shape == repeated_sines.shape == (*cosines.shape[:4], 2)
            ),
            lambda x, cosines, all_cosines, all_sines: (
                all_cosines.shape == all_sines.shape == (*cosines.shape[:2], 1, x.shape[3])
            ),
        ],
        opset=(11, None),
        inexact=True,
        target="onnxruntime",
        doc="Rotary embedding of neighbouring elements becomes RotaryEmbedding; " + which,
        seen_in="torch/gptj",
    )
    for positions, has_batch, which in (
        (constant([0]), False, "the angles are the same for a whole batch."),
        (rows_of_all(cosines), True, "each sequence has its own angles."),
    )
]
