"""The rule language: ``rule(pattern >> replacement, where=..., doc=...)``."""

from onnxfold.rewrite.matched import Matched, axes_from_front, axis_from_front
from onnxfold.rewrite.patterns import anything, result
from onnxfold.rewrite.rule import Rule, RuleError, RuleSet, rule_set
from onnxfold.rewrite.words import (
    any_of,
    attributes,
    constant,
    constants,
    filled,
    near,
    op,
    optional,
    outputs,
    rule,
    values,
)

__all__ = [
    "Matched",
    "Rule",
    "RuleError",
    "RuleSet",
    "any_of",
    "anything",
    "attributes",
    "axes_from_front",
    "axis_from_front",
    "constant",
    "constants",
    "filled",
    "near",
    "op",
    "optional",
    "outputs",
    "result",
    "rule",
    "rule_set",
    "values",
]
