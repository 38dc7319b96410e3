"""Replace the nodes that a pattern matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.fold.inference import may_be_constant
from onnxfold.ir.editing import can_take_name, new_node, remove_unused, replace, take_over
from onnxfold.ir.graphs import all_graphs
from onnxfold.ir.onnx_ir_private import nodes_of, uses
from onnxfold.ir.symbolic.fact import Texts, differ
from onnxfold.rewrite.build import Builder, Refused
from onnxfold.rewrite.matcher import Match
from onnxfold.rewrite.rule import Rule

RULE_KEY = "onnxfold.rule"
"""Metadata key for the rules that created a node and the nodes that it replaces."""
FROM_KEY = "onnxfold.from"
"""Metadata key for the nodes of the original model that a new node replaces."""
_MAX_SOURCES = 8
"""Maximum number of original nodes in the metadata of a new node."""

Keeps = Callable[[ir.Value], bool]
"""A predicate: whether the producer of a value must be kept."""


class Mismatch(Exception):
    """The replacement has another dtype or shape than the matched values: an error in the rule."""


@dataclass
class Change:
    """The changes of a rewrite."""

    added: list[ir.Node]
    """The new nodes."""
    users: list[ir.Node]
    """The consumers of the replaced values."""
    touched: list[ir.Value]
    """Results of remaining nodes that lost a use."""


def apply(match: Match, keeps: Keeps) -> Change:
    """Rewrite a match, and return the changes.

    Raises:
        Refused, NotKnown: The match cannot be rewritten; the graph is unchanged.
        Mismatch: The rule is wrong; the graph is unchanged.
    """
    first_root = match.roots[0].producer()
    assert first_root is not None
    dead = _dead_nodes(match, first_root, keeps)
    builder = Builder(match, first_root)
    try:
        values = _replacement(builder, dead, keeps)
    except Exception:
        builder.discard()
        raise
    finally:
        builder.close()
    return _connect(builder, values, dead, keeps)


def try_apply(match: Match, keeps: Keeps) -> None:
    """Raise the exception that `apply` would raise, if any; the graph is unchanged."""
    first_root = match.roots[0].producer()
    assert first_root is not None
    dead = _dead_nodes(match, first_root, keeps)
    builder = Builder(match, first_root)
    try:
        _replacement(builder, dead, keeps)
    finally:
        builder.discard()
        builder.close()


def _replacement(builder: Builder, dead: dict[ir.Node, None], keeps: Keeps) -> list[ir.Value]:
    """Build the replacement and return its values, which have no consumers yet."""
    values = builder.values()
    _check_count(builder, dead)
    _check_values(builder.match, values)
    return _keep_outputs(builder, values, dead, keeps)


def _dead_nodes(match: Match, first_root: ir.Node, keeps: Keeps) -> dict[ir.Node, None]:
    """Return the matched nodes that are dead code after the rewrite, consumers before producers.

    Args:
        match: The match.
        first_root: The producer of the first root. The new nodes are inserted before it.
        keeps: Returns whether the producer of a value must be kept.

    Raises:
        Refused: The producer of a root would not be dead code or must be kept. Or the roots are in
            different graphs, or another node may read a root before the new nodes compute it.
    """
    roots = dict.fromkeys(match.roots)
    matched = match.nodes
    for value in roots:
        if value.is_graph_output() and value.graph is not first_root.graph:
            raise Refused("a replaced value is the output of another graph")
        node = value.producer()
        if node is None or node.graph is not first_root.graph:
            raise Refused("the replaced values are in different graphs")
        if node is not first_root and any(use.node not in matched for use in uses(value)):
            raise Refused("another node may read a replaced value before the new nodes compute it")
    dead: dict[ir.Node, None] = {}

    def is_unused(value: ir.Value) -> bool:
        if value in roots:
            return True
        return not value.is_graph_output() and all(use.node in dead for use in uses(value))

    previous_count = -1
    while previous_count < len(dead):
        previous_count = len(dead)
        for node in matched:
            if node not in dead and all(map(is_unused, node.outputs)):
                dead[node] = None
    if any(value.producer() not in dead for value in roots):
        raise Refused("another output of the node of a replaced value has consumers")
    if any(keeps(value) for node in dead for value in node.outputs):
        raise Refused("kept by option")
    return dead


def _check_count(builder: Builder, dead: dict[ir.Node, None]) -> None:
    """Refuse a rewrite that adds nodes because matched nodes with other consumers are kept.

    A rewrite with new constants that keeps the node of a graph output must remove nodes. Rules with
    ``shared`` are not checked.

    Raises:
        Refused: The rewrite is refused.
    """
    match = builder.match
    removed = sum(node.graph is builder.graph for node in dead)
    if match.rule.shared or removed == len(match.nodes):
        return
    is_constant = match.facts.constness.is_constant
    added = sum(not is_constant(node.outputs[0]) for node in builder.nodes)
    kept = match.nodes.keys() - dead.keys()
    has_graph_output = any(value.is_graph_output() for node in kept for value in node.outputs)
    if added > removed or (added == removed and has_graph_output and builder.initializers):
        raise Refused("nodes of the pattern have other consumers")


def _check_values(match: Match, values: Sequence[ir.Value]) -> None:
    """Check that the new values have the types of the roots, and that runtimes load new constants.

    Raises:
        Mismatch: A new value has another dtype or shape.
        Refused: A runtime would reject the model, or nodes would read a graph output whose declared
            shape may be wrong.
    """
    types = match.facts.types
    for root, value in zip(match.roots, values, strict=True):
        before = types.of(root)
        after = types.of(value)
        has_changed = None not in (before.dtype, after.dtype) and before.dtype != after.dtype
        if has_changed or differ(before.shape, after.shape):
            text = Texts(types.algebra, ()).of_fact
            raise Mismatch(f"{text(before)} became {text(after)}")
        if match.facts.constness.tensor(value) is not None and not may_be_constant(
            root, after.dtype, after.known
        ):
            raise Refused("a runtime would not load the model if the new value were a constant")
        if not types.may_replace(root, value):
            raise Refused("other nodes would read a graph output whose declared shape may be wrong")


def _keep_outputs(
    builder: Builder, values: list[ir.Value], dead: dict[ir.Node, None], keeps: Keeps
) -> list[ir.Value]:
    """Return the new values for the roots.

    A graph output keeps its name. A new value that cannot take this name is followed by an
    Identity, whose result is returned instead.

    Raises:
        Refused: The rule would replace an Identity by an Identity, or onnxruntime would empty the
            strings of the Identity.
    """
    kept: list[ir.Value] = []
    for root, value in zip(builder.match.roots, values, strict=True):
        if root.is_graph_output() and (value in kept or not can_take_name(root, value, keeps)):
            if len(dead) == 1 and next(iter(dead)).op_type == "Identity":
                raise Refused("the Identity gives a graph output its name")
            if root.dtype == ir.DataType.STRING and value.graph is not root.graph:
                raise Refused(
                    "onnxruntime would empty the strings that the body of a Loop passes on"
                )
            node = new_node(builder.match.facts.names, root.name or "", "Identity", [value])
            builder.insert(node)
            value = node.outputs[0]
        kept.append(value)
    return kept


def _connect(
    builder: Builder, values: list[ir.Value], dead: dict[ir.Node, None], keeps: Keeps
) -> Change:
    """Replace the roots by the new values, remove the dead nodes, and return the changes."""
    match = builder.match
    new = set(builder.nodes)
    scope = match.facts.scopes.of(builder.graph)
    _record_origin(match.rule, builder.nodes, dead)
    for node in builder.nodes:
        if node.domain not in scope.root.opset_imports:
            scope.root.opset_imports[node.domain] = scope.opsets.get(node.domain, 1)
    users: dict[ir.Node, None] = {}
    for root, value in zip(match.roots, values, strict=True):
        users.update(dict.fromkeys(use.node for use in uses(root)))
        old = root.producer()
        producer = value.producer()
        match.facts.types.same(root, value)
        if producer in new or root.is_graph_output():
            # the new value takes the name of the root, which a graph output must keep
            take_over(root, value, declared=root.is_graph_output())
        else:
            replace(root, value)
        if old is not None and producer is not None and producer in new:
            if old.name:
                old_name, old.name = old.name, None
                producer.name = old_name
            producer.doc_string = producer.doc_string or old.doc_string
            for key, text in old.metadata_props.items():
                if not key.startswith("onnxfold."):
                    producer.metadata_props.setdefault(key, text)
    touched = remove_unused(dead, keeps)
    alive = [v for v in touched if v.producer() is not None and v.graph is not None]
    return Change(builder.nodes, list(users), alive)


def _record_origin(rule: Rule, added: Iterable[ir.Node], dead: Iterable[ir.Node]) -> None:
    """Record in new nodes the rules that led to them, and the original nodes that they replace."""
    sources: dict[str, None] = {}
    rules: dict[str, None] = {}
    for node in dead:
        properties = node.metadata_props
        sources |= dict.fromkeys(properties.get(FROM_KEY, node.name or node.op_type).split(", "))
        if RULE_KEY in properties:
            rules |= dict.fromkeys(properties[RULE_KEY].split(", "))
    rules[rule.name] = None
    names = list(sources)
    if len(names) > _MAX_SOURCES:
        names = [*names[:_MAX_SOURCES], "..."]
    for node in added:
        if node.op_type != "Constant":
            node.metadata_props[RULE_KEY] = ", ".join(rules)
            node.metadata_props[FROM_KEY] = ", ".join(names)


def forget_origins(model: ir.Model) -> bool:
    """Remove the metadata that `apply` recorded, and return whether a node had such metadata."""
    nodes = [node for graph in all_graphs(model) for node in nodes_of(graph)]
    removed = [node.metadata_props.pop(key, None) for node in nodes for key in (RULE_KEY, FROM_KEY)]
    return any(removed)
