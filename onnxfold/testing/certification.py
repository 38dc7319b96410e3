"""Certification of rules.

A certificate shows that onnxruntime computes the same outputs after a rule was applied, and that
each condition of the rule is necessary.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxfold.api.signatures import checked
from onnxfold.ops import Op, load_ops
from onnxfold.rewrite import Rule
from onnxfold.rewrite.rule import load_rules
from onnxfold.support.errors import OnnxFoldError
from onnxfold.testing.changes import changes
from onnxfold.testing.model_text import Example
from onnxfold.testing.needed_conditions import Need, find_false, find_needs
from onnxfold.testing.rule_tables import Case, read_table
from onnxfold.testing.running import (
    LIBRARIES,
    LOOSE,
    Instance,
    NeverRuns,
    Rewritten,
    remaining_nodes,
    rewrite,
    variants,
)

# For each model, the maximum number of models with one change, and of models with two changes.
_CHANGES = 50


@checked
def certify(
    rules: Rule | Sequence[Rule],
    *models: str,
    refused: Iterable[str] = (),
    thorough: bool = True,
    ops: Sequence[str | os.PathLike[str] | type[Op]] = (),
    custom_ops: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Assert that rules apply to models, preserve the outputs, and need all their conditions.

    onnxruntime runs each model before and after the rules, node by node. The runs cover several
    sizes of each dynamic dimension, NaN, infinities, signed zeros, subnormals, the largest
    integers, Constant nodes, and the model in a branch. Changed models to which the rules apply are
    also run. Each condition of a rule must be necessary: there must be a changed or refused model
    in which only this condition is false, and in which the rule without the condition is wrong. A
    rule is wrong if it causes a different result, an invalid model, or higher costs, such as more
    nodes or bytes.

    Args:
        rules: One rule or several.
        models: Models to which the rules apply, in the form of `onnxfold.testing.model_text`.
        refused: Models to which the rules do not apply, in the same form as ``models``.
        thorough: Whether to test changed models and the conditions, and to require a model for each
            rule.
        ops: Definitions of custom ops: Python files, or classes.
        custom_ops: Shared libraries with custom ops of the models, for onnxruntime.

    Raises:
        AssertionError: A rule is not correct. The message has the model and the reason.
        UsageError: A model is not valid, or an argument has a wrong type.
    """
    rules = (rules,) if isinstance(rules, Rule) else tuple(rules)
    cases = [Case(rules, Example.of(text), is_refused=False) for text in models]
    cases += [Case(rules, Example.of(text), is_refused=True) for text in refused]
    for source in ops:
        load_ops(source)
    libraries = LIBRARIES.set([os.path.abspath(path) for path in custom_ops])
    try:
        for certificate in _certificates(rules, cases, thorough):
            assert not certificate.faults, certificate
    finally:
        LIBRARIES.reset(libraries)


@checked
def certify_file(path: str | os.PathLike[str]) -> None:
    """Assert that the rules of a file are correct, with a table of models.

    Args:
        path: The file. The table is in the same folder and has the same name with the suffix
            ``.txt``. `onnxfold.testing.rule_tables` describes its form.

    Raises:
        AssertionError: A rule is not correct. The message has the model and the reason.
        UsageError: The file or the table cannot be read.
    """
    for certificate in certificates(path):
        assert not certificate.faults, certificate


@dataclass
class Certificate:
    """The result of testing a rule.

    Args:
        rule: The rule.
        matching: The number of models to which the rule must apply.
        refused: The number of models to which the rule must not apply.
        needs: The reasons why the rule needs each of its conditions. Empty if the conditions were
            not tested, for example because a model shows a fault.
        faults: The faults, with the model if a model shows the fault. Empty if the rule is correct.
    """

    rule: Rule
    matching: int
    refused: int
    needs: list[Need] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"applies to {self.matching} models and not to {self.refused}"
        return "\n".join(
            [f"{self.rule.name} ({self.rule.location}): {counts}"]
            + [f"  needs {need}" for need in self.needs if need.location]
            + [f"  FAULT {fault}" for fault in self.faults]
        )


def certificates(path: str | os.PathLike[str]) -> Iterator[Certificate]:
    """Yield the certificate of each rule of a file.

    Args:
        path: The file with the rules, see `certify_file`.

    Raises:
        UsageError: The file or the table cannot be read.
    """
    rules = load_rules(path).rules
    cases = list(read_table(Path(path).with_suffix(".txt"), rules))
    yield from _certificates(rules, cases, thorough=True)


