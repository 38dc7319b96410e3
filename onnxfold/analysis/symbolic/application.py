"""What an op makes of facts: what its kernel computes, the table's rule says, or onnx infers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic import table
from onnxfold.analysis.symbolic.expression import Algebra
from onnxfold.analysis.symbolic.fact import MOST_ELEMENTS, Array, Fact, Shape, of_array
from onnxfold.analysis.symbolic.inference import Inference, attributes_key
from onnxfold.analysis.symbolic.table import Application, Undecided
from onnxfold.kernels.registry import AllocationBound, NotExact, Postpone, Unfoldable
from onnxfold.kernels.registry import find as find_kernel

_MOST_BYTES = 1 << 12
# What a rule raises for a node that makes no sense: an axis that is not there, a list of lists.
_SENSELESS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

Results = Sequence[Fact]


class Applications:
    """Applies ops to facts; for ops and operands that look alike, once.

    Args:
        algebra: Of the model's expressions.
    """

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._inference = Inference(algebra)
        self._facts: dict[tuple[int | None, Shape | None], Fact] = {}
        self._found: dict[tuple[Any, ...], Results] = {}

    def typed(self, dtype: ir.DataType | None, shape: Shape | None) -> Fact:
        """The one fact that says no more than these."""
        key = (None if dtype is None else dtype._value_, shape)
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = Fact(dtype, shape)
        return found

    def shared(self, fact: Fact) -> Fact:
        """The one fact that says the same, if it speaks of dtype and shape only."""
        if fact.items is None and fact.other is None:
            return self.typed(fact.dtype, fact.shape)
        return fact

    def results(
        self,
        node: ir.Node,
        inputs: Sequence[Fact | None],
        attributes: Mapping[str, Any] | None,
        opsets: Mapping[str, int],
    ) -> Results:
        """The facts of a node's outputs.

        Args:
            node: A node without subgraphs, of an op that is no function of the model.
            inputs: What is known of its inputs; None for one that is omitted.
            attributes: Python values where a caller supplies some of them, or None.
            opsets: Domain to version.
        """
        domain = node.domain
        shown = inputs
        if domain == "" and inputs and _all_known(inputs):
            computed = _computed(self._application(node, inputs, attributes, opsets))
            if computed is not None:
                return computed
        rule = table.find(node.op_type, domain)
        if rule is not None and not table.reads_floats(node.op_type):
            shown = self._without_floats(inputs)
        key = None
        if attributes is None:
            written = attributes_key(node)
            if written is not None:
                version = opsets.get(domain)
                key = (node.op_type, domain, version, len(node.outputs), written, *shown)
                found = self._found.get(key)
                if found is not None:
                    return found
        unnamed = self._algebra.unnamed
        results, looked_closer = self._decide(node, rule, shown, inputs, attributes, opsets)
        results = [self.shared(fact) for fact in results]
        # what is new each time, or depends on more than the key says, is not the same next time
        if key is not None and not looked_closer and unnamed == self._algebra.unnamed:
            self._found[key] = results
        return results

    def _without_floats(self, inputs: Sequence[Fact | None]) -> Sequence[Fact | None]:
        for fact in inputs:
            if fact is not None and fact.items is not None and fact.items.dtype.kind == "f":
                return [f if f is None or not _has_floats(f) else self._plain(f) for f in inputs]
        return inputs

    def _plain(self, fact: Fact) -> Fact:
        return self.typed(fact.dtype, fact.shape)

    def _decide(
        self,
        node: ir.Node,
        rule: table.Rule | None,
        shown: Sequence[Fact | None],
        inputs: Sequence[Fact | None],
        attributes: Mapping[str, Any] | None,
        opsets: Mapping[str, int],
    ) -> tuple[Results, bool]:
        """The results, and whether they depend on elements that ``shown`` leaves out."""
        looked_closer = False
        if node.domain == "" and node.op_type == "CastLike":
            computed = _computed_cast(self._application(node, inputs, attributes, opsets))
            if computed is not None:
                return computed, True
        if rule is not None:
            try:
                return rule(self._application(node, shown, attributes, opsets)), False
            except (Undecided, *_SENSELESS):
                looked_closer = any(a is not b for a, b in zip(shown, inputs, strict=True))
        return self._inference.infer(node, inputs, opsets), looked_closer

    def _application(
        self,
        node: ir.Node,
        inputs: Sequence[Fact | None],
        attributes: Mapping[str, Any] | None,
        opsets: Mapping[str, int],
    ) -> Application:
        if attributes is None:
            attributes = (
                {name: python_value(a) for name, a in node.attributes.items()}
                if node.attributes
                else {}
            )
        return Application(
            node.op_type, inputs, attributes, opsets.get("", 1), len(node.outputs), self._algebra
        )


def python_value(attribute: ir.Attr) -> Any:
    """An attribute's value; a tensor as an array."""
    value = attribute.value
    return value.numpy() if attribute.type == ir.AttributeType.TENSOR else value


def _all_known(inputs: Sequence[Fact | None]) -> bool:
    for fact in inputs:
        if fact is not None and (fact.items is None or fact.items.dtype == object):
            return False
    return True


def _has_floats(fact: Fact) -> bool:
    return fact.items is not None and fact.items.dtype.kind == "f"


def _computed_cast(application: Application) -> Results | None:
    """A known value cast to the dtype of another one, which need not be known."""
    value, like = application.input(0), application.input(1)
    if value is None or like is None or like.dtype is None or value.known is None:
        return None
    attributes = {**application.attributes, "to": like.dtype.value}
    return _computed(
        Application("Cast", [value], attributes, application.opset, 1, application.algebra)
    )


def _computed(application: Application) -> Results | None:
    """The results if all operands are known and small: what the op's kernel computes."""
    if application.op_type == "CastLike":
        return _computed_cast(application)
    kernel = find_kernel(application.op_type, application.opset)
    if kernel is None:
        return None
    arrays: list[Array | None] = [None if f is None else f.known for f in application.inputs]
    try:
        with AllocationBound(_MOST_BYTES), np.errstate(all="ignore"):
            results = kernel(
                arrays,
                dict(application.attributes),
                n_outputs=application.n_outputs,
                opset=application.opset,
            )
    except (NotExact, Unfoldable, Postpone):
        return None
    if any(r.size > MOST_ELEMENTS or r.dtype.kind not in "fiub" for r in results):
        return None
    return [of_array(r, ir.DataType.from_numpy(r.dtype)) for r in results]
