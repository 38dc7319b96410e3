"""Check a rule when it is defined."""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx

from onnxfold.kernels.inference import schema_of
from onnxfold.rewrite.build import accepts, known_domains, place_of_input
from onnxfold.rewrite.conditions import Attribute, Term, symbols_of
from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    Expression,
    Literal,
    MadeConstant,
    Omitted,
    Op,
    OpVariable,
    OutputOf,
    Rest,
    RootResult,
    Variable,
    anything,
    is_optional,
    op_of,
)
from onnxfold.rewrite.rule import Rule, walk


def check_rule(rule: Rule, parameters: Iterable[object] = ()) -> None:
    """Raise ValueError or TypeError with the reason if the rule cannot be right.

    Args:
        rule: The rule.
        parameters: The symbols of its parameters; the pattern has all of them.
    """
    _check_roots(rule)
    for pattern in rule.pair.patterns:
        _check_pattern(pattern)
    for replacement in rule.pair.replacements:
        _check_replacement(replacement, rule.symbols)
    conditions = [*rule.conditions, *([] if isinstance(rule.inexact, bool) else [rule.inexact])]
    for where, things in (("a condition", conditions), ("the replacement", rule.computed())):
        for symbol in symbols_of(*things):
            if symbol not in rule.symbols:
                raise ValueError(f"{where} uses {symbol!r}, which the pattern does not have")
    for parameter in parameters:
        if parameter not in rule.symbols:
            raise ValueError(f"the pattern does not have {parameter!r}")
    for op in walk((*rule.pair.patterns, *rule.pair.replacements)):
        if isinstance(op, Op):
            _check_op(op, *rule.opset)


def _check_roots(rule: Rule) -> None:
    for root in (*rule.roots, *rule.pair.patterns[1:]):
        op = op_of(root)
        if root not in rule.roots and op not in set(rule.pair.patterns[0].walk()):
            raise ValueError(f"{root!r} is no output of an op in the first pattern")
    sides = (*rule.pair.patterns, *rule.pair.replacements)
    whole = [root for root in sides if isinstance(root, AllOutputs)]
    if whole and len(sides) != len(whole) != 2:
        raise TypeError("all outputs of an op are replaced by all outputs of an op")
    if len(rule.pair.patterns) != len(rule.pair.replacements):
        raise ValueError("the pattern and the replacement have a different number of outputs")
    low, high = rule.opset
    if high is not None and high < low:
        raise ValueError(f"no opset lies between {low} and {high}")


def _check_pattern(pattern: Expression) -> None:
    for expression in pattern.walk():
        if isinstance(expression, MadeConstant):
            raise TypeError(f"{expression!r} is for replacements; write a number or filled(...)")
        if isinstance(expression, OutputOf) and not isinstance(expression.index, int):
            raise TypeError(f"{expression!r} in a pattern: which output?")
        if isinstance(expression, RootResult):
            raise TypeError("result is for replacements; the pattern is what makes it")
        if isinstance(expression, Op):
            for attribute, wanted in expression.attributes.items():
                if isinstance(wanted, Term) and not isinstance(wanted, Attribute):
                    raise TypeError(
                        f"{attribute}={wanted!r} in a pattern: use an attribute variable and where"
                    )


def _check_replacement(replacement: Expression, bound: Container[object]) -> None:
    if isinstance(replacement, Literal):
        raise TypeError(f"write constant({replacement!r}, like=result): a number has no dtype")
    stack = [replacement]
    while stack:
        expression = stack.pop()
        if expression in bound:
            continue  # matched already: the replacement refers to it
        symbol = expression.variable if isinstance(expression, Op) else expression
        if isinstance(symbol, (Variable, OpVariable)) and symbol not in bound:
            raise ValueError(f"the replacement uses {symbol!r}, which the pattern does not bind")
        if isinstance(expression, Op):
            for name, value in expression.attributes.items():
                if value is anything:
                    raise TypeError(f"{name}={value!r} is for patterns only")
            if expression.op_types == ("Constant",):
                raise TypeError("write constant(...) instead of op.Constant")
        elif is_optional(expression) or not isinstance(
            expression, (AllOutputs, AnyOf, Literal, MadeConstant, Omitted, OutputOf, Rest)
        ):
            raise TypeError(f"{expression!r} is for patterns only")
        stack.extend(expression.operands)


# -------------------------------------------------------------------- against onnx's schemas


def _check_op(op: Op, low: int, high: int | None) -> None:
    """Raise ValueError if no op at these opsets has the inputs and attributes of an expression."""
    if op.domain not in known_domains():
        return
    newest = high or onnx.defs.onnx_opset_version()
    schemas = [
        schema
        for version in range(low if op.domain == "" else 1, newest + 1)
        for op_type in op.op_types
        if (schema := schema_of(op_type, version, op.domain)) and not schema.deprecated
    ]
    if not schemas:
        raise ValueError(f"onnx has no op {'|'.join(op.op_types)} at these opsets")
    for name in op.attributes:
        if not any(name in s.attributes or place_of_input(name, s) is not None for s in schemas):
            raise ValueError(f"{'|'.join(op.op_types)} has no attribute {name!r}")
    if not any(accepts(op, schema) for schema in schemas):
        raise ValueError(f"{op!r}: no version of the op has these inputs and attributes")
