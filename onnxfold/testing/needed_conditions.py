"""Find models that show that a rule needs each of its conditions.

In such a model, only one condition is false, and the rule without this condition has a fault.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import onnx
import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import facts_of
from onnxfold.ir import storage
from onnxfold.ops import Trait, definition_of
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.rewrite import Rule
from onnxfold.rewrite.conditions import Term
from onnxfold.rewrite.driver import Rewriter
from onnxfold.rewrite.matcher import Match
from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.support.errors import OnnxFoldError
from onnxfold.testing.changes import changes
from onnxfold.testing.model_text import Example
from onnxfold.testing.running import LOOSE, NeverRuns, find_difference, remaining_nodes, rewrite

_MAX_CHANGES = 2000
"""For each rule, the maximum number of models with one change, and of models with two changes."""


class Need(NamedTuple):
    """A condition of a rule, and the reason why the rule needs the condition."""

    condition: str
    """The text of the condition."""
    location: str = ""
    """The location of a model that shows the need, or "" if no such model was found."""
    reason: str = ""
    """The fault in this model of the rule without the condition, or "" without a model."""

    def __str__(self) -> str:
        return f"{self.condition}: without it, {self.reason} ({self.location})"


def find_needs(rule: Rule, matching: Sequence[Example], refused: Sequence[Example]) -> list[Need]:
    """Return the reasons why a rule needs each of its conditions.

    Args:
        rule: The rule.
        matching: Models to which the rule applies. Their changes are tested.
        refused: Models to which the rule does not apply. They are tested without changes.

    Returns:
        One `Need` for each condition of the rule. Its location is "" if no model requires the
        condition.
    """
    if not rule.conditions:
        return []
    needs = [Need(text) for text in rule.texts[2]]
    search = _Search(rule, matching)
    for example, change_count in search.candidates(refused):
        if all(need.location for need in needs):
            break
        with contextlib.suppress(NeverRuns, OnnxFoldError, ValueError):  # the model is not valid
            for k in search.only_false_conditions(example.instance.model):
                if not needs[k].location and (fault := search.fault(k, example, change_count)):
                    needs[k] = Need(needs[k].condition, example.location, fault)
    return needs


def find_false(rule: Rule, model: onnx.ModelProto) -> str:
    """Return a text about a condition of a rule that is false in a model, or "".

    The pattern of the rule matches, but the condition is false for this match.
    """
    search = _Search(rule, ())
    search.only_false_conditions(model)
    false_conditions = [rule.texts[2][min(each)] for each in search.probe.false_sets if each]
    return f"{false_conditions[0]} is false or not known" if false_conditions else ""


class _Probe(Term):
    """A condition that is always false, and that records which conditions of a rule are false.

    The conditions of the rule are not operands of the probe, so that they are evaluated after the
    complete pattern has matched.
    """

    conditions: Sequence[Term]
    """The conditions of the rule."""
    false_sets: set[frozenset[int]]
    """The indices of the false conditions, for each match."""

    def evaluate(self, match: Match) -> bool:
        false_conditions = set()
        for k, condition in enumerate(self.conditions):
            # a condition can raise an error if another one is false
            with contextlib.suppress(Exception):
                if not match.holds(condition):
                    false_conditions.add(k)
        self.false_sets.add(frozenset(false_conditions))
        return False


class _Search:
    """The search for models in which only one condition of a rule is false."""

    def __init__(self, rule: Rule, matching: Sequence[Example]) -> None:
        self._rule = rule
        self._matching = matching
        self.probe = _Probe(all)
        self.probe.conditions = rule.conditions
        self.probe.false_sets = set()
        self._probing = replace(rule, conditions=(self.probe,))
        conditions = rule.conditions
        self._rules_without = [
            replace(rule, conditions=conditions[:k] + conditions[k + 1 :])
            for k in range(len(conditions))
        ]
        """For each condition, the rule without this condition."""
        costs = [
            (_cost(ir.from_proto(example.instance.model)), _cost(rewritten.model))
            for example in matching
            if (rewritten := rewrite([rule], example.instance.model)).report.counts
        ]
        growths = ([b - a for a, b in zip(*pair, strict=True)] for pair in costs)
        self._usual_growth = [max(growth) for growth in zip(*growths, strict=True)]
        """The largest growth of nodes, products and bytes in models to which the rule applies."""

    def candidates(self, refused: Sequence[Example]) -> Iterator[tuple[Example, int]]:
        """Yield examples and the number of changes in each example.

        The refused examples are the first ones. They have no changes. Matching examples with one
        change follow, alternating between the examples. Matching examples with two changes are the
        last ones.
        """
        yield from ((example, 0) for example in refused)
        changes_by_example = [
            [(each, change) for change in changes(each)] for each in self._matching
        ]
        alternating = itertools.chain.from_iterable(itertools.zip_longest(*changes_by_example))
        for example, change in itertools.islice(filter(None, alternating), _MAX_CHANGES):
            yield example.changed(change), 1
        rng = random.Random(0)
        for _ in range(_MAX_CHANGES):
            (example, first), (_, second) = rng.sample(rng.choice(changes_by_example), 2)
            yield example.changed(f"{first}; {second}"), 2

    def only_false_conditions(self, model: onnx.ModelProto) -> set[int]:
        """Return the index of each condition that is the only false condition of a match.

        The result is empty if all conditions of a match are true, so that the rule applies.
        """
        self.probe.false_sets = set()
        Rewriter(ir.from_proto(model), [self._probing], level=2).run()
        false_sets = self.probe.false_sets
        if frozenset() in false_sets:
            return set()
        return {k for k, *others in false_sets if not others}

    def fault(self, k: int, example: Example, change_count: int) -> str:
        """Return the fault of the rule without a condition in an example, or "" without a fault.

        Args:
            k: The index of the condition.
            example: The model.
            change_count: The number of changes in the model.

        Raises:
            NeverRuns: onnxruntime does not run the model.
            OnnxFoldError, ValueError: The example is not valid.
        """
        rule = self._rules_without[k]
        instance = example.instance
        rewritten = rewrite([rule], instance.model)
        report = rewritten.report
        if not (report.counts or report.rejected or report.failed_on_invalid):
            return ""
        find_difference(instance, instance.model)  # raises NeverRuns if the example does not run
        fault = rewritten.find_fault(instance, example.tolerance or LOOSE)
        if fault or change_count > 1:  # with two changes, either can be the cause of higher costs
            return fault
        before = _cost(ir.from_proto(instance.model))
        after = _cost(rewritten.model)
        for unit, old, new, usual_growth in zip(
            ("nodes", "products", "bytes"), before, after, self._usual_growth, strict=True
        ):
            if new > old + max(usual_growth, 0):
                return f"{old} {unit} become {new}"
        if before[0] == after[0] > before[0] + self._usual_growth[0]:
            return f"the rule removes none of the {after[0]} nodes"
        if not change_count:
            expected = self._remaining_nodes(self._rule, instance.model)
            actual = self._remaining_nodes(rule, instance.model)
            if actual > expected:
                return f"{actual} nodes remain after all rules, not {expected}"
        return ""

    def _remaining_nodes(self, rule: Rule, model: onnx.ModelProto) -> int:
        """Return the number of nodes after a variant of the rule and all other built-in rules.

        Nodes with constant results and nodes of subgraphs are not counted.
        """
        rules = [rule]
        for rule_set in builtin_rule_sets():
            rules += [other for other in rule_set if other is not self._rule]
        return len(remaining_nodes(rewrite(rules, model, levels=(2,)).model))


def _multiplies(node: ir.Node) -> bool:
    """Return whether a node computes a product, a convolution or an attention."""
    traits = definition_of(node).traits
    return bool(traits & (Trait.MULTIPLIES | Trait.CONVOLVES | Trait.ATTENDS))


def _cost(model: ir.Model) -> tuple[int, int, int]:
    """Remove dead code from a model, and return its costs.

    Returns:
        The number of nodes that depend on inputs, the number of products among them, and the bytes
        of all initializers.
    """
    RemoveDeadCode()(model)
    constness = facts_of(model).constness
    nodes = [
        node
        for node in model.graph
        if any(constness.of(value) is Constness.VARIABLE for value in node.outputs)
    ]
    products = sum(map(_multiplies, nodes))
    nbytes = sum(tensor.nbytes for _, tensor in storage.initializers_of(model.graph))
    return len(nodes), products, nbytes
