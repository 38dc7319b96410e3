"""The search for models that show that a rule needs each of its conditions.

In such a model, only the condition is false, and the rule without the condition has a fault.
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
from onnxfold.testing.running import LOOSE, NeverRuns, find_difference, nodes_left, rewrite

_MAX_CHANGES = 2000
"""Maximum number of changed models to test for a rule, and of models with two changes."""


class Need(NamedTuple):
    """The reason why a rule needs a condition."""

    condition: str
    place: str = ""
    """The place of a model in which only the condition is false, or "" if none was found."""
    reason: str = ""
    """The fault of the rule without the condition."""

    def __str__(self) -> str:
        return f"{self.condition}: without it, {self.reason} ({self.place})"


def find_needs(rule: Rule, matching: Sequence[Example], others: Sequence[Example]) -> list[Need]:
    """Return the reasons why a rule needs each of its conditions.

    Args:
        rule: The rule.
        matching: Models to which the rule applies. Their changes are tested.
        others: Models to which the rule does not apply. They are tested without changes.
    """
    if not rule.conditions:
        return []
    found = [Need(text) for text in rule.texts[2]]
    search = _Search(rule, matching)
    for example, changed in search.candidates(others):
        if all(need.place for need in found):
            break
        with contextlib.suppress(NeverRuns, OnnxFoldError, ValueError):  # the model is not valid
            for k in search.false_alone(example.instance.model):
                if not found[k].place and (fault := search.fault(k, example, changed)):
                    found[k] = Need(found[k].condition, example.place, fault)
    return found


def find_false(rule: Rule, model: onnx.ModelProto) -> str:
    """Return a text about the first condition of a rule that is false in a model, or ""."""
    search = _Search(rule, ())
    search.false_alone(model)
    false_conditions = [rule.texts[2][min(each)] for each in search.probe.found if each]
    return f"{false_conditions[0]} is false or not known" if false_conditions else ""


class _Probe(Term):
    """A condition that is always false and records the other conditions that are false.

    The other conditions are not operands, so that they are evaluated after the complete pattern
    has matched.
    """

    conditions: Sequence[Term]
    found: set[frozenset[int]]

    def evaluate(self, match: Match) -> bool:
        false_conditions = set()
        for k, condition in enumerate(self.conditions):
            # a condition can raise an error if another one is false
            with contextlib.suppress(Exception):
                if not match.holds(condition):
                    false_conditions.add(k)
        self.found.add(frozenset(false_conditions))
        return False


class _Search:
    """The search for models in which only one condition of a rule is false."""

    def __init__(self, rule: Rule, matching: Sequence[Example]) -> None:
        self._rule = rule
        self._matching = matching
        self.probe = _Probe(all)
        self.probe.conditions = rule.conditions
        self.probe.found = set()
        self._probing = replace(rule, conditions=(self.probe,))
        every = rule.conditions
        self._without = [
            replace(rule, conditions=every[:k] + every[k + 1 :]) for k in range(len(every))
        ]
        costs = [
            (_cost(ir.from_proto(example.instance.model)), _cost(made.model))
            for example in matching
            if (made := rewrite([rule], example.instance.model)).report.counts
        ]
        growths = ([b - a for a, b in zip(*pair, strict=True)] for pair in costs)
        self._usual_growth = [max(each) for each in zip(*growths, strict=True)]
        """The largest growth of nodes, products and bytes in models to which the rule applies."""

    def candidates(self, others: Sequence[Example]) -> Iterator[tuple[Example, int]]:
        """Yield examples and the number of changes in each.

        First come ``others``, then changes of the matching examples in turn, then pairs of changes.
        """
        yield from ((example, 0) for example in others)
        every = [[(each, change) for change in changes(each)] for each in self._matching]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*every))
        for example, change in itertools.islice(filter(None, turns), _MAX_CHANGES):
            yield example.changed(change), 1
        rng = random.Random(0)
        for _ in range(_MAX_CHANGES):
            (example, one), (_, other) = rng.sample(rng.choice(every), 2)
            yield example.changed(f"{one}; {other}"), 2

    def false_alone(self, model: onnx.ModelProto) -> set[int]:
        """Return the conditions that are the only false one of a match.

        The result is empty if the rule matches.
        """
        self.probe.found = set()
        Rewriter(ir.from_proto(model), [self._probing], level=2).run()
        found = self.probe.found
        return set() if frozenset() in found else {k for k, *more in found if not more}

    def fault(self, k: int, example: Example, changed: int) -> str:
        """Return the fault of the rule without a condition in an example, or ""."""
        rule = self._without[k]
        instance = example.instance
        made = rewrite([rule], instance.model)
        report = made.report
        if not (report.counts or report.rejected or report.failed_on_invalid):
            return ""
        find_difference(instance, instance.model)
        fault = made.find_fault(instance, example.tolerance or LOOSE)
        if fault or changed > 1:  # with two changes, either can be the cause of higher costs
            return fault
        before = _cost(ir.from_proto(instance.model))
        after = _cost(made.model)
        for unit, old, new, usual in zip(
            ("nodes", "products", "bytes"), before, after, self._usual_growth, strict=True
        ):
            if new > old + max(usual, 0):
                return f"{old} {unit} become {new}"
        if before[0] == after[0] > before[0] + self._usual_growth[0]:
            return f"the rule removes none of the {after[0]} nodes"
        if not changed:
            every = [r for found in builtin_rule_sets() for r in found if r is not self._rule]
            with_it, without = (
                len(nodes_left(rewrite([each, *every], instance.model, levels=(2,)).model))
                for each in (self._rule, rule)
            )
            if without > with_it:
                return f"{without} nodes remain after all rules, not {with_it}"
        return ""


def _multiplies(node: ir.Node) -> bool:
    """Return whether a node computes a product, a convolution or an attention."""
    traits = definition_of(node).traits
    return bool(traits & (Trait.MULTIPLIES | Trait.CONVOLVES | Trait.ATTENDS))


def _cost(model: ir.Model) -> tuple[int, int, int]:
    """Return the nodes that depend on inputs, the products among them, and the stored bytes."""
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
