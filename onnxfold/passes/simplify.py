"""Simplification by rewrite rules, and predictions of the effect of other options."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.api.options import Options
from onnxfold.api.targets import ONNXRUNTIME
from onnxfold.ir.graphs import is_constant_node
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.passes.context import RunContext
from onnxfold.rewrite.driver import Rewriter, RewriteReport, RewriteState
from onnxfold.rewrite.rule import Rule, RuleSet
from onnxfold.support.errors import UsageError, suggestion


class Simplify(ir.passes.InPlacePass):
    """Rewrite the model by rules until no rule matches.

    Rules can create nodes with constant inputs. Constant propagation folds these nodes. ``report``
    has the counts of the last call.

    Args:
        sets: The rule sets; None for those of the options.
        options: The options of the run; None for the defaults.
        run: The run to which the pass belongs; None for a pass that is used alone.

    Raises:
        UsageError: The options contain a name that is neither a rule nor a rule set.
    """

    def __init__(
        self,
        sets: Sequence[RuleSet] | None = None,
        *,
        options: Options | None = None,
        run: RunContext | None = None,
    ) -> None:
        options = options or Options()
        self._options = options
        self.rules = select_rules(
            tuple(options.rule_sets() if sets is None else sets),
            tuple(options.enable),
            tuple(options.disable),
            None if options.target is None else options.target.name,
        )
        self._run = run
        self._state = RewriteState()
        self.report = RewriteReport()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        options = self._options
        state = self._state if self._run is not None else None
        self.report = Rewriter(
            model, self.rules, level=options.level, keeps=options.keeps, state=state
        ).run()
        if self._run is not None:
            self._run.result.add_rewrites(self.report)
        return ir.passes.PassResult(model, modified=bool(self.report.counts))


@functools.lru_cache(maxsize=64)
def select_rules(
    sets: tuple[RuleSet, ...], enable: tuple[str, ...], disable: tuple[str, ...], target: str | None
) -> list[Rule]:
    """Return the rules of the sets that are on by default or enabled, without disabled rules.

    Rules for another target are not included.

    Raises:
        UsageError: A name in ``enable`` or ``disable`` is neither a rule nor a rule set.
    """
    enabled = set(enable)
    disabled = set(disable)
    names = {s.name for s in sets} | {r.name for s in sets for r in s}
    for name in sorted(enabled | disabled):
        if name not in names:
            raise UsageError(f"{name!r} is neither a rule nor a rule set{suggestion(name, names)}")
    selected: dict[Rule, None] = {}
    for rule_set in sets:
        for rule in rule_set:
            if rule.name in disabled or rule.target not in (None, target):
                continue
            # the name of a rule has priority over the name of its set
            is_set_used = not rule_set.optional or rule_set.name in enabled
            if rule.name in enabled or (is_set_used and rule_set.name not in disabled):
                selected[rule] = None
    return list(selected)


# Maximum number of nodes of a model for which `outlook` applies rules to a copy. Applying the rules
# takes about as long as the optimization.
_MAX_NODES_ADVISED = 3_000


def withheld(model: ir.Model, options: Options) -> Counter[str]:
    """Return the number of inexact rewrites at level 2, by rule. They are counted on a copy."""
    step = Simplify(options=replace(options, level=2))
    step(model.clone())
    return step.report.inexact


def outlook(model: ir.Model, options: Options) -> dict[str, int]:
    """Return the number of nodes that other command line options would remove, by option.

    The rules are applied to a copy, which shares all tensors. Constants are not computed. The
    result is empty at level 0, if the options select passes, and for a large model.
    """
    if options.level == 0 or options.passes is not None:
        return {}
    if sum(1 for _ in model.graph.all_nodes()) > _MAX_NODES_ADVISED:
        return {}
    alternatives = {
        "-O2": replace(options, level=2),
        "--target onnxruntime": replace(options, level=2, target=ONNXRUNTIME),
    }
    removed_nodes = {}
    for name, alternative in alternatives.items():
        copy = model.clone()
        if alternative != options and Simplify(options=alternative)(copy).modified:
            RemoveDeadCode()(copy)
            removed_nodes[name] = _count_variable_nodes(model) - _count_variable_nodes(copy)
    return {name: nodes for name, nodes in removed_nodes.items() if nodes > 0}


def _count_variable_nodes(model: ir.Model) -> int:
    """Return the number of nodes whose results are not all compile-time constants."""
    facts = facts_of(model)
    return sum(
        not (is_constant_node(node) or all(facts.constness.is_constant(v) for v in node.outputs))
        for graph in facts.scopes.graphs()
        for node in graph
    )
