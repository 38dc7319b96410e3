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
    nodes_left,
    rewrite,
    variants,
)

# Number of changed models per model, and of models with two changes.
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
    in which only this condition is false, and in which the rule without the condition is wrong. It
    is wrong if it causes a different result, an invalid model, or more nodes or bytes.

    Args:
        rules: One rule or several.
        models: Models to which they apply, in the form of `onnxfold.testing.model_text`.
        refused: Models to which they do not apply.
        thorough: Whether to test changed models and the conditions.
        ops: Definitions of custom ops: Python files, or classes.
        custom_ops: Shared libraries with custom ops of the models, for onnxruntime.

    Raises:
        AssertionError: A rule is not correct. The message has the model and the reason.
        UsageError: A model is not valid, or an argument has a wrong type.
    """
    several = (rules,) if isinstance(rules, Rule) else tuple(rules)
    cases = [
        Case(several, Example.of(text), stays)
        for stays, texts in ((False, models), (True, refused))
        for text in texts
    ]
    for source in ops:
        load_ops(source)
    libraries = LIBRARIES.set([os.path.abspath(path) for path in custom_ops])
    try:
        for certificate in _certificates(several, cases, thorough):
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
        matching: The number of models to which it applies.
        refused: The number of models to which it does not apply.
        needs: The reasons why it needs each of its conditions.
        faults: The faults, each with the model.
    """

    rule: Rule
    matching: int
    refused: int
    needs: list[Need] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"applies to {self.matching} models and not to {self.refused}"
        return "\n".join(
            [f"{self.rule.name} ({self.rule.place}): {counts}"]
            + [f"  needs {need}" for need in self.needs if need.place]
            + [f"  FAULT {fault}" for fault in self.faults]
        )


def certificates(path: str | os.PathLike[str]) -> Iterator[Certificate]:
    """Yield the certificate of each rule of a file, see `certify_file`.

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
        own = [case for case in cases if rule in case.rules]
        matching, refused = (
            [case.example for case in own if case.stays is stays] for stays in (False, True)
        )
        found = Certificate(rule, len(matching), len(refused))
        for case in own:
            try:
                check(case, _CHANGES * thorough)
            except AssertionError as error:
                found.faults.append(str(error))
        if not matching and thorough:
            found.faults.append("the rule applies to no model; add one to which it applies")
        if thorough and not found.faults:
            found.needs = find_needs(rule, matching, refused)
            found.faults += [
                f"{need.condition}: no model shows that it is needed; add one, or leave it out"
                for need in found.needs
                if not need.place
            ]
        yield found


def check(case: Case, changed: int = _CHANGES, seed: int = 0) -> None:
    """Assert that rules apply to a model, or that they do not, and preserve its outputs.

    Args:
        case: The model and the rules.
        changed: The number of changed models in which the outputs must be preserved, and of models
            with two changes.
        seed: The seed for the selection of changes.

    Raises:
        AssertionError: A rule is not correct. The message has the model and the reason.
    """
    for instance in variants(case.example.instance):
        if case.stays:
            report = rewrite(case.rules, instance.model).report
            applied = [*report.counts, *report.rejected, *report.failed_on_invalid]
            fault = f"{', '.join(applied)} must not apply" if applied else ""
        else:
            fault = _matches(case, instance)
        assert not fault, _message(case.rules, case.example, instance, fault)
    every = list(changes(case.example))
    rng = random.Random(seed)
    single = rng.sample(every, min(changed, len(every)))
    pairs = ["; ".join(rng.sample(every, 2)) for _ in range(changed if len(every) > 1 else 0)]
    for change in (*single, *pairs):
        example = case.example.changed(change)
        try:
            made = rewrite(case.rules, example.instance.model)
            if not made.report.counts:
                continue
            fault = made.find_fault(example.instance, LOOSE)
        except (NeverRuns, OnnxFoldError, ValueError):  # the changed model is not valid
            continue
        assert not fault, _message(case.rules, example, example.instance, fault)


def _matches(case: Case, instance: Instance) -> str:
    example = case.example
    made = rewrite(case.rules, instance.model)
    times = int(example.settings.get("times", 1))
    count = made.report.counts.total() / instance.copies
    if count != times:
        (opset,) = (o.version for o in instance.model.opset_import if not o.domain)
        later = max(rule.opset[0] for rule in case.rules)
        hints = (
            f"the rule requires opset {later}, the model has {opset}" * (later > opset),
            "the result has a different dtype or shape" * bool(made.report.rejected),
            *(find_false(rule, instance.model) for rule in case.rules),
        )
        return ": ".join([f"applied {count:g} times, not {times}", *filter(None, hints)][:2])
    if (made.level == 2) != (example.tolerance > 0):
        if made.level == 1:
            return "the rule is exact; remove the tolerance"
        return "the rule is inexact; add a tolerance such as ~1e-5"
    try:
        fault = made.find_fault(instance, example.tolerance)
    except NeverRuns as error:
        return f"onnxruntime does not run the model: {error}"
    if not fault and example.after and instance is example.instance:
        left = Counter(node.op_type for node in nodes_left(made.model))
        expected = Counter(re.findall(r"(\w+)(?:<\S*>)?(?=\s|$)", example.after))
        if left != expected and not ("..." in example.after and left > expected):
            return f"the remaining ops are {' '.join(sorted(left.elements()))}"
    return fault


def _message(rules: Sequence[Rule], example: Example, instance: Instance, fault: str) -> str:
    names = ", ".join(rule.name for rule in rules)
    return f"{example.place}: {names}: {fault}\n{onnx.printer.to_text(instance.model)}"
