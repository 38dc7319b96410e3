"""Rule sets: the rules of a module, named by the variables that hold them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

from onnxfold.errors import UsageError
from onnxfold.rewrite.rule import Rule


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
        lines = [
            f"{rule.name:{width}}  {rule.doc or rule}" + (f" [{rule.seen_in}]" * bool(rule.seen_in))
            for rule in self.rules
        ]
        return "\n".join([f"{self.name}: {self.doc}", *lines])


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
        several = isinstance(thing, (list, tuple))
        for k, rule in enumerate(thing if isinstance(thing, (list, tuple)) else [thing]):
            if isinstance(rule, Rule):
                rule.name = rule.name or (f"{variable}_{k + 1}" if several else variable)
                found[rule] = None
    text = doc or str(namespace.get("__doc__") or "").strip().split("\n")[0]
    return RuleSet(name, tuple(found), text, optional)


def rule_set_of(module: ModuleType) -> RuleSet:
    """The rule set of a module; ``OPTIONAL = True`` in it makes the set an opt-in one."""
    name = module.__name__.rpartition(".")[2]
    return rule_set(name, vars(module), optional=bool(getattr(module, "OPTIONAL", False)))


def load_rules(path: str | os.PathLike[str]) -> RuleSet:
    """The rule set of a Python file.

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
    """The rule sets that onnxfold comes with, by name."""
    package = importlib.import_module("onnxfold.rules")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"onnxfold.rules.{name}") for name in names]
    return tuple(found for found in map(rule_set_of, modules) if found.rules)


@functools.cache
def available_rule_sets() -> tuple[RuleSet, ...]:
    """The built-in rule sets and those of the entry points ``onnxfold.rules`` (modules with rules).

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
