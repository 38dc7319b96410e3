"""Rules, and the rule sets of onnxfold, other packages and files."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Annotated

from onnxfold.rewrite.conditions import Term, symbols_of
from onnxfold.rewrite.patterns import Expression, Op, Pair, Variable, any_of, filled, result, walk
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.forks import cached_property
from onnxfold.support.user_files import run_file

_Checks = Mapping[Expression, Mapping[Expression | None, list[Term]]]


class RuleError(OnnxFoldError):
    """A rule is invalid, or raised an exception at a node."""


@dataclass(eq=False)
class Rule:
    """A declarative rewrite. The decorator `onnxfold.rewrite.rule` creates rules.

    The decorator describes ``inexact`` and the attributes from ``benefit`` to ``seen_in``.
    """

    pair: Pair
    conditions: tuple[Term, ...]
    """The conditions. All conditions must be true."""
    inexact: bool | Term
    opset: tuple[int, int | None]
    """The first and the last opset for which the rule holds. None means no last opset."""
    doc: str
    file: str
    line: int
    """The first line of the function or of its decorators."""
    name: str
    benefit: Annotated[int, -math.inf] = 0
    target: str | None = None
    shared: bool = False
    on_constants: bool = False
    seen_in: str = ""
    """A model to which the rule applies, or ""."""
    is_builtin: bool = False
    """Whether the rule is part of onnxfold."""

    @cached_property
    def roots(self) -> tuple[Expression, ...]:
        """The alternatives of the first pattern, or this pattern if it has no alternatives.

        Each root is an op, or an output of an op.
        """
        first = self.pair.patterns[0]
        return tuple(first.operands) if isinstance(first, any_of) else (first,)

    @cached_property
    def symbols(self) -> dict[object, None]:
        """The symbols that a match binds: `result`, and those of the pattern in its order.

        These are variables, ops, op variables, alternatives and attribute variables. The values of
        the dictionary are None.
        """
        symbols: dict[object, None] = {result: None}
        for expression in walk(self.pair.patterns):
            if isinstance(expression, (Variable, Op, any_of)):
                symbols[expression] = None
            if isinstance(expression, Op):
                symbols[expression.variable] = None
            symbols.update(dict.fromkeys(symbols_of(*expression.terms)))
        return symbols

    @cached_property
    def checks(self) -> _Checks:
        """For each root, the conditions by the expression after which they are checked.

        The conditions of the key None are checked at the end of the search.
        """
        return {root: self._checks_from(root) for root in self.roots}

    @cached_property
    def checks_of_exact(self) -> _Checks:
        """The same as `checks`, with the condition that no bit changes.

        If this condition depends on the replaced value only, it is checked after the root's op.
        Otherwise, it is checked at the end of the search. If ``inexact`` is a bool, the result
        is `checks`.
        """
        if not isinstance(self.inexact, Term):
            return self.checks
        exact = ~self.inexact
        checks_of_exact = {}
        is_early = {*symbols_of(exact)} == {result}
        for root, checks in self.checks.items():
            after = root.op if is_early else None
            checks_of_exact[root] = {**checks, after: [*checks.get(after, ()), exact]}
        return checks_of_exact

    def _checks_from(self, root: Expression) -> Mapping[Expression | None, list[Term]]:
        """Return the conditions of one root by the expression after which they are checked.

        The steps are the ops, alternatives and leaves of the pattern, in the order of matching. A
        condition is checked after the last step that binds one of its symbols.
        """
        pending = [root]
        steps: list[Expression] = []
        certain: dict[object, int] = {}
        possible: dict[object, int] = {}
        while pending:
            step = pending.pop()
            certain = dict.fromkeys((step, *symbols_of(*step.terms)), len(steps)) | certain
            if isinstance(step, any_of):
                # an alternative that matches binds its symbols before the next step
                for each in walk(step.operands):
                    possible |= dict.fromkeys((each, *symbols_of(*each.terms)), len(steps))
            else:
                pending.extend(reversed(step.operands))
            steps.append(step if step.op is None else step.op)
        last_steps = dict.fromkeys(self.symbols, 0) | possible | certain
        checks: dict[Expression | None, list[Term]] = {}
        for condition in self.conditions:
            last = max([last_steps.get(symbol, -1) for symbol in symbols_of(condition)], default=-1)
            # a step that is also in an alternative may match before other symbols are bound
            is_at_end = last < 0 or steps[last] in possible
            checks.setdefault(None if is_at_end else steps[last], []).append(condition)
        return checks

    def replacement_terms(self) -> list[object]:
        """Return the terms in all expressions of the replacement."""
        return [term for each in walk(self.pair.replacements) for term in each.terms]

    @property
    def location(self) -> str:
        """The file name and the line of the definition."""
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def label(self) -> str:
        """The name and the location, for messages."""
        return f"rule {self.name} ({self.location})"

    @cached_property
    def texts(self) -> tuple[str, str, tuple[str, ...]]:
        """The texts of the pattern, the replacement and the conditions."""
        self.name_ops()
        sides = (self.pair.patterns, self.pair.replacements)
        before, after = (" , ".join(map(repr, side)) for side in sides)
        return before, after, tuple(map(repr, self.conditions))

    def name_ops(self) -> None:
        """Give ops and other unnamed symbols the names of their local variables.

        Only symbols that conditions, ``inexact`` or terms of the replacement use get a name. The
        texts of patterns and conditions contain these names.
        """
        used = set(symbols_of(*self.conditions, self.inexact, *self.replacement_terms()))
        for name, variable in self.pair.names.items():
            if isinstance(variable, (Op, any_of, filled)) and variable in used:
                variable.name = name

    def __str__(self) -> str:
        before, after, conditions = self.texts
        return f"{before} >> {after}{''.join(f'  where {each}' for each in conditions)}"

    def __repr__(self) -> str:
        return self.label


@dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules in the order of their definition."""

    name: str
    rules: tuple[Rule, ...]
    doc: str = ""
    optional: bool = False
    """Whether rules are used only if an option names the set or the rule."""

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __str__(self) -> str:
        width = max((len(rule.name) for rule in self.rules), default=0)
        lines = [f"{rule.name:{width}}  {_description(rule)}" for rule in self.rules]
        return "\n".join([f"{self.name}: {self.doc}", *lines])


