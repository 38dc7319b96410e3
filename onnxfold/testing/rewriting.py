"""Models as rules leave them, and what can be wrong with them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import onnx
import onnx_ir as ir
from onnx import helper

from onnxfold.analysis.facts import facts_of
from onnxfold.onnxruntime_sessions import message_of
from onnxfold.options import Level, Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import Rule, RuleSet
from onnxfold.rewrite.driver import RewriteReport
from onnxfold.testing.running import Instance, NeverRuns, find_difference

LOOSE = 0.05
"""The error that an inexact rule may have on a changed example: dtypes can be narrow there."""


class Rewritten(NamedTuple):
    """A model as rules leave it.

    Args:
        model: The model.
        report: What was done.
        level: The level at which the rules applied.
    """

    model: ir.Model
    report: RewriteReport
    level: int

    def find_fault(self, before: Instance, tolerance: float) -> str:
        """Return what is wrong with the model; "" if nothing is.

        Args:
            before: The model before it was rewritten.
            tolerance: The largest error of an inexact rule, relative to the largest element.

        Raises:
            NeverRuns: onnxruntime does not run the model before.
        """
        for found, what in (
            (self.report.rejected, "the result has another dtype or shape"),
            (self.report.failed_on_invalid, "the rule raises an exception"),
            (self.report.loops, "the rules undo each other for ever"),
        ):
            if found:
                return what
        after = ir.to_proto(self.model)
        if invalid := _invalid(after):
            if _invalid(before.model):
                raise NeverRuns
            return f"the model is not valid: {invalid}"
        return find_difference(before, after, tolerance * (self.level > 1))


def _invalid(model: onnx.ModelProto) -> str:
    """Return why onnx refuses a model; "" if it does not."""
    checked = copy.deepcopy(model)
    for output in checked.graph.output:  # the checker wants a type, whichever
        output.CopyFrom(helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, []))
    try:
        onnx.checker.check_model(checked)
    except onnx.checker.ValidationError as error:
        return message_of(error)
    return ""


def nodes_left(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of the main graph that do not depend on constants alone."""
    known = facts_of(model).known
    return [node for node in model.graph if not all(map(known.is_constant, node.outputs))]


def rewrite(
    rules: Sequence[Rule], model: onnx.ModelProto, levels: Sequence[Level] = (1, 2)
) -> Rewritten:
    """Apply rules of one target to a model, at the first of these levels at which one applies."""
    for level in levels:
        rewritten = ir.from_proto(model)
        options = Options(level=level, target=cast(Any, rules[0].target))
        simplify = Simplify([RuleSet("tested", tuple(rules))], options=options)
        simplify(rewritten)
        if simplify.report.total:
            break
    return Rewritten(rewritten, simplify.report, level)
