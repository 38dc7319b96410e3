"""The prediction: from bytes played through to memory and bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.forecast.computing import Computing
from onnxfold.forecast.prediction import Prediction
from onnxfold.forecast.writing import Writing
from onnxfold.memory import rss_bytes
from onnxfold.options import Options
from onnxfold.passes.cut import Cut
from onnxfold.pool import Buffer, Pool

# Memory, measured on CPython 3.11 on Linux (bytes).
_RULES = 10 << 20  # what rules, symbolic shapes and writing import and make once
_PER_NODE = 3_000  # what passes know of a node that is left
_ONNXRUNTIME = 26 << 20  # importing it, and a session
_CHECK = 44 << 20  # running two models on it, besides their weights, one model at a time


def predict(
    model: ir.Model,
    cut: Cut,
    pool: Pool,
    computed_first: Sequence[Buffer],
    options: Options,
    *,
    bytes_before: int,
    share_weights: bool = False,
    check: bool = False,
) -> Prediction:
    """What a run will take.

    Args:
        model: The model, before anything of it was rewritten.
        cut: What will be stored and removed.
        pool: The pool that holds the buffers.
        computed_first: Buffers that are computed as a whole before anything is rewritten.
        options: What the run does.
        bytes_before: Stored bytes of the model.
        share_weights: Whether unchanged weights stay where they are.
        check: Whether both models run on onnxruntime before the end.
    """
    computing = Computing(pool.memory_limit)
    computing.compute(computed_first)
    writing = Writing(computing, share_weights=share_weights)
    removed = set(cut.removed)
    writing.stored(cut.stored, pool)
    writing.unchanged(model, removed)
    left = max(0, writing.nodes - writing.constants - len(removed))
    levels = 1 if options.level > 0 else 0
    memory = {
        "now": rss_bytes(),
        "modules": levels * _RULES,
        "graph": left * _PER_NODE,
        "computing": computing.peak,
        "writing": computing.live + writing.peak,
        "check": _CHECK + bytes_before if check else 0,
    }
    asked = computing.by_onnxruntime or (levels and cut.left_to_onnxruntime)
    if asked and "onnxruntime" not in sys.modules:
        memory["modules"] += _ONNXRUNTIME
    held = memory["now"] + memory["modules"] + memory["graph"]
    structure = (
        max(0, bytes_before - writing.came) * left // max(1, writing.nodes - writing.constants)
    )
    return Prediction(
        peak_bytes=held + max(memory[part] for part in ("computing", "writing", "check")),
        bytes_read=writing.read + computing.read,
        bytes_written=writing.written + structure,
        bytes_spilled=computing.spilled,
        memory=memory,
    )
