"""What can be wrong with a rule is found when it is defined."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import onnx

from onnxfold.rewrite.given import ByName
from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    AttributeVariable,
    Expression,
    Literal,
    MadeConstant,
    Near,
    Omitted,
    Op,
    Optional,
    OptionalAttribute,
    OutputOf,
    RootResult,
    Several,
    Variable,
    absent,
    anything,
)
from onnxfold.rewrite.rule import Rule
from onnxfold.rewrite.terms import Term, variables_of


def check_rule(rule: Rule) -> None:
    """Raise ValueError or TypeError with the reason if the rule cannot be right."""
    _check_roots(rule)
    if len(rule.pair.patterns) != len(rule.pair.replacements):
        raise ValueError("the pattern and the replacement have a different number of outputs")
    bound: set[object] = set()
    for pattern in rule.pair.patterns:
        _check_pattern(pattern, rule)
        bound |= _bound_by(pattern)
    for replacement in rule.pair.replacements:
        _check_replacement(replacement, bound, rule)
    for condition in (*rule.where, rule.inexact):
        _check_terms((condition,), bound, rule, "a condition")
    _check_exists(rule)


def _check_roots(rule: Rule) -> None:
    for root in (*rule.roots, *(other.pattern for other in rule.elsewhere)):
        op = root.op if isinstance(root, (OutputOf, AllOutputs)) else root
        if not isinstance(op, Op):
            raise TypeError(f"the pattern must be an op, not {root!r}")
    for other in rule.elsewhere:
        if not other.is_connected:
            raise ValueError(f"{other.pattern!r} shares no value with the outputs before it")
    sides = (*rule.pair.patterns, *rule.pair.replacements)
    whole = [root for root in sides if isinstance(root, AllOutputs)]
    if whole and len(sides) != len(whole) != 2:
        raise TypeError("all outputs of an op are replaced by all outputs of an op")
    low, high = rule.opset
    if high is not None and high < low:
        raise ValueError(f"no opset lies between {low} and {high}")


def _check_pattern(pattern: Expression, rule: Rule) -> None:
    for expression in pattern.walk():
        if isinstance(expression, MadeConstant):
            raise TypeError(f"{expression!r} is for replacements; write a number or filled(...)")
        if rule.names.get(getattr(expression, "name", ""), expression) is not expression:
            raise TypeError(f"two things are called {expression.name}")  # type: ignore[attr-defined]
        if isinstance(expression, OutputOf) and not isinstance(expression.index, int):
            raise TypeError(f"{expression!r} in a pattern: which output?")
        if isinstance(expression, RootResult):
            raise TypeError("result is for conditions; the pattern is what makes it")
        if isinstance(expression, Op):
            for name, wanted in expression.attributes.items():
                if isinstance(wanted, Term) and not isinstance(wanted, AttributeVariable):
                    raise TypeError(f"{name}={wanted!r} in a pattern: bind a variable, use where=")


def _bound_by(pattern: Expression) -> set[object]:
    """Everything that has a value whichever way the pattern matches."""
    bound: set[object] = {pattern}
    if isinstance(pattern, AnyOf):
        choices = [_bound_by(choice) for choice in pattern.choices]
        # a variable is None where the choice is one without it; an op is not there
        variables = {v for v in set.union(*choices) if isinstance(v, (Variable, AttributeVariable))}
        return set.intersection(*choices) | variables | bound
    if isinstance(pattern, Op):
        if pattern.variable is not None:
            bound.add(pattern.variable)
        for wanted in pattern.attributes.values():
            if isinstance(wanted, OptionalAttribute):
                bound.add(wanted.variable)
            elif isinstance(wanted, AttributeVariable):
                bound.add(wanted)
    if isinstance(pattern, Optional):
        # its variables are None if the input is not there; ops below it may be missing
        return bound | {e for e in pattern.inner.walk() if isinstance(e, Variable)}
    for child in pattern.children():
        bound |= _bound_by(child)
    return bound


def _require_bound(thing: object, bound: set[object], where: str) -> None:
    if isinstance(thing, (RootResult, OutputOf)) or thing in bound:
        return
    raise ValueError(f"{where} uses {thing!r}, which the pattern does not (always) bind")


def _check_replacement(replacement: Expression, bound: set[object], rule: Rule) -> None:
    if isinstance(replacement, Literal):
        raise TypeError(f"write constant({replacement!r}, like=result): a number has no dtype")
    stack = [replacement]
    while stack:
        expression = stack.pop()
        if expression in bound and not isinstance(expression, (Literal, Omitted)):
            continue  # matched already: the replacement refers to it
        if isinstance(expression, Variable):
            _require_bound(expression, bound, "the replacement")
        elif isinstance(expression, (Near, Optional, RootResult)):
            raise TypeError(f"{expression!r} is for patterns only")
        elif isinstance(expression, MadeConstant):
            _check_terms((expression.content, expression.dtype), bound, rule)
        elif isinstance(expression, Op):
            _check_terms((expression.output_count,), bound, rule)
            _check_new_op(expression, bound, rule)
        elif isinstance(expression, OutputOf):
            _check_terms((expression.index,), bound, rule)
        elif not isinstance(expression, (AnyOf, Several, Literal, Omitted)):
            raise TypeError(f"{expression!r} cannot be in a replacement")
        stack.extend(expression.children())


def _check_new_op(op: Op, bound: set[object], rule: Rule) -> None:
    if op.variable is not None:
        _require_bound(op.variable, bound, "the replacement")
    elif len(op.op_types) > 1:
        raise ValueError(f"{op!r}: which op? use the op variable of the pattern")
    _check_terms(op.attributes.values(), bound, rule)
    for name, value in op.attributes.items():
        if value is absent or value is anything or isinstance(value, OptionalAttribute):
            raise TypeError(f"{name}={value!r} is for patterns only")
    if op.op_types == ("Constant",):
        raise TypeError("write constant(...) instead of op.Constant")


def _check_terms(
    terms: Iterable[object], bound: set[object], rule: Rule, where: str = "the replacement"
) -> None:
    for term in terms:
        for variable in variables_of(term):
            if isinstance(variable, ByName):
                variable = rule.names.get(variable.name, variable)
            _require_bound(variable, bound, where)


# -------------------------------------------------------------------- against onnx's schemas


def _check_exists(rule: Rule) -> None:
    low, high = rule.opset
    for side in (rule.pair.patterns, rule.pair.replacements):
        for expression in side:
            for op in expression.walk():
                if isinstance(op, Op):
                    _check_op(op, low, high)


def _check_op(op: Op, low: int, high: int | None) -> None:
    possible = False
    for op_type in op.op_types:
        schemas = _schemas(op.domain, op_type)
        if schemas is None:
            return  # a domain that onnx knows nothing about
        in_range = _within(schemas, low, high) if op.domain == "" else schemas
        if not in_range:
            name = f"{op.domain}::{op_type}" if op.domain else op_type
            raise ValueError(f"onnx has no op {name}" + (" at these opsets" if schemas else ""))
        for name in op.attributes:
            if not any(name in schema.attributes or _takes(schema, name) for schema in in_range):
                raise ValueError(f"{op_type} has no attribute {name!r}")
        possible = possible or any(accepts(op, schema) for schema in in_range)
    if not possible:
        raise ValueError(f"{op!r}: no version of the op has these inputs and attributes")


def accepts(op: Op, schema: onnx.defs.OpSchema) -> bool:
    """True if a schema has the attributes, inputs and outputs that an expression mentions.

    An attribute may have become an input: a replacement's ``axes=`` is made as either.
    """
    by_name = 0
    for name, wanted in op.attributes.items():
        if wanted is absent or wanted is anything or isinstance(wanted, OptionalAttribute):
            continue
        if name not in schema.attributes:
            if not _takes(schema, name):
                return False
            by_name += 1
    fixed = [o for o in op.operands if not isinstance(o, Several)]
    open_ended = len(fixed) < len(op.operands) or any(isinstance(o, Optional) for o in fixed)
    if open_ended:
        required = [o for o in fixed if not isinstance(o, Optional)]
        return len(required) <= schema.max_input
    return schema.min_input <= len(fixed) + by_name <= schema.max_input


def _takes(schema: onnx.defs.OpSchema, name: str) -> bool:
    return any(formal.name == name for formal in schema.inputs)


@functools.cache
def _schemas(domain: str, op_type: str) -> tuple[onnx.defs.OpSchema, ...] | None:
    """All versions of an op, oldest first; None if onnx does not know the domain."""
    by_op = _all_schemas().get(domain)
    if by_op is None:
        return None
    return tuple(sorted(by_op.get(op_type, ()), key=lambda s: s.since_version))


@functools.lru_cache(maxsize=1)
def _all_schemas() -> dict[str, dict[str, list[onnx.defs.OpSchema]]]:
    found: dict[str, dict[str, list[onnx.defs.OpSchema]]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault(schema.domain, {}).setdefault(schema.name, []).append(schema)
    return found


def _within(
    schemas: tuple[onnx.defs.OpSchema, ...], low: int, high: int | None
) -> list[onnx.defs.OpSchema]:
    """The versions that hold somewhere in a range of opsets."""
    ends = [*(s.since_version for s in schemas[1:]), 1 << 30]
    return [
        schema
        for schema, end in zip(schemas, ends, strict=False)
        if end > low and (high is None or schema.since_version <= high) and not schema.deprecated
    ]


def is_available(op: Op, opsets: Mapping[str, int]) -> bool:
    """True if at least one op of an expression exists as written at these opsets."""
    schemas = [_schemas(op.domain, op_type) for op_type in op.op_types]
    if any(found is None for found in schemas):
        return True
    version = opsets.get(op.domain)
    if version is None:
        return op.domain != ""  # imported when it is needed
    return any(
        bool(usable) and accepts(op, usable[-1])
        for found in schemas
        for usable in [[s for s in found or () if s.since_version <= version]]
        if not usable or not usable[-1].deprecated
    )
