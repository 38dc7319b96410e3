"""Recurrent networks: states that start at zero need not be made."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.analysis.known import is_exactly
from onnxfold.graphs import subgraphs_of
from onnxfold.rewrite import Matched, op, optional, rule, values

x, w, r, b, lengths, h, c, p = values("x w r b lengths h c p")


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
        operands = _moved_operands(current)
        if not operands:
            return False
        pending.extend(operands)
    return True


def _moved_operands(moved: Matched) -> Sequence[Matched]:
    """Return what a node makes its result of if it only moves elements.

    Such an op takes strings as well as numbers, so it cannot compute with them; its other operands
    are positions, sizes and conditions: no numbers that it might weigh elements with.
    """
    node = moved.value.producer()
    schema = None if node is None else moved.facts.schema(node)
    if node is None or schema is None or not schema.inputs or any(True for _ in subgraphs_of(node)):
        return ()
    made = schema.outputs[min(moved.value.index() or 0, len(schema.outputs) - 1)]
    if made.type_str != schema.inputs[0].type_str:
        return ()
    if not moved.facts.is_op(node, "") or not {"tensor(string)", "tensor(float)"} <= set(
        made.types
    ):
        return ()
    operands = []
    for k, operand in enumerate(moved.inputs):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if formal.type_str != made.type_str:
            if not all(kind.startswith(_COUNTING) for kind in formal.types):
                return ()
        elif operand is not None:
            operands.append(operand)
    return operands


_COUNTING = ("tensor(int", "tensor(uint", "tensor(bool")

_rnn = op.any_of("GRU", "RNN")
_lstm = op.any_of("LSTM")


hidden_from_zero = rule(
    _rnn(x, w, r, optional(b), optional(lengths), h).outputs >> _rnn(x, w, r, b, lengths).outputs,
    # a state that is not given is no product
    where=lambda h, r: is_zero(h) and r.facts.known.is_finite(r.value),
    doc="The hidden state of GRU and RNN is zero at first if it is not given.",
    seen_in="arabic-name-romanizer/encoder",
)

lstm_hidden_from_zero = rule(
    _lstm(x, w, r, optional(b), optional(lengths), h, optional(c), optional(p)).outputs
    >> _lstm(x, w, r, b, lengths, None, c, p).outputs,
    where=lambda h: is_zero(h),
    doc="The hidden state of an LSTM is zero at first if it is not given.",
    seen_in="silero-vad/silero_vad_16k_op15",
)

lstm_cell_from_zero = rule(
    _lstm(x, w, r, optional(b), optional(lengths), optional(h), c, optional(p)).outputs
    >> _lstm(x, w, r, b, lengths, h, None, p).outputs,
    where=lambda c: is_zero(c),
    doc="The cell state of an LSTM is zero at first if it is not given.",
    seen_in="silero-vad/silero_vad_16k_op15",
)
