"""What a page tells of a run of the optimizer, noted while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.decisions import Decision
from onnxfold.options import Options
from onnxfold.passes.registry import all_passes
from onnxfold.pool import Buffer
from onnxfold.report.inventory import shaped
from onnxfold.report.page.skeleton import Collector, inferred_types, short
from onnxfold.report.page.tensors import StoredBefore
from onnxfold.report.page.timeline import Timeline
from onnxfold.rewrite.apply import FROM_KEY, RULE_KEY

_FOLDING = "constant-propagation"


class Recording:
    """Facts of one run; an `onnxfold.passes.context.Observer`.

    Of the model as it came it keeps names and types. It holds on to the nodes of the page only
    until a pass removes them.

    Args:
        model: The model before the run.
        options: Of the run.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self._level = options.level if options.passes is None else 0
        self._timeline = Timeline()
        self._begin(model)

    def _begin(self, model: ir.Model) -> None:
        collector = Collector(model, "before")
        self._model = model
        self._before = collector.skeleton
        self._left = dict(enumerate(collector.nodes))
        """Nodes that are still there, by their index in the skeleton."""
        self._gone_by: dict[int, str] = {}
        self._types: dict[str, str] = {}
        self._results: set[str] = set()
        self._stored = StoredBefore(model, collector.constness)
        self._has_types = False

    # ---------------------------------------------------------------- while it runs

    def holds(self, nbytes: int) -> None:
        """So many bytes are live in the pool."""
        self._timeline.holds(nbytes)

    def bound(self, value: ir.Value, buffer: Buffer) -> None:
        """A constant is known by dtype and shape; results of nodes count once."""
        name = value.name
        if not name or value.const_value is not None or name in self._results:
            return
        self._results.add(name)
        self._stored.made(value)
        self._types[short(name)] = short(shaped(buffer.dtype.name, buffer.shape))
        self._timeline.made(buffer.nbytes)

    def passed(self, name: str, model: ir.Model) -> None:
        """See which nodes a pass has removed, and what is known of the others."""
        if model is not self._model:  # the run begins again with fewer rules
            self._begin(model)
        gone = [index for index, node in self._left.items() if node.graph is None]
        for index in gone:
            del self._left[index]
            self._gone_by[index] = name
        if name == _FOLDING and self._level and not self._has_types:
            self._has_types = True
            self._learn_types(model)

    def _learn_types(self, model: ir.Model) -> None:
        """Types of variable values: at this place they are found out for the rules anyway."""
        self._types.update(inferred_types(model, self._left.values()))

    # ---------------------------------------------------------------- afterwards

    def document(
        self,
        model: ir.Model,
        decisions: Sequence[Decision],
        places: Mapping[str, Sequence[str]],
    ) -> dict[str, Any]:
        """Memory, tensors, and both graphs, JSON-ready.

        Args:
            model: The model as it is now.
            decisions: All that was decided.
            places: Where each rule fired.
        """
        self._timeline.end()
        decided = {short(d.value or d.node): d for d in decisions}
        rules: dict[str, list[str]] = {}
        for rule, values in places.items():
            for value in values:
                known = rules.setdefault(short(value), [])
                if rule not in known:
                    known.append(rule)
        self._before.learn(self._types)
        after = Collector(model, "after")
        after.skeleton.learn(inferred_types(model, after.nodes))
        for node, made in zip(after.skeleton.nodes, after.nodes, strict=True):
            decision = decided.get(after.skeleton.name_of(node))
            if decision is not None and not decision.folded:
                _decide(node, decision)
            if RULE_KEY in made.metadata_props:
                node["rules"] = [short(name) for name in made.metadata_props[RULE_KEY].split(", ")]
                node["from"] = short(made.metadata_props.get(FROM_KEY, ""))
        made_still = {value[0] for value in after.skeleton.values if value[2] == "result"}
        for index, node in enumerate(self._before.nodes):
            name = self._before.name_of(node)
            decision = decided.get(name)
            if decision is not None:
                _decide(node, decision)
            if name in rules:
                node["rules"] = rules[name]
            if index in self._gone_by:
                node["gone"] = True
                _tell_why_gone(node, self._gone_by[index], decision, name in made_still)
        return {
            "memory": {
                "columns": ["seconds", "live bytes", "bytes of all results so far"],
                "points": [[round(t, 4), live, every] for t, live, every in self._timeline.points],
            },
            "tensors": self._stored.beside(model),
            "graphs": [self._before.to_dict(), after.skeleton.to_dict()],
        }


def _tell_why_gone(
    node: dict[str, Any], by: str, decision: Decision | None, is_made_still: bool
) -> None:
    node["by"] = by
    if by != _FOLDING:
        node["decision"] = "another node makes its value" if is_made_still else "gone"
        node.pop("why", None)
        info = all_passes().get(by)
        if info is not None:
            node["why"] = f"what {by} does: {info.doc}"
    elif decision is None:
        node["decision"] = "folded"
        node["why"] = "its result is small, or its branch was chosen"


def _decide(node: dict[str, Any], decision: Decision) -> None:
    node["decision"] = "folded" if decision.folded else "stays"
    node["why"] = short(decision.reason)
    if decision.bytes_if_folded is not None:
        node["bytes_if_folded"] = decision.bytes_if_folded
    if decision.bytes_if_kept is not None:
        node["bytes_if_kept"] = decision.bytes_if_kept
