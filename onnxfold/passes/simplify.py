"""Simplification: the declarative rewrite rules of ``rules/``, run to the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxfold.editing.removal import forget_strangers
from onnxfold.errors import UsageError
from onnxfold.graphs import all_graphs
from onnxfold.options import Options
from onnxfold.rewrite.driver import Limits, Rewriter
from onnxfold.rewrite.report import RewriteReport
from onnxfold.rewrite.rule import Rule
from onnxfold.rewrite.rule_set import RuleSet, builtin_rule_sets


class Simplify(ir.passes.InPlacePass):
    """Rewrite the model by rules until none matches any more.

    Constant expressions that rules make are nodes over constants: run constant propagation
    afterwards. ``report`` holds the counts of the last run.

    Args:
        sets: Rule sets; those that onnxfold comes with if not given.
        level: 1 for rewrites that keep every bit, 2 for inexact ones, too.
        enable: Names of opt-in rule sets to use.
        disable: Names of rules or rule sets not to use.
        target: Also use the rules for this runtime.
        options: ``keep`` says which values' nodes must stay.
        limits: When to stop.

    Raises:
        UsageError: a name is neither a rule nor a rule set.
    """

    def __init__(
        self,
        sets: Sequence[RuleSet] | None = None,
        *,
        level: int = 1,
        enable: Iterable[str] = (),
        disable: Iterable[str] = (),
        target: str | None = None,
        options: Options | None = None,
        limits: Limits | None = None,
    ) -> None:
        chosen = builtin_rule_sets() if sets is None else list(sets)
        self.rules = select_rules(chosen, enable=enable, disable=disable, target=target)
        self._level = level
        self._keeps = (options or Options()).keeps
        self._limits = limits
        self.report = RewriteReport()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        forget_strangers(list(all_graphs(model)))
        rewriter = Rewriter(
            model,
            self.rules,
            level=self._level,
            keeps=self._keeps,
            limits=self._limits,
        )
        self.report = rewriter.run()
        return ir.passes.PassResult(model, modified=bool(self.report.total))


def select_rules(
    sets: Sequence[RuleSet],
    *,
    enable: Iterable[str] = (),
    disable: Iterable[str] = (),
    target: str | None = None,
) -> list[Rule]:
    """The rules of the sets that are on by default or enabled, without the disabled ones."""
    enabled, disabled = set(enable), set(disable)
    known = {s.name for s in sets} | {r.name for s in sets for r in s}
    for name in sorted(enabled | disabled):
        if name not in known:
            raise UsageError(f"{name!r} is neither a rule nor a rule set")
    found: dict[Rule, None] = {}
    for each in sets:
        for rule in each:
            # named itself, a rule is on even if its set is not
            wanted = not each.optional or each.name in enabled or rule.name in enabled
            unwanted = each.name in disabled and rule.name not in enabled
            if wanted and not unwanted and rule.name not in disabled and _is_for(rule, target):
                found[rule] = None
    return list(found)


def _is_for(rule: Rule, target: str | None) -> bool:
    return rule.target is None or rule.target == target
