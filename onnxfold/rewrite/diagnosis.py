"""Find the reasons why a rule does not apply at a node: pattern elements and conditions.

`diagnose` repeats the search of the matcher with a match that records each failure. The search of
the driver records nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts, identical
from onnxfold.ir.graphs import display_name, op_name
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ir.symbolic import Expr, NotKnown
from onnxfold.ir.symbolic.fact import Texts
from onnxfold.rewrite.apply import Mismatch, try_apply
from onnxfold.rewrite.build import Refused, unavailable_op
from onnxfold.rewrite.conditions import (
    Attribute,
    Joined,
    OmittedInput,
    Recorded,
    Term,
    symbols_of,
    text_of,
)
from onnxfold.rewrite.matched import Matched
from onnxfold.rewrite.matcher import Match, as_stored, find_match
from onnxfold.rewrite.patterns import (
    Constant,
    Expression,
    Literal,
    Op,
    Rest,
    Symbol,
    Variable,
    anything,
    filled,
    near,
    omitted,
    op_of,
    result,
)
from onnxfold.rewrite.rule import Rule
from onnxfold.support.errors import OnnxFoldError
from onnxfold.support.tables import count_text, first_of

_MAX_FAILURES = 4
"""Maximum number of failures that are recorded for all alternatives with the same progress."""
_MAX_NAMES = 4
"""Maximum number of op types or consumers that a text lists."""
_MAX_VALUES = 3
"""Maximum number of values in the reason for a false condition."""
_MAX_CONDITION_LENGTH = 80
"""Maximum number of characters of a condition in a reason.

