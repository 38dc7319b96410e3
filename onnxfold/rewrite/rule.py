"""Rules: a pattern, what replaces it, and when; and the sets that modules define."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.rewrite.matched import Matched, plain_number
from onnxfold.rewrite.patterns import (
    AnyOf,
    AttributeVariable,
    Expression,
    MadeConstant,
    Op,
    OutputOf,
    Pair,
    Variable,
    VariadicVariable,
    result,
    text_of,
)

Function = Callable[..., Any]
"""A condition or computed value: its parameters have names of the rule's variables."""

REQUIRED = object()
"""The default of a parameter that has none."""

Parameter = tuple[int | None, Function, object]
"""The slot of a variable, what a function gets of its content, and the default."""


class RuleError(OnnxFoldError):
    """A rule is wrong: as it is written, or in what it does."""


@dataclass(eq=False)
class Rule:
    """A declarative rewrite. Made by `rule`."""

    pair: Pair
    where: tuple[Function, ...]
    inexact: bool | Function
    opset: tuple[int, int | None]
    doc: str
    file: str
    line: int
    benefit: int = 0
    target: str | None = None
    shared: bool = False
    on_constants: bool = False
    seen_in: str = ""
    """A model in which it fires."""
    ours: bool = False
    """Whether it comes with onnxfold."""
    name: str = ""
    """The module variable that holds the rule, once a rule set has collected it."""

    @functools.cached_property
    def roots(self) -> tuple[Expression, ...]:
        """The first pattern: an op (or output of one), or several alternatives."""
        first = self.pair.patterns[0]
        return tuple(first.operands) if isinstance(first, AnyOf) else (first,)

    @functools.cached_property
    def slots(self) -> dict[object, int]:
        """A place for what each variable, op and attribute variable of the pattern stands for."""
        things: dict[object, None] = {result: None}
        for expression in walk(self.pair.patterns):
            if isinstance(expression, (Variable, Op)):
                things[expression] = None
            if isinstance(expression, Op):
                if expression.variable is not None:
                    things[expression.variable] = None
                    things[expression.variable.swap] = None
                things.update(dict.fromkeys(attribute_variables(expression)))
        things.pop(None, None)  # no op variable whose operands may be the other way round
        return {thing: k for k, thing in enumerate(things)}

    @functools.cached_property
    def names(self) -> dict[str, object]:
        """The things of the pattern by the names that the parameters of functions have."""
        found: dict[str, object] = {"result": result}
        for thing in self.slots:
            name = getattr(thing, "name", "")
            if name:
                found.setdefault(name, thing)
        return found

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Yield the functions of the rule, each with what it is for."""
        conditions = (*self.where, *([] if isinstance(self.inexact, bool) else [self.inexact]))
        yield from (("a condition", function) for function in conditions)
        for expression in walk(self.pair.replacements):
            computed: list[Any] = []
            if isinstance(expression, Op):
                computed = [expression.output_count, *expression.attributes.values()]
            elif isinstance(expression, OutputOf):
                computed = [expression.index]
            elif isinstance(expression, MadeConstant):
                computed = [expression.content, expression.dtype]
            yield from (("the replacement", each) for each in computed if callable(each))

    @functools.cached_property
    def parameters(self) -> dict[Function, tuple[Parameter, ...]]:
        """How the functions of the rule are called, found out once."""
        names, slots = self.names, self.slots
        return {
            function: tuple(
                (slots.get(names.get(name)), _VIEWS.get(type(names.get(name)), Matched), default)
                for name, default in parameters_of(function).items()
            )
            for _, function in self.functions()
        }

    @property
    def place(self) -> str:
        """File and line of the definition."""
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def label(self) -> str:
        """Name and place, for messages."""
        return f"rule {self.name} ({self.place})" if self.name else f"rule at {self.place}"

    def __str__(self) -> str:
        left, right = (
            " , ".join(map(repr, side)) for side in (self.pair.patterns, self.pair.replacements)
        )
        where = "".join(f"  where {text_of(condition)}" for condition in self.where)
        return f"{left} >> {right}{where}"

    def __repr__(self) -> str:
        return self.label


def walk(expressions: Any) -> Iterator[Expression]:
    """Yield the expressions and all below them."""
    for expression in expressions:
        yield from expression.walk()


def attribute_variables(op: Op) -> list[AttributeVariable]:
    """Return the variables that an op of a pattern binds to attributes."""
    return [each for each in op.attributes.values() if isinstance(each, AttributeVariable)]


def parameters_of(function: Function) -> dict[str, object]:
    """Return the names of a function's parameters, with their defaults.

    Raises:
        TypeError: it is no function written in Python.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        raise TypeError(f"{function!r} is no function of the rule's variables")
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    required = [REQUIRED] * (len(names) - len(defaults))
    return dict(zip(names, (*required, *defaults), strict=True))


