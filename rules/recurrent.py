"""Recurrent networks: states that start at zero need not be made."""

from __future__ import annotations

from onnxfold.analysis.known import is_exactly
from onnxfold.ops import Trait, ops
from onnxfold.rewrite import Matched, op, optional, rule, values

x, w, r, b, lengths, h, c, p = values("x w r b lengths h c p")

_MOVING = ops(Trait.MOVES)


def is_zero(state: Matched) -> bool:
    """Return whether all elements are 0.0 in every run, whatever the shape is then."""
    pending = [state]
    seen: set[Matched] = set()
    while pending:
        current = pending.pop()
        if current in seen or current.facts.known.all_equal(current.value, 0.0):
            continue
        seen.add(current)
        if current.is_made_by("ConstantOfShape"):
            fill = current.node.attributes.get("value")
            if fill is not None and (fill.is_ref() or not is_exactly(fill.value.numpy(), 0.0)):
                return False
            continue
        if not current.is_made_by(*_MOVING):
            return False
        moved = current.inputs if current.is_made_by("Concat") else current.inputs[:1]
        pending.extend(each for each in moved if each is not None)
    return True


_rnn = op.any_of("GRU", "RNN")
_lstm = op.any_of("LSTM")


hidden_from_zero = rule(
    _rnn(x, w, r, optional(b), optional(lengths), h).outputs >> _rnn(x, w, r, b, lengths).outputs,
    # a state that is not given is no product
    where=lambda h, r: is_zero(h) and r.facts.known.is_finite(r.value),
    doc="An initial hidden state of GRU or RNN that is zero is omitted: zero is the default.",
    seen_in="arabic-name-romanizer/encoder",
)

lstm_hidden_from_zero = rule(
    _lstm(x, w, r, optional(b), optional(lengths), h, optional(c), optional(p)).outputs
    >> _lstm(x, w, r, b, lengths, None, c, p).outputs,
    where=lambda h: is_zero(h),
    doc="An initial hidden state of LSTM that is zero is omitted: zero is the default.",
    seen_in="silero-vad/silero_vad_16k_op15",
)

lstm_cell_from_zero = rule(
    _lstm(x, w, r, optional(b), optional(lengths), optional(h), c, optional(p)).outputs
    >> _lstm(x, w, r, b, lengths, h, None, p).outputs,
    where=lambda c: is_zero(c),
    doc="An initial cell state of LSTM that is zero is omitted: zero is the default.",
    seen_in="silero-vad/silero_vad_16k_op15",
)
