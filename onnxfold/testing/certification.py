"""Certify rules: where they apply, onnxruntime computes the same, and they need each condition."""

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
    """Assert that rules apply to models and keep what they compute, and need their conditions.

    Each model runs before and after on onnxruntime, node by node: with several sizes for each
    dynamic dimension, NaN, infinities, signed zeros, subnormals and the largest integers, with
    Constant nodes, and in a branch. So do some changed models to which the rules apply. For each
    condition of a rule, there must be a changed or refused model in which it alone is false, and in
    which something goes wrong without it: another result, an invalid model, more nodes or bytes.

    Args:
        rules: The rule, or several.
        models: Models to which they apply, in the form of `onnxfold.testing.model_text`.
        refused: Models to which none of them applies.
        thorough: Whether to look at changed models and at the conditions.
        ops: Definitions of custom ops: Python files, or classes.
        custom_ops: Shared libraries with custom ops of the models, for onnxruntime.

    Raises:
        AssertionError: They do not; with the model and the reason.
        UsageError: A model is not written right, or an argument is of another type.
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
    """Assert that the rules of a file are right, by the table of models beside it.

    Args:
        path: The file. The table has its name with the suffix ``.txt``, and the form of
            `onnxfold.testing.rule_tables`.

    Raises:
        AssertionError: One is not; with the model and the reason.
        UsageError: The file or the table cannot be read.
    """
    for certificate in certificates(path):
        assert not certificate.faults, certificate


@dataclass
class Certificate:
    """What was found about a rule.

    Args:
        rule: The rule.
        matching: The number of models to which it applies.
        refused: The number of models to which it does not.
        needs: Why it needs each of its conditions.
        faults: What is wrong, each with the model.
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
    """Yield what is found about each rule of a file, by the table beside it.

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
            found.faults.append("there is no model to which it applies")
        if thorough and not found.faults:
            found.needs = find_needs(rule, matching, refused)
            found.faults += [
                f"{need.condition}: no model shows that it is needed; add one, or leave it out"
                for need in found.needs
                if not need.place
            ]
        yield found


def check(case: Case, changed: int = _CHANGES, seed: int = 0) -> None:
    """Assert that rules apply to a model, or that they do not, and keep what it computes.

    So they must in as many changed models as ``changed`` says, and as many with two changes.

    Raises:
        AssertionError: They do not; with the model and the reason.
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
        except (NeverRuns, OnnxFoldError, ValueError):  # the change makes no sense
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
            f"it holds from opset {later} on, the model has {opset}" * (later > opset),
            "the result has another dtype or shape" * bool(made.report.rejected),
            *(find_false(rule, instance.model) for rule in case.rules),
        )
        return ": ".join([f"applied {count:g} times, not {times}", *filter(None, hints)][:2])
    if (made.level == 2) != (example.tolerance > 0):
        return (
            "exact: give no tolerance" if made.level == 1 else "inexact: give a tolerance (~1e-5)"
        )
    try:
        fault = made.find_fault(instance, example.tolerance)
    except NeverRuns as error:
        return f"onnxruntime does not run the model: {error}"
    if not fault and example.after and instance is example.instance:
        left = Counter(node.op_type for node in nodes_left(made.model))
        expected = Counter(re.findall(r"(\w+)(?:<\S*>)?(?=\s|$)", example.after))
        if left != expected and not ("..." in example.after and left > expected):
            return f"the ops that are left are {' '.join(sorted(left.elements()))}"
    return fault


def _message(rules: Sequence[Rule], example: Example, instance: Instance, fault: str) -> str:
    names = ", ".join(rule.name for rule in rules)
    return f"{example.place}: {names}: {fault}\n{onnx.printer.to_text(instance.model)}"
