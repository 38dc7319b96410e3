"""Bringing runtime constants together before the cut: adapters become part of weights.

The rules of ``rules/runtime_constants.py`` are tried on a copy of the graph. Each place that they
change is weighed: what entry saves each run, and what is kept for each setting. The rules then run
on the model itself, without the places where that does not pay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Iterable, Mapping
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
    for merge, gain, changed in sorted(places, key=lambda p: -p.gain / max(p.merge.nbytes, 1)):
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
    rules = [rule for each in builtin_rule_sets() if each.name == _SET for rule in each]
    rules = [rule for rule in rules if rule.name not in options.disable]
    rewriter = Rewriter(
        model, rules, level=level, keeps=lambda value: value.name in kept or options.keeps(value)
    )
    return bool(rewriter.run().total)


class _Weighed:
    """A model with what its nodes take, and what is constant in it."""

    def __init__(
        self, model: ir.Model, names: Iterable[str], nominal: Mapping[str, int] | None
    ) -> None:
        chosen = [value for value in model.graph.inputs if value.name in set(names)]
        self.nodes = {v.name or "": node for node in model.graph for v in node.outputs}
        self._sizes = NominalSizes(model, chosen, nominal)
        self._constness = ConstnessAnalysis(model, chosen)

    def behind(self, name: str, others: _Weighed) -> dict[str, ir.Node]:
        """Return the nodes that make a value and are not in the other model, by what they make."""
        found: dict[str, ir.Node] = {}
        pending = [name]
        while pending:
            node = self.nodes.get(pending.pop())
            made = node.outputs[0].name or "" if node is not None else ""
            if node is not None and made not in found and _is_other(node, others.nodes.get(made)):
                found[made] = node
                pending += [v.name or "" for v in node.inputs if v is not None]
        return found

    def running(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """Return those that run each time."""
        return [node for node in nodes if self._constness.of_node(node) is Constness.VARIABLE]

    def cost(self, running: Collection[ir.Node]) -> float:
        """Return what nodes take each run: to compute, and to read what is constant."""
        nbytes = sum(self._sizes.nbytes(v) or 0 for v in self._constants(running))
        return nbytes + sum(work_of(node, self._sizes) for node in running)

    def cached(self, running: Collection[ir.Node]) -> int:
        """Return the bytes of what runtime_fold makes for nodes."""
        made = [v for v in self._constants(running) if v.producer() is not None]
        folded = [v for v in made if self._constness.of(v) is Constness.RUNTIME]
        return sum(self._sizes.nbytes(v) or 0 for v in folded)

    def _constants(self, running: Collection[ir.Node]) -> list[ir.Value]:
        """Return what they read that does not change from run to run."""
        read = dict.fromkeys(v for node in running for v in node.inputs if v is not None)
        return [v for v in read if self._constness.of(v) is not Constness.VARIABLE]


class _MergePlace(NamedTuple):
    """A value that the rules make otherwise: what that costs, the bytes that could be read in the
    time that a run saves, and the values that are not made any more, or otherwise.
    """

    merge: Merge
    gain: float
    changed: list[str]


def _places(before: _Weighed, after: _Weighed) -> list[_MergePlace]:
    """Return where the two models differ, from the results back."""
    changed = [
        name
        for name, node in before.nodes.items()
        if name in after.nodes and _is_other(node, after.nodes[name])
    ]
    found = []
    for name in changed:
        old, new = before.behind(name, after), after.behind(name, before)
        ran, runs = before.running(old.values()), after.running(new.values())
        nbytes = after.cached(runs) - before.cached(ran)
        merge = Merge(name, nbytes, len(ran) - len(runs))
        found.append(_MergePlace(merge, before.cost(ran) - after.cost(runs), list(old)))
    return found


def _is_other(node: ir.Node, other: ir.Node | None) -> bool:
    """Return whether a node does something else than the one that makes the same in the other
    model.
    """
    return other is None or _signature(node) != _signature(other)


def _signature(node: ir.Node) -> tuple[object, ...]:
    return (node.op_identifier(), *(None if v is None else v.name for v in node.inputs))
