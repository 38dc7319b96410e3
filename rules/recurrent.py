"""Recurrent networks: states that start at zero need not be made."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.rewrite import op, optional, outputs, rule, values
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.rule import Rule

x, w, r, b, lengths, h, c, p = values("x w r b lengths h c p")

# Ops that give zeros of some shape for zeros of another.
_KEEP_ZEROS = frozenset(
    (
        *("Slice", "Expand", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Tile"),
        *("Split", "Gather", "Flatten"),
    )
)


def _is_zero(value: ir.Value | None) -> bool:
    """True for zeros in a shape that is known when the model runs."""
    node = value.producer() if value is not None else None
    while node is not None and node.domain == "" and node.op_type in _KEEP_ZEROS:
        first = node.inputs[0]
        node = first.producer() if first is not None else None
    if node is None or node.domain != "" or node.op_type != "ConstantOfShape":
        return False
    fill = node.attributes.get("value")
    if fill is None:
        return True
    if fill.is_ref():
        return False
    array = np.asarray(fill.value.numpy())
    return not array.any() and not np.signbit(array).any()


def _hidden_is_zero(match: Match) -> bool:
    return _is_zero(match[h])


def _cell_is_zero(match: Match) -> bool:
    return _is_zero(match[c])


_rnn = op.any_of("GRU", "RNN")
_lstm = op.any_of("LSTM")


def _state(given: Any, made: Any, most: int, where: Any, doc: str) -> list[Rule]:
    """The same rule for nodes that give one, two, ... of their results."""
    return [
        rule(
            outputs(*(given[k] for k in range(n))) >> outputs(*(made[k] for k in range(n))),
            where=where,
            doc=doc,
        )
        for n in range(most, 0, -1)
    ]


hidden_from_zero = _state(
    _rnn(x, w, r, optional(b), optional(lengths), h),
    _rnn(x, w, r, b, lengths),
    2,
    _hidden_is_zero,
    "The hidden state of GRU and RNN is zero at first if it is not given.",
)

lstm_hidden_from_zero = _state(
    _lstm(x, w, r, optional(b), optional(lengths), h, optional(c), optional(p)),
    _lstm(x, w, r, b, lengths, None, c, p),
    3,
    _hidden_is_zero,
    "The hidden state of an LSTM is zero at first if it is not given.",
)

lstm_cell_from_zero = _state(
    _lstm(x, w, r, optional(b), optional(lengths), optional(h), c, optional(p)),
    _lstm(x, w, r, b, lengths, h, None, p),
    3,
    _cell_is_zero,
    "The cell state of an LSTM is zero at first if it is not given.",
)
