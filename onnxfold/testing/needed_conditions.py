"""Whether a rule needs each of its conditions: a model in which that one alone is false, and what
goes wrong there without it.
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

_MOST_CHANGES = 2000
"""Changed models to look at for a rule, and as many with two changes."""


class Need(NamedTuple):
    """Why a rule needs a condition."""

    condition: str
    place: str = ""
    """A model in which it alone is false; "" if none was found."""
    reason: str = ""
    """What goes wrong there without the condition."""

    def __str__(self) -> str:
        return f"{self.condition}: without it, {self.reason} ({self.place})"


def find_needs(rule: Rule, matching: Sequence[Example], others: Sequence[Example]) -> list[Need]:
    """Return why a rule needs each of its conditions; changes of the matching examples show it."""
    if not rule.conditions:
        return []
    found = [Need(text) for text in rule.texts[2]]
    search = _Search(rule, matching)
    for example, changed in search.candidates(others):
        if all(need.place for need in found):
            break
        with contextlib.suppress(NeverRuns, OnnxFoldError, ValueError):  # it is no model
            for k in search.false_alone(example.instance.model):
                if not found[k].place and (fault := search.fault(k, example, changed)):
                    found[k] = Need(found[k].condition, example.place, fault)
    return found


def find_false(rule: Rule, model: onnx.ModelProto) -> str:
    """Return the first condition of a rule that is false in a model; "" if none is."""
    search = _Search(rule, ())
    search.false_alone(model)
    wrong = [rule.texts[2][min(each)] for each in search.probe.found if each]
    return f"{wrong[0]} is false or not known" if wrong else ""


class _Probe(Term):
    """A condition that is never true, and records which of others are false.

    The others are no operands, so that the whole pattern matches before they are evaluated.
    """

    conditions: Sequence[Term]
    found: set[frozenset[int]]

    def evaluate(self, match: Match) -> bool:
        wrong = set()
        for k, condition in enumerate(self.conditions):
            with contextlib.suppress(Exception):  # another condition, which is false, rules it out
                if not match.holds(condition):
                    wrong.add(k)
        self.found.add(frozenset(wrong))
        return False


class _Search:
    """The search for models in which one condition of a rule alone is false."""

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
        self._usual = [max(each) for each in zip(*growths, strict=True)]
        """By how much the rule lets nodes, products and bytes grow where it applies."""

    def candidates(self, others: Sequence[Example]) -> Iterator[tuple[Example, int]]:
        """Yield examples with the number of changes in each: those that are given, changes of
        those to which the rule applies, one of each in turn, and pairs of changes.
        """
        yield from ((example, 0) for example in others)
        every = [[(each, change) for change in changes(each)] for each in self._matching]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*every))
        for example, change in itertools.islice(filter(None, turns), _MOST_CHANGES):
            yield example.changed(change), 1
        rng = random.Random(0)
        for _ in range(_MOST_CHANGES):
            (example, one), (_, other) = rng.sample(rng.choice(every), 2)
            yield example.changed(f"{one}; {other}"), 2

    def false_alone(self, model: onnx.ModelProto) -> set[int]:
        """Return the conditions that alone prevent a match; none if the rule matches."""
        self.probe.found = set()
        Rewriter(ir.from_proto(model), [self._probing], level=2).run()
        found = self.probe.found
        return set() if frozenset() in found else {k for k, *more in found if not more}

    def fault(self, k: int, example: Example, changed: int) -> str:
        """Return what goes wrong in an example without a condition."""
        rule = self._without[k]
        instance = example.instance
        made = rewrite([rule], instance.model)
        report = made.report
        if not (report.counts or report.rejected or report.failed_on_invalid):
            return ""
        find_difference(instance, instance.model)
        fault = made.find_fault(instance, example.tolerance or LOOSE)
        if fault or changed > 1:  # what costs may be because of the other change
            return fault
        before = _cost(ir.from_proto(instance.model))
        after = _cost(made.model)
        for what, old, new, usual in zip(
            ("nodes", "products", "bytes"), before, after, self._usual, strict=True
        ):
            if new > old + max(usual, 0):
                return f"{old} {what} become {new}"
        if before[0] == after[0] > before[0] + self._usual[0]:
            return f"{after[0]} nodes stay, and nothing is saved"
        if not changed:
            every = [r for found in builtin_rule_sets() for r in found if r is not self._rule]
            with_it, without = (
                len(nodes_left(rewrite([each, *every], instance.model, levels=(2,)).model))
                for each in (self._rule, rule)
            )
            if without > with_it:
                return f"all rules leave {without} nodes, not {with_it}"
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