`Failure.element` has the complete text.
"""
_CONSUMER_PROPERTIES = ("is_single_use", "is_read_by", "is_only_read_by")
"""Properties that depend on the consumers of a value."""
_MAX_ELEMENTS = 8
"""Maximum number of elements of a constant that a text shows."""


@dataclass(frozen=True)
class Failure:
    """A reason why a rule does not apply: a pattern element, a condition, or the replacement.

    The kinds of failures are:

    - ``op``: the producer of the value is another op, or the value is another output.
    - ``attribute``: an attribute of the node differs.
    - ``inputs``: the number of inputs of the node differs.
    - ``constant``: the value is not a constant.
    - ``number``: the constant has other elements.
    - ``value``: a symbol is already bound to another value, an input is omitted, or an input should
      be omitted.
    - ``condition``: a condition is false.
    - ``unknown``: a condition depends on an unknown fact.
    - ``exactness``: bits of the result may change.
    - ``graph``: the nodes cannot be replaced, for example because they have other consumers.
    - ``replacement``: the replacement cannot be built.

    Attributes:
        kind: The kind of the failure.
        element: The text of the pattern element or the condition. Empty for the kinds ``graph`` and
            ``replacement``.
        value: The name of the value in the model, or "".
        reason: The reason in one sentence.
        facts: Texts of the values that a condition depends on, by the text of the term or symbol.
            For ``graph``, texts of the other consumers of matched nodes, by node.
    """

    kind: str
    element: str
    value: str
    reason: str
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """The result of the search for a match of a rule at a node.

    Attributes:
        applies: Whether the rule matches, and its replacement can be built.
        matched: The nodes and values that matched in the alternative with the highest progress.
        failures: The first failures of the alternatives with the highest progress. Empty if the
            rule applies.
        progress: The number of matched ops, and the number of all matched symbols.
    """

    applies: bool
    matched: list[str]
    failures: list[Failure]
    progress: tuple[int, int] = (0, 0)


def diagnose(
    rule: Rule,
    node: ir.Node,
    facts: ModelFacts,
    *,
    exact: bool,
    keeps: Callable[[ir.Value], bool] = lambda value: False,
) -> Attempt:
    """Return whether a rule applies at a node, or why it does not. The graph is unchanged.

    Args:
        rule: The rule.
        node: The node to match with the first root of the pattern.
        facts: The facts of the model.
        exact: Whether the rewrite must keep every bit.
        keeps: Returns whether the producer of a value must be kept.

    Raises:
        OnnxFoldError: The evaluation of a constant failed.
    """
    rule.name_ops()
    texts = _Texts(facts)
    trace = _Trace(texts)
    match: Match | None = None
    with np.errstate(all="ignore"):  # numbers of conditions may overflow
        try:
            match = _traced_match(rule, node, facts, exact, trace)
            if match is None:
                return trace.attempt(rule, node)
            try_apply(match, keeps)
        except OnnxFoldError:
            raise
        except Exception as error:
            failure = _failure_of(error, match, texts)
            if match is None:
                return Attempt(False, trace.matched, [failure], trace.progress)
            return Attempt(False, _matched(match, texts), [failure], _progress(match))
    return Attempt(True, _matched(match, texts), [], _progress(match))


def _traced_match(
    rule: Rule, node: ir.Node, facts: ModelFacts, exact: bool, trace: _Trace
) -> Match | None:
    """Return the match of a rule, or None if the rule does not match.

    If the result is None, ``trace`` has the failures. The first search ignores exactness. If it
    finds a match, a second search checks exactness. The driver makes only one search.
    """
    make_match = partial(_TracedMatch, trace=trace)
    match = find_match(rule, node, facts, exact=False, make_match=make_match)
    if match is None or not exact:
        return match
    trace.clear()
    return find_match(rule, node, facts, exact=True, make_match=make_match)


def unmet_opset(rule: Rule, opsets: Mapping[str, int]) -> str | None:
    """Return why a rule does not hold at the opsets of a graph; None if the rule holds."""
    first, last = rule.opset
    version = opsets.get("", 1)
    if version < first:
        return f"it requires opset {first} or later, and the model has opset {version}"
    if version > (last or math.inf):
        return f"it requires opset {last} or earlier, and the model has opset {version}"
    op = unavailable_op(rule.pair.replacements, opsets)
    if op is None:
        return None
    return f"the opset of the model lacks {_op_types(op)}, which the replacement has"


def matches_root(rule: Rule, node: ir.Node) -> bool:
    """Return whether a node has an op type and the domain of a root of a rule."""
    roots = map(op_of, rule.roots)
    return any(node.op_type in op.op_types and node.domain == op.domain for op in roots)


# -------------------------------------------------------------------- the search


class _Trace:
    """The failures of the alternatives with the highest progress, see `_progress`."""

    def __init__(self, texts: _Texts) -> None:
        self.texts = texts
        self.progress = (-1, -1)
        self.matched: list[str] = []
        self.failures: list[Failure] = []

    def clear(self) -> None:
        """Remove the recorded failures."""
        self.progress = (-1, -1)
        self.failures = []

    def record(self, match: Match, failure: Failure) -> None:
        """Record a failure, unless another alternative has a higher progress."""
        progress = _progress(match)
        if progress < self.progress:
            return
        if progress > self.progress:
            self.progress = progress
            self.matched = _matched(match, self.texts)
            self.failures = []
        if failure not in self.failures and len(self.failures) < _MAX_FAILURES:
            self.failures.append(failure)

    def attempt(self, rule: Rule, node: ir.Node) -> Attempt:
        """Return the recorded failures. If there are none, the node has no op of a root."""
        if self.failures:
            return Attempt(False, self.matched, self.failures, self.progress)
        required = " or ".join(dict.fromkeys(_op_types(op_of(root)) for root in rule.roots))
        reason = f"the node is {_quoted_label(node)}; the pattern requires {required} here"
        name = node.outputs[0].name if node.outputs else None
        return Attempt(False, [], [Failure("op", required, name or "", reason)])


class _TracedMatch(Match):
    """A match that records failures."""

    def __init__(self, *args: Any, trace: _Trace) -> None:
        super().__init__(*args)
        self._trace = trace

    def accepts_op(self, pattern: Expression, value: ir.Value | None) -> bool:
        is_accepted = super().accepts_op(pattern, value)
        if not is_accepted:
            kind, reason = _op_reason(self, pattern, value, self._trace.texts)
            self._fail(kind, pattern, value, reason)
        return is_accepted

    def accepts_leaf(self, leaf: Expression, value: Any) -> bool:
        is_accepted = super().accepts_leaf(leaf, value)
        if not is_accepted:
            kind, reason = _leaf_reason(self, leaf, value, self._trace.texts)
            self._fail(kind, leaf, value, reason)
        return is_accepted

    def operand_orders(self, op: Op, node: ir.Node) -> Any:
        orders = super().operand_orders(op, node)
        if orders == ():
            reason = f"{_quoted_label(node)} has {count_text(len(node.inputs), 'input')}"
            self._fail("inputs", op, node.outputs[0], f"{reason}; the pattern is {op!r}")
        return orders

    def holds(self, condition: Term) -> bool:
        is_true = super().holds(condition)
        if not is_true:
            self._trace.record(self, _condition_failure(self, condition, self._trace.texts))
        return is_true

    def _fail(self, kind: str, pattern: Expression, value: Any, reason: str) -> None:
        name = value.name or "" if isinstance(value, ir.Value) else ""
        self._trace.record(self, Failure(kind, _element(pattern), name, reason))


def _progress(match: Match) -> tuple[int, int]:
    """Return the number of bound ops, and the number of all bound symbols."""
    ops = sum(isinstance(symbol, Op) for symbol in match.bindings)
    return ops, len(match.bindings)


def _matched(match: Match, texts: _Texts) -> list[str]:
    """Return the texts of the matched nodes and values, each in the order of the pattern."""
    nodes = []
    values = []
    for symbol in match.rule.symbols:
        content = match.bindings.get(symbol)
        if isinstance(symbol, Op) and content is not None:
            name = f"{symbol.name} = " if symbol.name else ""
            nodes.append(f"{name}{_quoted_label(content)}")
        elif isinstance(symbol, Variable) and symbol not in (result, anything, omitted):
            if isinstance(content, tuple):
                names = [texts.name(value) for value in content]
                values.append(f"*{symbol!r} = ({', '.join(names)})")
            elif content is not None:
                values.append(f"{symbol!r} = {texts.name(content)}")
    return nodes + values


# -------------------------------------------------------------------- reasons


def _op_reason(
    match: Match, pattern: Expression, value: ir.Value | None, texts: _Texts
) -> tuple[str, str]:
    """Return the kind and the reason of a failure to match an op with the producer of a value."""
    op = op_of(pattern)
    required = f"the pattern requires {_op_types(op)} here"
    if value is None:
        return "value", f"an input is omitted; {required}"
    node = value.producer()
    if node is None:
        return "op", f"{texts.name(value)} is {texts.origin(value)}; {required}"
    if node.op_type not in op.op_types or node.domain != op.domain:
        return "op", f"{texts.name(value)} is {texts.origin(value)}; {required}"
    label = _quoted_label(node)
    if value.index() != pattern.index:
        problem = f"{texts.name(value)} is output {value.index()} of {label}"
        return "op", f"{problem}; the pattern requires output {pattern.index}"
    bound = match.bindings.get(op)
    if bound is not None and bound is not node:
        return "value", f"{label} is here, and {_quoted_label(bound)} elsewhere in the pattern"
    if not match.facts.is_op(node, op.domain):
        return "op", f"{label} is a call of a function of the model; {required}"
    return "attribute", _attribute_reason(match, op, node)


def _attribute_reason(match: Match, op: Op, node: ir.Node) -> str:
    """Return the reason why the attributes of a node do not match those of an op."""
    facts = match.facts
    label = _quoted_label(node)
    if op.variable is None:
        for name in node.attributes:
            value = facts.attribute(node, name)
            default = facts.default(node, name)
            if name not in op.attributes and (value is None or not identical(value, default)):
                problem = f"the attribute {name!r} of {label} is {_attribute_text(value)}"
                return f"{problem}; the pattern requires its default, {_attribute_text(default)}"
    else:
        other = match.bindings.get(op.variable)
        if other is not None and other is not node:
            problem = f"{label} and {_quoted_label(other)} differ in op type or attributes"
            return f"{problem}; the pattern requires the same op"
    for name, expected in op.attributes.items():
        if expected is anything:
            continue
        value = facts.attribute(node, name)
        if value is None:
            return f"{label} has no attribute {name!r} that is a number, text or tuple of them"
        if isinstance(expected, Attribute):
            expected = match.bindings.get(expected, value)
        if not identical(as_stored(value), as_stored(expected)):
            problem = f"the attribute {name!r} of {label} is {_attribute_text(value)}"
            return f"{problem}; the pattern requires {_attribute_text(expected)}"
    return f"the attributes of {label} differ from those of the pattern"


def _attribute_text(value: Any) -> str:
    return "a tensor, a graph or an attribute of a function" if value is None else repr(value)


def _leaf_reason(match: Match, leaf: Expression, value: Any, texts: _Texts) -> tuple[str, str]:
    """Return the kind and the reason of a failure to match a variable, number or omitted input."""
    if leaf is omitted:
        return "value", f"the input {texts.name(value)} is not omitted"
    if isinstance(leaf, Rest):
        bound_values = match.bindings.get(leaf.variable, ())
        names = ", ".join(map(texts.name, bound_values))
        return "value", f"the inputs differ from ({names}), for which {leaf.variable!r} stands"
    if value is None:
        return "value", f"an input is omitted; the pattern requires {leaf!r} here"
    is_constant = match.facts.constness.is_constant(value)
    if isinstance(leaf, (Constant, Literal, filled)) and not is_constant:
        problem = f"{texts.name(value)} is {texts.origin(value)}"
        return "constant", f"{problem}; the pattern requires a constant here"
    if isinstance(leaf, (Literal, filled)):
        number = f"about {leaf.literal:.6g}" if isinstance(leaf, near) else repr(leaf.literal)
        elements = texts.elements(value) or "has other elements"
        if isinstance(leaf, filled):
            return "number", f"not all elements of {texts.name(value)} are {number}: it {elements}"
        return "number", f"{texts.name(value)} is not one element {number}: it {elements}"
    bound = match.bindings.get(leaf)
    problem = f"{texts.name(value)} is here, and {texts.name(bound)} elsewhere in the pattern"
    return "value", f"{problem}; {leaf!r} stands for one value"


def _condition_failure(match: Match, condition: Term, texts: _Texts) -> Failure:
    """Return the failure of a condition that is false or unknown."""
    facts = _facts_of(match, condition, texts)
    try:
        condition.evaluate(match)
        kind = "condition"
    except NotKnown:
        kind = "unknown"
    if any(condition is each for each in match.rule.conditions):
        return Failure(kind, repr(condition), "", _verdict(match, condition, texts), facts)
    # this is the negation of `inexact`, which is not among the conditions of the rule
    inexact = condition.args[0]
    verdict = "is true" if kind == "condition" else "is not certainly false"
    text = text_of(inexact)
    reason = f"bits of the result may change, which -O2 allows: {text} {verdict}"
    facts.pop(text, None)
    return Failure("exactness", text, "", reason, facts)


def _verdict(match: Match, term: Any, texts: _Texts) -> str:
    """Return the reason why a condition is not true, with the values of its operands."""
    if isinstance(term, Joined):
        if term.func is any:
            return "; ".join(_verdict(match, each, texts) for each in term.args)
        for each in term.args:
            if not _is_true(match, each):
                return _verdict(match, each, texts)
    text = text_of(term)
    if len(text) > _MAX_CONDITION_LENGTH:
        text = f"{text[:_MAX_CONDITION_LENGTH]}..."
    try:
        term.evaluate(match)
    except OmittedInput as error:
        return f"{text} does not apply: {texts.unknown(error)}"
    except NotKnown as error:
        return f"{text} is not known: {texts.unknown(error)}"
    properties = [each for each in _properties(term) if each is not term]
    values = [f"{text_of(each)} is {_value_text(match, each, texts)}" for each in properties]
    if not values:
        values = [_symbol_text(match, term, each, texts) for each in symbols_of(term)]
    return f"{text} is false: {', '.join(values[:_MAX_VALUES])}"


def _symbol_text(match: Match, term: Term, symbol: Recorded, texts: _Texts) -> str:
    """Return a text of the symbol in a false property: its consumers, elements or type.

    The consumers are shown if the property depends on them. The type is shown if the elements are
    unknown.
    """
    content = match.bound(symbol)
    if isinstance(content, ir.Node):
        content = content.outputs[0]
    if not isinstance(content, ir.Value):
        return f"{text_of(symbol)} is {texts.of(content)}"
    if getattr(term.func, "__name__", "") in _CONSUMER_PROPERTIES:
        return f"{text_of(symbol)} is {texts.consumers(content, 2)}"
    if elements := texts.elements(content):
        return f"{text_of(symbol)} {elements}"
    return f"{text_of(symbol)} is {texts.type(content)}"


def _is_true(match: Match, term: Any) -> bool:
    try:
        return bool(match.value_of(term))
    except NotKnown:
        return False


def _value_text(match: Match, term: Term, texts: _Texts) -> str:
    try:
        return texts.of(match.value_of(term))
    except NotKnown as error:
        return f"not known: {texts.unknown(error)}"
    except Exception as error:  # another condition of the rule may exclude such a value
        return f"{type(error).__name__}: {error}"


def _facts_of(match: Match, condition: Term, texts: _Texts) -> dict[str, str]:
    """Return texts of the values of terms and symbols in a condition, by the text of each."""
    facts: dict[str, str] = {}
    for term in _properties(condition):
        facts[text_of(term)] = _value_text(match, term, texts)
    for symbol in symbols_of(condition):
        if isinstance(symbol, Symbol):
            content = match.bound(symbol)
            if isinstance(content, ir.Node):
                content = content.outputs[0]
            if content is None:
                facts[text_of(symbol)] = "omitted"
            elif isinstance(content, tuple):
                facts[text_of(symbol)] = ", ".join(map(texts.name, content))
            else:
                facts[text_of(symbol)] = texts.description(content)
        elif isinstance(symbol, Attribute):
            facts[text_of(symbol)] = _attribute_text(match.bound(symbol))
    facts.pop(text_of(condition), None)
    return facts


def _properties(term: object) -> Iterator[Term]:
    """Yield the terms in a condition that directly read a symbol.

    These are properties of values, calls of functions, and operators on attributes.
    """
    if isinstance(term, (tuple, list)):
        for each in term:
            yield from _properties(each)
    elif isinstance(term, Term) and not isinstance(term, Attribute):
        if any(isinstance(each, (Symbol, Attribute)) for each in term.args):
            yield term
        for each in term.args:
            yield from _properties(each)


def _failure_of(error: Exception, match: Match | None, texts: _Texts) -> Failure:
    """Return the failure for an exception of the search or of the rewrite."""
    if isinstance(error, Refused):
        consumers = {} if match is None else _other_consumers(match)
        return Failure("graph", "", "", str(error), consumers)
    if isinstance(error, NotKnown):
        reason = f"the replacement cannot be built: {texts.unknown(error)}"
        return Failure("replacement", "", "", reason)
    if isinstance(error, Mismatch):
        reason = f"the replacement has another type: {error}"
        return Failure("replacement", "", "", reason)
    return Failure("replacement", "", "", f"the rule raised {type(error).__name__}: {error}")


def _other_consumers(match: Match) -> dict[str, str]:
    """Return the consumers outside the match of each matched node, by the label of the node."""
    consumers = {}
    for node in match.nodes:
        if any(value in match.roots for value in node.outputs):
            continue
        readers = dict.fromkeys(use.node for value in node.outputs for use in uses(value))
        labels = [_quoted_label(reader) for reader in readers if reader not in match.nodes]
        if any(value.is_graph_output() for value in node.outputs):
            labels.append("the outputs of the graph")
        if labels:
            consumers[_quoted_label(node)] = f"also read by {first_of(labels, _MAX_NAMES)}"
    return consumers


# -------------------------------------------------------------------- texts


class _Texts:
    """Returns texts of values in the model, and of facts about these values."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._sizes = Texts(facts.types.algebra, ())

    def name(self, value: ir.Value | None) -> str:
        """Return the name of a value in quotes, or "None" for an omitted input."""
        return "None" if value is None else repr(value.name or "")

    def origin(self, value: ir.Value) -> str:
        """Return the source of a value: "the result of Mul"."""
        node = value.producer()
        if node is not None:
            return f"the result of {op_name(node)}"
        if value.is_initializer():
            return "a constant"
        scope = self._facts.scopes.find(value.graph)
        if scope is not None and scope.parent is not None:
            return "an input of a body"
        if scope is not None and scope.in_function:
            return "an input of a function"
        return "an input of the graph"

    def elements(self, value: ir.Value) -> str:
        """Return the elements of a small constant as the end of a sentence, or "" for other values.

        If there are many elements, their number is returned instead.
        """
        array = self._facts.constness.array(value)
        if array is None:
            return ""
        if array.size > _MAX_ELEMENTS:
            return f"has {array.size} elements"
        return f"is {array.tolist()}"

    def description(self, value: ir.Value) -> str:
        """Return the type, the elements, the origin and the consumers of a value."""
        facts = self._facts
        parts = [f"{self.name(value)}, {self.type(value)}"]
        origin = self.origin(value)
        if facts.constness.is_constant(value) and origin != "a constant":
            origin += ", a constant"
        parts.append(origin)
        array = facts.constness.array(value)
        if array is not None and array.size <= _MAX_ELEMENTS:
            parts.append(f"elements {array.tolist()}")
        parts.append(self.consumers(value))
        return ", ".join(parts)

    def type(self, value: ir.Value) -> str:
        """Return the dtype and the shape of a value: "float32[n,3]"."""
        return self._sizes.of_fact(self._facts.types.of(value)) or "of unknown type"

    def consumers(self, value: ir.Value, max_names: int = _MAX_NAMES) -> str:
        """Return the consumers of a value: "read by 2 inputs: Mul 'a', Add 'b'"."""
        readers = [_quoted_label(use.node) for use in uses(value)]
        text = f"read by {count_text(len(readers), 'input')}"
        if readers:
            text += f": {first_of(list(dict.fromkeys(readers)), max_names)}"
        return f"{text}, and an output of the graph" if value.is_graph_output() else text

    def of(self, content: Any) -> str:
        """Return the text of the value of a term."""
        if isinstance(content, Matched):
            return self.name(content.value)
        if isinstance(content, Expr):
            return self._sizes.of(content) or "?"
        if isinstance(content, (tuple, list)):
            inner = ", ".join(map(self.of, content))
            return f"({inner},)" if len(content) == 1 else f"({inner})"
        if isinstance(content, ir.DataType):
            return content.name
        if isinstance(content, np.ndarray):
            is_short = content.size <= _MAX_ELEMENTS
            return str(content.tolist()) if is_short else f"{content.size} elements"
        return str(content)

    def unknown(self, error: NotKnown) -> str:
        """Return the reason of an unknown fact as a clause."""
        if not error.args:  # from arithmetic with symbolic sizes
            return "it depends on a symbolic size"
        template, *parts = error.args
        texts = [text_of(each) if _is_symbolic(each) else self.of(each) for each in parts]
        return str(template.format(*texts))


def _is_symbolic(part: object) -> bool:
    """Return whether a part is a symbol or a term of a rule, not a matched value."""
    return isinstance(part, Recorded) and not isinstance(part, Matched)


def _quoted_label(node: ir.Node) -> str:
    """Return the op type and the quoted name of a node: "Mul 'scaled'"."""
    return f"{op_name(node)} {display_name(node)!r}"


def _op_types(op: Op) -> str:
    """Return the op types of an op: "Add or Mul"."""
    prefix = f"{op.domain}::" if op.domain else ""
    names = [prefix + op_type for op_type in op.op_types]
    if len(names) > _MAX_NAMES:
        return first_of(names, _MAX_NAMES)
    *initial, last = names
    return f"{', '.join(initial)} or {last}" if initial else last


def _element(pattern: Expression) -> str:
    """Return a short text of a pattern element, without the operands of an op."""
    if pattern.op is None:
        return repr(pattern)
    text = "|".join(pattern.op.op_types[:_MAX_NAMES])
    if len(pattern.op.op_types) > _MAX_NAMES:
        text += "|..."
    text = f"{text}(...)"
    if pattern.op.name:
        text = f"{pattern.op.name} := {text}"
    return text if pattern is pattern.op else f"{text}[{pattern.index}]"
