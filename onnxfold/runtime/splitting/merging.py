"""Bringing runtime constants together before the cut: adapters become part of weights.

The rules of ``rules/runtime_constants.py`` are tried on a copy of the graph. Each place that they
change is weighed: what entry saves each run, and what is kept for each setting. The rules then run
on the model itself, without the places where that does not pay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Mapping
from typing import NamedTuple

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis, record
from onnxfold.options import Options
from onnxfold.rewrite.driver import Rewriter
from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.runtime.bundles.manifest import Merge
from onnxfold.runtime.splitting.sizes import NominalSizes, work_of

_SET = "runtime_constants"


def bring_together(
    model: ir.Model,
    names: list[str],
    options: Options,
    *,
    room: int | None = None,
    nominal: Mapping[str, int] | None = None,
) -> list[Merge]:
    """Rewrite a model so that more of it depends on runtime constants only, where that pays.

    Args:
        model: As `prepare` leaves it; changed.
        names: Its inputs that are runtime constants.
        options: Of the optimization at compile time: the level, and what must stay.
        room: Bytes that may be cached beyond what is cached without; None for no bound.
        nominal: Assumed sizes of symbolic dimensions by name.

    Returns:
        What the rules would do at level 2, place by place, and why not where they did not.
    """
    record(model, names)
    merged = model.clone()
    if _SET in options.disable or not _rewrite(merged, options, 2, ()):
        return []
    places = _places(_Weighed(model, names, nominal), _Weighed(merged, names, nominal))
    chosen: list[Merge] = []
    kept: set[str] = set()
    # first where a byte in the cache saves most
    for merge, gain, changed in sorted(places, key=lambda p: -p[1] / max(p[0].nbytes, 1)):
        reason = None
        if gain <= 0:
            reason = "entry would not be faster"
        elif options.level < 2:
            reason = "it may change the last bits: -O2"
        elif room is not None and merge.nbytes > room:
            reason = "more than --max-cache"
        elif room is not None:
            room -= merge.nbytes
        kept.update(changed if reason is not None else ())
        chosen.append(dataclasses.replace(merge, reason=reason))
    if any(merge.reason is None for merge in chosen):
        _rewrite(model, options, options.level, kept)
    return chosen


def _rewrite(model: ir.Model, options: Options, level: int, kept: Container[str | None]) -> bool:
    """Run the rules, but not where one of the values is made; False if none fired."""
    rules = [rule for each in builtin_rule_sets() if each.name == _SET for rule in each.rules]
    rules = [rule for rule in rules if rule.name not in options.disable]
    rewriter = Rewriter(
        model, rules, level=level, keeps=lambda value: value.name in kept or options.keeps(value)
    )
    return bool(rewriter.run().total)


class _Weighed:
    """A model with what its nodes take, and what is constant in it."""

    def __init__(
        self, model: ir.Model, names: Collection[str], nominal: Mapping[str, int] | None
    ) -> None:
        chosen = [value for value in model.graph.inputs if value.name in names]
        self.nodes = {v.name or "": node for node in model.graph for v in node.outputs}
        self._sizes = NominalSizes(model, chosen, nominal)
        self._constness = ConstnessAnalysis(model, chosen)

    def place(self, name: str, others: Mapping[str, ir.Node]) -> _Place:
        """Return what making a value takes, as far as the other model makes it otherwise."""
        nodes: dict[str, ir.Node] = {}
        pending = [name]
        while pending:
            node = self.nodes.get(pending.pop())
            made = node.outputs[0].name or "" if node is not None else ""
            if node is not None and made not in nodes and _is_other(node, others.get(made)):
                nodes[made] = node
                pending += [v.name or "" for v in node.inputs if v is not None]
        kind = self._constness
        running = [n for n in nodes.values() if kind.of_node(n) is Constness.VARIABLE]
        cost = sum(work_of(node, self._sizes) for node in running)
        cached = 0
        for value in dict.fromkeys(v for node in running for v in node.inputs if v is not None):
            constness = kind.of(value)
            if constness is not Constness.VARIABLE:
                nbytes = self._sizes.nbytes(value) or 0
                cost += nbytes
                cached += nbytes if constness is Constness.RUNTIME and value.producer() else 0
        return _Place(list(nodes), len(running), cost, cached)


class _Place(NamedTuple):
    """Nodes by what they make; of these, how many run each time, what these take in a run, to
    compute and to read what is constant, and the bytes that runtime_fold makes for them.
    """

    names: list[str]
    running: int
    cost: float
    cached: int


def _places(before: _Weighed, after: _Weighed) -> list[tuple[Merge, float, list[str]]]:
    """Return where the two models differ, from the results back, with the bytes that could be read
    in the time that a run saves, and the values that are not made any more, or otherwise.
    """
    found = []
    for name, node in before.nodes.items():
        if name in after.nodes and _is_other(node, after.nodes[name]):
            old, new = before.place(name, after.nodes), after.place(name, before.nodes)
            merge = Merge(name, new.cached - old.cached, old.running - new.running)
            found.append((merge, old.cost - new.cost, old.names))
    return found


def _is_other(node: ir.Node, other: ir.Node | None) -> bool:
    """Return whether a node does something else than the one that makes the same in the other
    model.
    """
    return other is None or _signature(node) != _signature(other)


def _signature(node: ir.Node) -> tuple[object, ...]:
    return (node.op_identifier(), *(None if v is None else v.name for v in node.inputs))
