"""Omit initial states of recurrent networks that are zero."""

from __future__ import annotations

from onnxfold.rewrite import op, optional, rule, where


@rule(seen_in="arabic-name-romanizer/encoder")
def hidden_from_zero(x, w, r, b, lengths, h):
    """An initial hidden state of GRU or RNN that is zero is omitted: zero is the default."""
    rnn = op.any_of("GRU", "RNN")
    before = rnn(x, w, r, optional(b), optional(lengths), h)
    # an omitted state takes no product
    return before.outputs >> rnn(x, w, r, b, lengths).outputs, where(
        h.is_positive_zeros, r.is_finite
    )


@rule(
    each={
        "lstm_hidden_from_zero": (
            *(False, "An initial hidden state of LSTM that is zero is omitted: it is the default."),
        ),
        "lstm_cell_from_zero": (
            *(True, "An initial cell state of LSTM that is zero is omitted: it is the default."),
        ),
    },
    seen_in="silero-vad/silero_vad_16k_op15",
)
def lstm_from_zero(x, w, r, b, lengths, h, c, p, is_cell, doc):
    """An initial state of LSTM that is zero is omitted."""
    lstm = op("LSTM")
    states = (optional(h), c) if is_cell else (h, optional(c))
    before = lstm(x, w, r, optional(b), optional(lengths), *states, optional(p))
    kept = (h, None) if is_cell else (None, c)
    return before.outputs >> lstm(x, w, r, b, lengths, *kept, p).outputs, where(
        (c if is_cell else h).is_positive_zeros
    )