def _description(rule: Rule) -> str:
    """Return the description of a rule, whether the rule is inexact, and its ``seen_in``."""
    text = rule.doc or str(rule)
    if rule.inexact is not False:
        text += " (inexact)" if rule.inexact is True else " (inexact for some matches)"
    return f"{text} [{rule.seen_in}]" if rule.seen_in else text


def rule_set(
    name: str, namespace: Mapping[str, object], *, doc: str = "", optional: bool = False
) -> RuleSet:
    """Collect the rules of a namespace: ``rule_set("identities", globals())``.

    The value of a variable may be a rule, or a list or tuple of rules. Variables whose names begin
    with an underscore are ignored.

    Args:
        name: The name of the set.
        namespace: The variables, by name.
        doc: The description. By default the first line of the docstring in the namespace.
        optional: Whether rules are used only if an option names the set or the rule.
    """
    rules: dict[Rule, None] = {}
    for variable, value in namespace.items():
        if not variable.startswith("_"):
            for each in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(each, Rule):
                    rules[each] = None
    text = doc or str(namespace.get("__doc__") or "").strip().split("\n")[0]
    return RuleSet(name, tuple(rules), text, optional)


def rule_set_of(module: ModuleType) -> RuleSet:
    """Return the rule set of a module. ``OPTIONAL = True`` in the module makes it optional."""
    name = module.__name__.rpartition(".")[2]
    return rule_set(name, vars(module), optional=bool(getattr(module, "OPTIONAL", False)))


def load_rules(path: str | os.PathLike[str]) -> RuleSet:
    """Return the rule set of a Python file.

    Raises:
        UsageError: The file cannot be run as Python or defines no rule.
        RuleError: A rule in the file is invalid.
    """
    rules = rule_set_of(run_file(path, "rules"))
    if not rules.rules:
        raise UsageError("the file defines no rule", file=path)
    return rules


@functools.cache
def builtin_rule_sets() -> tuple[RuleSet, ...]:
    """Return the rule sets of onnxfold, sorted by name. Modules without rules have no set."""
    if importlib.util.find_spec("onnxfold.rules") is None:
        # In the project's folder, the package `onnxfold.rules` is rules/ beside onnxfold/.
        search_path = importlib.import_module("onnxfold").__path__
        search_path.append(os.path.dirname(search_path[0]))
    package = importlib.import_module("onnxfold.rules")
    names = sorted([name for _, name, _ in pkgutil.iter_modules(package.__path__)])
    modules = [importlib.import_module(f"onnxfold.rules.{name}") for name in names]
    return tuple(each for each in map(rule_set_of, modules) if each.rules)


@functools.cache
def available_rule_sets() -> tuple[RuleSet, ...]:
    """Return the built-in rule sets and those of the entry points ``onnxfold.rules``.

    An entry point is a `RuleSet` or a module with rules.

    Raises:
        UsageError: The rules of another package cannot be loaded.
    """
    sets = [*builtin_rule_sets()]
    for entry in metadata.entry_points(group="onnxfold.rules"):
        try:
            loaded = entry.load()
        except Exception as error:  # another package may raise anything
            source = f"the entry point {entry.name!r} in onnxfold.rules"
            raise UsageError(f"{source} cannot be loaded: {error}") from error
        sets.append(loaded if isinstance(loaded, RuleSet) else rule_set_of(loaded))
    return tuple(sets)