_VIEWS: dict[type, Function] = {
    AttributeVariable: lambda value, facts: plain_number(value),
    VariadicVariable: lambda values, facts: tuple(v and Matched(v, facts) for v in values),
    Op: lambda node, facts: Matched(node.outputs[0], facts),
}
"""What functions get of the content of a slot, for things that stand for no single value."""


# -------------------------------------------------------------------- rule sets


@dataclass(frozen=True, eq=False)
class RuleSet:
    """Rules in the order of their definition."""

    name: str
    rules: tuple[Rule, ...]
    doc: str = ""
    optional: bool = False
    """Whether it is used only if asked for by name."""

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __str__(self) -> str:
        width = max((len(rule.name) for rule in self.rules), default=0)
        lines = [f"{rule.name:{width}}  {_description(rule)}" for rule in self.rules]
        return "\n".join([f"{self.name}: {self.doc}", *lines])


def _description(rule: Rule) -> str:
    """Return what a rule does, whether it is inexact, and a model to which it applies."""
    inexact = "(inexact)" if rule.inexact is True else "(inexact for some matches)"
    parts = (rule.doc or str(rule), inexact if rule.inexact else "", f"[{rule.seen_in}]")
    return " ".join(part for part in parts if part not in ("", "[]"))


def rule_set(
    name: str, namespace: Mapping[str, object], *, doc: str = "", optional: bool = False
) -> RuleSet:
    """Collect the rules of a namespace: ``rule_set("identities", globals())``.

    A rule (or one in a list or tuple) gets the variable's name, unless another module named it.
    """
    found: dict[Rule, None] = {}
    for variable, thing in namespace.items():
        if variable.startswith("_"):
            continue
        several = thing if isinstance(thing, (list, tuple)) else None
        for k, rule in enumerate([thing] if several is None else several, 1):
            if isinstance(rule, Rule):
                rule.name = rule.name or (variable if several is None else f"{variable}_{k}")
                found[rule] = None
    text = doc or str(namespace.get("__doc__") or "").strip().split("\n")[0]
    return RuleSet(name, tuple(found), text, optional)


def rule_set_of(module: ModuleType) -> RuleSet:
    """Return the rule set of a module; ``OPTIONAL = True`` in it makes the set an opt-in one."""
    name = module.__name__.rpartition(".")[2]
    return rule_set(name, vars(module), optional=bool(getattr(module, "OPTIONAL", False)))


def load_rules(path: str | os.PathLike[str]) -> RuleSet:
    """Return the rule set of a Python file.

    Raises:
        UsageError: the file cannot be read as Python or defines no rule.
    """
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("a rule file must be a Python file", file=path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError:
        raise UsageError("cannot load the rules: no such file", file=path) from None
    except (OSError, SyntaxError, ImportError, NameError) as error:
        raise UsageError(f"cannot load the rules: {error}", file=path) from error
    found = rule_set_of(module)
    if not found.rules:
        raise UsageError("there is no rule in it", file=path)
    return found


@functools.cache
def builtin_rule_sets() -> tuple[RuleSet, ...]:
    """Return the rule sets that onnxfold comes with, by name."""
    if importlib.util.find_spec("onnxfold.rules") is None:
        # Python was started in the project's folder, where rules/ is beside onnxfold/
        home = importlib.import_module("onnxfold").__path__
        home.append(os.path.dirname(home[0]))
    package = importlib.import_module("onnxfold.rules")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"onnxfold.rules.{name}") for name in names]
    return tuple(found for found in map(rule_set_of, modules) if found.rules)


@functools.cache
def available_rule_sets() -> tuple[RuleSet, ...]:
    """Return the built-in rule sets and those of the entry points ``onnxfold.rules`` (modules
    with rules).

    Raises:
        UsageError: another package's rules cannot be loaded.
    """
    found = [*builtin_rule_sets()]
    for entry in metadata.entry_points(group="onnxfold.rules"):
        try:
            loaded = entry.load()
        except Exception as error:  # whatever a stranger's module does when it is loaded
            raise UsageError(f"the rules {entry.name!r} cannot be loaded: {error}") from error
        found.append(loaded if isinstance(loaded, RuleSet) else rule_set_of(loaded))
    return tuple(found)