def _certificates(
    rules: Sequence[Rule], cases: Sequence[Case], thorough: bool
) -> Iterator[Certificate]:
    for rule in rules:
        rule_cases = [case for case in cases if rule in case.rules]
        matching = [case.example for case in rule_cases if not case.is_refused]
        refused = [case.example for case in rule_cases if case.is_refused]
        certificate = Certificate(rule, len(matching), len(refused))
        for case in rule_cases:
            try:
                check(case, _CHANGES if thorough else 0)
            except AssertionError as error:
                certificate.faults.append(str(error))
        if thorough and not matching:
            certificate.faults.append("the rule applies to no model; add a model that it matches")
        if thorough and not certificate.faults:
            certificate.needs = find_needs(rule, matching, refused)
            certificate.faults += [
                f"{need.condition}: no model requires the condition; add a model, or remove it"
                for need in certificate.needs
                if not need.location
            ]
        yield certificate


def check(case: Case, changed: int = _CHANGES, seed: int = 0) -> None:
    """Assert that rules apply to a model and preserve the outputs, or do not apply to it.

    Rules that apply to a changed model must also preserve the outputs of the changed model.

    Args:
        case: The model and the rules.
        changed: The maximum number of models with one change, and of models with two changes.
        seed: The seed for the selection of changes.

    Raises:
        AssertionError: A rule is not correct. The message has the model and the reason.
        UsageError: The model is not valid.
    """
    for instance in variants(case.example.instance):
        if case.is_refused:
            report = rewrite(case.rules, instance.model).report
            applied = [*report.counts, *report.rejected, *report.failed_on_invalid]
            fault = f"{', '.join(applied)} must not apply" if applied else ""
        else:
            fault = _matching_fault(case, instance)
        assert not fault, _message(case.rules, case.example, instance, fault)
    candidates = list(changes(case.example))
    rng = random.Random(seed)
    single = rng.sample(candidates, min(changed, len(candidates)))
    pairs = []
    if len(candidates) > 1:
        pairs = ["; ".join(rng.sample(candidates, 2)) for _ in range(changed)]
    for change in (*single, *pairs):
        example = case.example.changed(change)
        try:
            rewritten = rewrite(case.rules, example.instance.model)
            if not rewritten.report.counts:
                continue
            fault = rewritten.find_fault(example.instance, LOOSE)
        except (NeverRuns, OnnxFoldError, ValueError):  # the changed model is not valid
            continue
        assert not fault, _message(case.rules, example, example.instance, fault)


def _matching_fault(case: Case, instance: Instance) -> str:
    """Return the fault of rules that must apply to a model, or "" without a fault."""
    example = case.example
    rewritten = rewrite(case.rules, instance.model)
    times = int(example.settings.get("times", 1))
    count = rewritten.report.counts.total() / instance.copies
    if count != times:
        fault = f"applied {count:g} times, not {times}"
        hint = _hint(case, instance, rewritten)
        return f"{fault}: {hint}" if hint else fault
    if (rewritten.level == 2) != (example.tolerance > 0):
        if rewritten.level == 1:
            return "the rule is exact; remove the tolerance"
        return "the rule is inexact; add a tolerance such as ~1e-5"
    try:
        fault = rewritten.find_fault(instance, example.tolerance)
    except NeverRuns as error:
        return f"onnxruntime does not run the model: {error}"
    if not fault and example.after and instance is example.instance:
        remaining = Counter(node.op_type for node in remaining_nodes(rewritten.model))
        expected = Counter(re.findall(r"(\w+)(?:<\S*>)?(?=\s|$)", example.after))
        if remaining != expected and not ("..." in example.after and remaining > expected):
            return f"the remaining ops are {' '.join(sorted(remaining.elements()))}"
    return fault


def _hint(case: Case, instance: Instance, rewritten: Rewritten) -> str:
    """Return a possible reason why rules did not apply as often as expected, or "" if unknown."""
    (opset,) = (o.version for o in instance.model.opset_import if not o.domain)
    required_opset = max(rule.opset[0] for rule in case.rules)
    if required_opset > opset:
        return f"the rule requires opset {required_opset}, the model has {opset}"
    if rewritten.report.rejected:
        return "the result has a different dtype or shape"
    hints = (find_false(rule, instance.model) for rule in case.rules)
    return next(filter(None, hints), "")


def _message(rules: Sequence[Rule], example: Example, instance: Instance, fault: str) -> str:
    names = ", ".join(rule.name for rule in rules)
    return f"{example.location}: {names}: {fault}\n{onnx.printer.to_text(instance.model)}"
