"""Where new nodes come from: the rule that made them and the nodes of the original model."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.rewrite.rule import Rule

RULE_KEY = "onnxfold.rule"
FROM_KEY = "onnxfold.from"
_MOST_SOURCES = 8


def inherit(old: ir.Node | None, new: ir.Node) -> None:
    """The node that makes the result in the end stands for the one that did."""
    if old is None:
        return
    if old.name:
        old_name, old.name = old.name, None
        new.name = old_name
    new.doc_string = new.doc_string or old.doc_string
    for key, text in old.metadata_props.items():
        if not key.startswith("onnxfold."):
            new.metadata_props.setdefault(key, text)


def remember_origin(rule: Rule, added: Iterable[ir.Node], dying: Iterable[ir.Node]) -> None:
    """Which rule made the new nodes, and which nodes of the original model they come from."""
    sources: dict[str, None] = {}
    rules: dict[str, None] = {}
    for node in dying:
        earlier = node.metadata_props.get(FROM_KEY)
        for name in earlier.split(", ") if earlier else [node.name or node.op_type]:
            sources[name] = None
        if RULE_KEY in node.metadata_props:
            rules.update(dict.fromkeys(node.metadata_props[RULE_KEY].split(", ")))
    rules[rule.name or rule.place] = None
    names = list(sources)
    if len(names) > _MOST_SOURCES:
        names = [*names[:_MOST_SOURCES], "..."]
    for node in added:
        if node.op_type != "Constant":
            node.metadata_props[RULE_KEY] = ", ".join(rules)
            node.metadata_props[FROM_KEY] = ", ".join(n for n in names)
