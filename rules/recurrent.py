"""Recurrent networks: states that start at zero need not be made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.known import is_exactly
from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Kind, NotExact, Postpone, Unfoldable, find
from onnxfold.rewrite import Matched, op, optional, rule, values
from onnxfold.rewrite.facts import Facts

x, w, r, b, lengths, h, c, p = values("x w r b lengths h c p")


def _is_zero(state: Matched) -> bool:
    """True for zeros, none of them negative, in whatever shape they have when the model runs."""
    facts = state.facts
    pending = [state.value]
    seen: set[ir.Value] = set()
    while pending:
        current = pending.pop()
        if current in seen or facts.known.all_equal(current, 0.0):
            continue
        seen.add(current)
        node = current.producer()
        if node is None or not facts.is_op(node, ""):
            return False
        if node.op_type == "ConstantOfShape":
            if not _fills_with_zero(node):
                return False
            continue
        operands = _kept_operands(facts, node, current)
        if not operands:
            return False
        pending.extend(operands)
    return True


def _fills_with_zero(node: ir.Node) -> bool:
    fill = node.attributes.get("value")
    if fill is None:
        return True
    return not fill.is_ref() and is_exactly(np.asarray(fill.value.numpy()), 0.0)


def _kept_operands(facts: Facts, node: ir.Node, output: ir.Value) -> Sequence[ir.Value]:
    """The operands of which the result has only zeros if they have; none if it need not."""
    return _moved_operands(facts, node, output) or _zero_preserving_operand(facts, node)


def _moved_operands(facts: Facts, node: ir.Node, output: ir.Value) -> Sequence[ir.Value]:
    """What a node makes its result of, if it only moves elements.

    Such an op takes strings as well as numbers, so it cannot compute with them; its other operands
    are positions, sizes and conditions: no numbers that it might weigh elements with.
    """
    schema = facts.schema(node)
    if schema is None or any(True for _ in subgraphs_of(node)):
        return ()
    made = schema.outputs[min(output.index() or 0, len(schema.outputs) - 1)]
    if not schema.inputs or made.type_str != schema.inputs[0].type_str:
        return ()
    if not {"tensor(string)", "tensor(float)"} <= set(made.types):
        return ()
    operands = []
    for k, value in enumerate(node.inputs):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if formal.type_str == made.type_str:
            operands.extend([] if value is None else [value])
        elif not all(kind.startswith(_COUNTING) for kind in formal.types):
            return ()
    return operands


_COUNTING = ("tensor(int", "tensor(uint", "tensor(bool")


def _zero_preserving_operand(facts: Facts, node: ir.Node) -> Sequence[ir.Value]:
    """The operand of an element-wise op that makes 0.0 of 0.0: its kernel says so."""
    kernel = find(node.op_type, facts.opset(node))
    operand = node.inputs[0] if len(node.inputs) == 1 else None
    dtype = None if operand is None else facts.types.of(operand).dtype
    if kernel is None or operand is None or dtype is None:
        return ()
    operation = Operation(node, [None], facts.scopes.of(_graph_of(node)).opsets)
    zero = np.zeros((), dtype.numpy())
    if kernel.kind_for([zero.dtype], operation.attributes) is not Kind.ELEMENTWISE:
        return ()
    try:
        (made,) = kernel([zero], operation.attributes, n_outputs=1, opset=operation.opset)
    except (NotExact, Unfoldable, Postpone):
        return ()
    return [operand] if is_exactly(made, 0.0) else ()


def _graph_of(node: ir.Node) -> ir.Graph:
    assert node.graph is not None
    return node.graph


_rnn = op.any_of("GRU", "RNN")
_lstm = op.any_of("LSTM")


hidden_from_zero = rule(
    _rnn(x, w, r, optional(b), optional(lengths), h).outputs >> _rnn(x, w, r, b, lengths).outputs,
    # a state that is not given is no product
    where=lambda h, r: _is_zero(h) and r.facts.known.is_finite(r.value),
    doc="The hidden state of GRU and RNN is zero at first if it is not given.",
    seen_in="arabic-name-romanizer/encoder",
)

lstm_hidden_from_zero = rule(
    _lstm(x, w, r, optional(b), optional(lengths), h, optional(c), optional(p)).outputs
    >> _lstm(x, w, r, b, lengths, None, c, p).outputs,
    where=lambda h: _is_zero(h),
    doc="The hidden state of an LSTM is zero at first if it is not given.",
    seen_in="silero-vad/silero_vad_16k_op15",
)

lstm_cell_from_zero = rule(
    _lstm(x, w, r, optional(b), optional(lengths), optional(h), c, optional(p)).outputs
    >> _lstm(x, w, r, b, lengths, h, None, p).outputs,
    where=lambda c: _is_zero(c),
    doc="The cell state of an LSTM is zero at first if it is not given.",
    seen_in="silero-vad/silero_vad_16k_op15",
)
