"""What a page tells of a run of the optimizer, noted while it runs."""

from __future__ import annotations

import time
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.decisions import Decision
from onnxfold.graphs import shaped
from onnxfold.options import Options
from onnxfold.passes import all_passes
from onnxfold.pool import Buffer
from onnxfold.report.page.documents import head
from onnxfold.report.page.skeleton import Skeleton, inferred_types, short
from onnxfold.report.page.tensors import StoredBefore
from onnxfold.report.summary import Report
from onnxfold.rewrite.apply import FROM_KEY, RULE_KEY

_FOLDING = "constant-propagation"
_MOST_PLACES = 100  # of one rule
_MOST_KEPT = 500
_MOST_ROUNDINGS = 100
_MOST_POINTS = 1000


class Recording:
    """Facts of one run; an `onnxfold.passes.context.Observer`.

    Of the model as it came it keeps names and types. It holds on to the nodes of the page only
    until a pass removes them.

    Args:
        model: The model before the run.
        options: Of the run.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self._options = options
        self._timeline = Timeline()
        self._begin(model)

    def _begin(self, model: ir.Model) -> None:
        self._model = model
        self._before = Skeleton(model, "before")
        self._stored = StoredBefore(model, self._before.constness)
        self._left = self._before.forget_model()
        """Nodes that are still there, by their index in the skeleton."""
        self._gone_by: dict[int, str] = {}
        self._types: dict[str, str] = {}
        self._results: set[str] = set()
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
        self._types[short(name)] = short(shaped(buffer.dtype, buffer.shape))
        self._timeline.made(buffer.nbytes)

    def passed(self, name: str, model: ir.Model) -> None:
        """See which nodes a pass has removed, and what is known of the others."""
        if model is not self._model:  # the run begins again with fewer rules
            self._begin(model)
        gone = [index for index, node in self._left.items() if node.graph is None]
        for index in gone:
            del self._left[index]
            self._gone_by[index] = name
        has_rules = self._options.level > 0 and self._options.passes is None
        if name == _FOLDING and has_rules and not self._has_types:
            self._has_types = True  # at this place they are found out for the rules anyway
            self._types.update(inferred_types(model, self._left.values()))

    # ---------------------------------------------------------------- afterwards

    def document(self, report: Report, model: ir.Model) -> dict[str, Any]:
        """Return the data of the page, JSON-ready.

        Args:
            report: Of the run.
            model: As it is now.
        """
        self._timeline.end()
        decided = {short(d.value or d.node): d for d in report.decisions}
        rules: dict[str, dict[str, None]] = {}
        for rule, values in report.places.items():
            for value in values:
                rules.setdefault(short(value), {})[rule] = None
        self._before.learn(self._types)
        after = Skeleton(model, "after")
        after.infer(model)
        after.learn(self._types)
        for node, made in zip(after.nodes, after.drawn, strict=True):
            decision = decided.get(after.name_of(node))
            if decision is not None and not decision.folded:
                _decide(node, decision)
            if RULE_KEY in made.metadata_props:
                node["rules"] = [short(name) for name in made.metadata_props[RULE_KEY].split(", ")]
                node["from"] = short(made.metadata_props.get(FROM_KEY, ""))
        made_still = {value[0] for value in after.values if value[2] == "result"}
        for index, node in enumerate(self._before.nodes):
            name = self._before.name_of(node)
            decision = decided.get(name)
            if decision is not None:
                _decide(node, decision)
            if name in rules:
                node["rules"] = list(rules[name])
            if index in self._gone_by:
                node["gone"] = True
                _tell_why_gone(node, self._gone_by[index], decision, name in made_still)
        return {
            **head("optimize", report.source or "", report.target or ""),
            "run": _run(report),
            "rules": _rules(report, self._options),
            "memory": {
                "columns": ["seconds", "live bytes", "bytes of all results so far"],
                "points": [[round(t, 4), live, every] for t, live, every in self._timeline.points],
            },
            "tensors": self._stored.beside(model),
            "graphs": [self._before.to_dict(), after.to_dict()],
        }


def _run(report: Report) -> dict[str, Any]:
    """Return the report; decisions are with the nodes of the graph, places with the rules."""
    run = report.to_dict()
    del run["decisions"], run["places"]
    rounded = list(report.rounded.items())
    apart = [rounding for rounding in run["roundings"] if rounding["differing"]]
    return {
        **run,
        "kept": [
            {k: short(str(n[k])) for k in ("value", "op_type", "graph", "reason")}
            for n in run["kept"][:_MOST_KEPT]
        ],
        "kept_left_out": max(0, len(report.kept) - _MOST_KEPT),
        "measured": len(report.roundings),
        "roundings": [{**r, "tensor": short(r["tensor"])} for r in apart[:_MOST_ROUNDINGS]],
        "roundings_left_out": max(0, len(apart) - _MOST_ROUNDINGS),
        "rounded": [[short(value), short(why)] for value, why in rounded[:_MOST_ROUNDINGS]],
        "rounded_left_out": max(0, len(rounded) - _MOST_ROUNDINGS),
    }


def _rules(report: Report, options: Options) -> list[dict[str, Any]]:
    docs = {rule.name: rule.doc for rules in options.rule_sets() for rule in rules}
    return [
        {
            "name": name,
            "doc": docs.get(name, ""),
            "count": count,
            "inexact": report.inexact.get(name, 0),
            "places": [short(place) for place in report.places.get(name, ())[:_MOST_PLACES]],
            "left_out": max(0, count - _MOST_PLACES),
        }
        for name, count in report.rewrites.items()
    ]


def _tell_why_gone(
    node: dict[str, Any], by: str, decision: Decision | None, is_made_still: bool
) -> None:
    node["by"] = by
    if by != _FOLDING:
        node["decision"] = "computed by another node" if is_made_still else "removed"
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


class Timeline:
    """Live bytes over time, beside what they would be if no result was ever given up.

    Each point stands for the same number of changes, with the most that was live during them. When
    there are too many points, two become one.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, int, int]] = []
        """Seconds since the start, bytes that were live, bytes of all results until then."""
        self.every_result = 0
        """Bytes of all results until now."""
        self._start = time.perf_counter()
        self._changes = 0
        self._stride = 1
        self._most = 0
        self._now = 0

    def holds(self, nbytes: int) -> None:
        """So many bytes are live from now on."""
        self._now = nbytes
        self._most = max(self._most, nbytes)
        self._changes += 1
        if self._changes >= self._stride:
            self._add()

    def made(self, nbytes: int) -> None:
        """There is a result of so many bytes more; who stores every intermediate keeps it."""
        self.every_result += nbytes
        self.holds(self._now)

    def end(self) -> None:
        """The run is over."""
        self._add()

    def _add(self) -> None:
        self.points.append((time.perf_counter() - self._start, self._most, self.every_result))
        self._changes, self._most = 0, self._now
        if len(self.points) >= _MOST_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(late, max(a, b), every) for (_, a, _), (late, b, every) in pairs]
            self._stride *= 2
