"""How far rules match at a node, in the original and in the optimized model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.api.options import Options
from onnxfold.ir.graphs import all_graphs, op_name
from onnxfold.passes.context import Result
from onnxfold.passes.simplify import select_rules
from onnxfold.rewrite.apply import FROM_KEY, RULE_KEY
from onnxfold.rewrite.diagnosis import Attempt, diagnose, matches_root, unmet_opset
from onnxfold.rewrite.rule import Rule
from onnxfold.support.errors import UsageError, suggestion
from onnxfold.support.tables import Printable, Table, first_of

_MAX_RULES = 5  # closest rules that are returned
_MAX_MATCHED = 12  # matched nodes and values that are printed


@dataclass(frozen=True)
class RuleMatch:
    """How far one rule matches at a node.

    Attributes:
        rule: The name of the rule.
        place: File and line of the definition of the rule.
        description: The docstring of the rule.
        pattern: The text of the pattern.
        replacement: The text of the replacement.
        conditions: The texts of the conditions.
        fired: Whether the rule rewrote the node during the optimization.
        not_tried: The reasons why the optimization with these options does not try the rule at the
            node. The list is empty if the optimization tries it.
        before: The match in the original model.
        after: The match in the optimized model. None if the optimized model has neither a node nor
            a result of this name.
    """

    rule: str
    place: str
    description: str
    pattern: str
    replacement: str
    conditions: list[str]
    fired: bool
    not_tried: list[str]
    before: Attempt
    after: Attempt | None


@dataclass(frozen=True, repr=False)
class RuleMatches(Printable):
    """How far rules match at a node.

    Attributes:
        node: The name of the node. For a node without a name, the name of the first result.
        value: The name of the node's first result.
        op_type: The op type of the node.
        op_after: The op type of the node in the optimized model, or None if it is not found there.
            It is found by its name, or by the name of its first result.
        rewritten_by: The names of the rules that rewrote the node during the optimization.
        is_closest: Whether the rules are the closest ones instead of a rule that the user named.
        rules: The match of each rule, the closest one first. At most five rules are returned.
    """

    node: str
    value: str
    op_type: str
    op_after: str | None
    rewritten_by: list[str]
    is_closest: bool
    rules: list[RuleMatch]

    def _text_parts(self) -> Iterator[str | Table]:
        return _matches_text(self)


def rule_named(name: str, options: Options) -> Rule:
    """Return the rule with the name ``name``.

    Raises:
        UsageError: No rule has that name.
    """
    rules_by_name = {rule.name: rule for rules in options.rule_sets() for rule in rules}
    if name not in rules_by_name:
        raise UsageError(f"no rule has the name {name!r}{suggestion(name, rules_by_name)}")
    return rules_by_name[name]


def take_matches(
    model: ir.Model,
    node: ir.Node,
    optimized: ir.Model,
    result: Result,
    options: Options,
    rule: Rule | None,
) -> RuleMatches:
    """Return how far a rule, or the closest rules, match at a node.

    Args:
        model: The original model.
        node: The node in the original model.
        optimized: The optimized model.
        result: The result of the optimization.
        options: The options of the optimization.
        rule: The rule, or None for the closest rules.
    """
    sets = tuple(options.rule_sets())
    target = None if options.target is None else options.target.name
    selected = {*select_rules(sets, tuple(options.enable), tuple(options.disable), target)}
    value = node.outputs[0].name or ""
    name = node.name or value
    optimized_node = _node_after(optimized, node)
    before = _State(model, node, options)
    after = None if optimized_node is None else _State(optimized, optimized_node, options)
    if rule is not None:
        rules_to_try = [rule]
    else:
        rules_to_try = [each for rules in sets for each in rules if matches_root(each, node)]
    matches = [
        RuleMatch(
            rule=candidate.name,
            place=candidate.location,
            description=candidate.doc,
            pattern=candidate.texts[0],
            replacement=candidate.texts[1],
            conditions=list(candidate.texts[2]),
            fired=value in result.places.get(candidate.name, ()),
            not_tried=before.reasons_not_to_try(candidate, candidate in selected),
            before=before.attempt(candidate),
            after=None if after is None else after.attempt(candidate),
        )
        for candidate in rules_to_try
    ]
    matches.sort(key=_closeness, reverse=True)
    return RuleMatches(
        node=name,
        value=value,
        op_type=op_name(node),
        op_after=None if optimized_node is None else op_name(optimized_node),
        rewritten_by=_rewritten_by(optimized, result, name, value),
        is_closest=rule is None,
        rules=matches[:_MAX_RULES],
    )


class _State:
    """A node of the model before or after the optimization."""

    def __init__(self, model: ir.Model, node: ir.Node, options: Options) -> None:
        self.node = node
        self._options = options
        self._facts: ModelFacts = facts_of(model)

    def attempt(self, rule: Rule) -> Attempt:
        """Return how far a rule matches at the node."""
        exact = self._options.level < 2 and rule.inexact is not True
        return diagnose(rule, self.node, self._facts, exact=exact, keeps=self._options.keeps)

    def reasons_not_to_try(self, rule: Rule, is_selected: bool) -> list[str]:
        """Return the reasons why the optimization does not try a rule at the node."""
        options = self._options
        reasons = []
        target = None if options.target is None else options.target.name
        if options.level < 1 or (options.passes is not None and "simplify" not in options.passes):
            reasons.append("the options exclude the pass that applies rules")
        if rule.inexact is True and options.level < 2:
            reasons.append("it may change bits, so it applies at -O2 only")
        if rule.target not in (None, target):
            reasons.append(f"it applies with --target {rule.target} only")
        elif not is_selected:
            reasons.append("it is not enabled, or it is disabled")
        scope = self._facts.scopes.find(self.node.graph)
        opset = unmet_opset(rule, {} if scope is None else scope.opsets)
        if opset is not None:
            reasons.append(opset)
        if not rule.on_constants and self._facts.constness.is_constant(self.node.outputs[0]):
            reasons.append("the result of the node is a constant, which is folded")
        return reasons


def _closeness(match: RuleMatch) -> tuple[bool, bool, int, bool, int]:
    """Return a sort key, which is larger for a closer rule.

    Rules that fired are closest, then rules that apply, then rules that match more ops. Of these,
    rules that the optimization tries are closer, then rules that match more symbols.
    """
    attempt = match.before
    ops, symbols = attempt.progress
    return match.fired, attempt.applies, ops, not match.not_tried, symbols


def _node_after(optimized: ir.Model, node: ir.Node) -> ir.Node | None:
    """Return the node of the optimized model that corresponds to a node of the original model.

    The names of both nodes are equal. Otherwise, the name of the original node's first result is
    the name of a result. None if there is no such node.
    """
    nodes = [candidate for graph in all_graphs(optimized) for candidate in graph]
    value = node.outputs[0].name
    for candidate in nodes:
        if node.name and candidate.name == node.name:
            return candidate
    for candidate in nodes:
        if value and any(output.name == value for output in candidate.outputs):
            return candidate
    return None


def _rewritten_by(optimized: ir.Model, result: Result, name: str, value: str) -> list[str]:
    """Return the rules that fired at a node, and the rules that replaced it as a part of a match.

    Args:
        optimized: The optimized model, whose nodes record the rules that created them.
        result: The result of the optimization.
        name: The name of the node, or of its first result.
        value: The name of the node's first result.
    """
    rules = {rule: None for rule, values in result.places.items() if value in values}
    for graph in all_graphs(optimized):
        for node in graph:
            properties = node.metadata_props
            if name in properties.get(FROM_KEY, "").split(", ") and RULE_KEY in properties:
                rules |= dict.fromkeys(properties[RULE_KEY].split(", "))
    return list(rules)


# -------------------------------------------------------------------- as text


def _matches_text(matches: RuleMatches) -> Iterator[str | Table]:
    """Yield the explanation of one rule, or a table of the closest rules."""
    if matches.rewritten_by:
        changes = f"rewritten by {', '.join(matches.rewritten_by)}"
    else:
        changes = "no rule rewrote it"
    yield f"{matches.op_type} {matches.node}: {changes}"
    if matches.is_closest and not matches.rules:
        yield f"no rule has a pattern that ends in {matches.op_type}"
    elif matches.is_closest:
        yield ""
        yield _closest(matches)
    else:
        yield from _one_rule(matches, matches.rules[0])


def _closest(matches: RuleMatches) -> Table:
    rows = []
    for match in matches.rules:
        attempt = match.before
        if match.fired:
            text = "fired"
        elif attempt.applies:
            text = "matches"
        else:
            text = attempt.failures[0].reason
        reasons = "; ".join(match.not_tried)
        rows.append((match.rule, str(attempt.progress[0]), text, reasons))
    return Table(("rule", ">matched ops", "first failure", "not tried"), rows)


def _one_rule(matches: RuleMatches, match: RuleMatch) -> Iterator[str | Table]:
    yield f"rule {match.rule} ({match.place}): {match.description}"
    yield ""
    yield f"pattern      {match.pattern}"
    yield f"replacement  {match.replacement}"
    for condition in match.conditions:
        yield f"condition    {condition}"
    yield ""
    if match.fired:
        yield "the rule fired at this node"
    for reason in match.not_tried:
        yield f"the rule is not tried: {reason}"
    yield from _attempt("in the original model", match.before)
    if match.after is None:
        yield "in the optimized model: no node has this name"
    elif _outcome(match.after) == _outcome(match.before):
        yield "in the optimized model: the same"
    else:
        yield ""
        if matches.op_after != matches.op_type:
            yield f"in the optimized model, the node is {matches.op_after}"
        yield from _attempt("in the optimized model", match.after)


def _outcome(attempt: Attempt) -> tuple[bool, list[str], list[str]]:
    """Return the printed parts of an attempt, except for the facts of its failures."""
    return attempt.applies, attempt.matched, [failure.reason for failure in attempt.failures]


def _attempt(state: str, attempt: Attempt) -> Iterator[str | Table]:
    yield f"{state}: {'the rule matches' if attempt.applies else 'the rule does not match'}"
    if attempt.matched:
        yield f"  matched: {first_of(attempt.matched, _MAX_MATCHED)}"
    for failure in attempt.failures:
        yield f"  failed: {failure.reason}"
        for term, text in failure.facts.items():
            yield f"    {term}: {text}"
