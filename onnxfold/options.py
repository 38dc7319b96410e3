"""What may be asked of an optimization, and of the check of its result."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from onnxfold.errors import UsageError, check_amounts, suggestion

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxfold.comparison.feeds import GivenFeeds
    from onnxfold.rewrite.rule import RuleSet


Level = Literal[0, 1, 2]
Target = Literal["onnxruntime"]
Precision = Literal["exact", "wide"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Options:
    """All options of an optimization.

    Args:
        level: 0 folds constants only, 1 also rewrites by the rules that keep every bit, 2 by
            inexact ones, too.
        fold_all: Fold everything that can be evaluated, whatever its size.
        fold_quantized: Treat DequantizeLinear of constants like any other op.
        max_growth: Bytes by which the model may grow where that removes nodes: a number, or a text
            such as "64kB". By default 64 KiB or 1 % of the model, whichever is larger, and at most
            16 KiB for a node. With 0 the model does not grow.
        memory_limit: Bytes that results may take in memory before they go to a scratch file, and
            that the evaluation of one node may take: a number, or a text such as "512MB"; None for
            512 MiB.
        keep: Globs of value names, or op types such as "Transpose" or "com.microsoft::Gelu"; nodes
            that make such a value, or have such a type, stay.
        fold: Globs of value names, or op types; such a value, or the results of such a node, are
            folded whatever their size, if they can be evaluated and ``keep`` does not name them.
        precision: "wide" computes chains of constants in float64, int64 and uint64 and rounds once,
            where the result is stored; "exact" rounds after every op, as a runtime does.
        explain: Record also why nodes were folded, not only why nodes stay.
        enable: Names of opt-in rules or rule sets.
        disable: Names of rules or rule sets not to use.
        target: A runtime whose own ops may be used at level 2 ("onnxruntime").
        rules: Rule sets or paths of Python files with rules, besides those that onnxfold has.
        passes: Names of passes to run instead of the level's own, in this order.
        dims: Sizes to give to symbolic dims, by their name.
        input_shapes: Shapes to give to inputs, by their name; a -1 leaves a size as it is.
        keep_dims: Names of dims that stay dynamic, whatever ``input_shapes`` says.
        value_info: Whether the inferred dtypes and shapes of all values are written into the
            model. If not, recorded ones are kept only where inference cannot restore them.
    """

    level: Level = 1
    fold_all: bool = False
    fold_quantized: bool = False
    max_growth: int | None = None
    memory_limit: int | None = None
    keep: tuple[str, ...] = ()
    fold: tuple[str, ...] = ()
    precision: Precision = "exact"
    explain: bool = False
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    target: Target | None = None
    rules: tuple[str | os.PathLike[str] | RuleSet, ...] = ()
    passes: tuple[str, ...] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    keep_dims: tuple[str, ...] = ()
    value_info: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("level", get_args(Level)),
            ("precision", get_args(Precision)),
            ("target", (*get_args(Target), None)),
        ):
            if getattr(self, name) not in known:
                choices = " or ".join(map(str, known))
                raise UsageError(f"{name} must be {choices}, got {getattr(self, name)!r}")
        check_amounts(max_growth=self.max_growth)
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise UsageError(f"the memory limit must be positive, got {self.memory_limit}")
        for name in ("keep", "fold", "enable", "disable", "rules", "passes", "keep_dims"):
            if isinstance(getattr(self, name), str):
                raise UsageError(f"{name} must be a sequence, not one string")

    def growth_of(self, size: int) -> int:
        """Return the bytes by which a model of ``size`` bytes may grow."""
        return max(1 << 16, size // 100) if self.max_growth is None else self.max_growth

    def doubtful(self, model: ir.Model) -> list[str]:
        """Return a warning for each option that has no effect on a model, or two meanings."""
        from onnxfold.graphs import all_graphs, count_nodes

        found = []
        if self.target is not None and self.level < 2:
            found.append(f"target {self.target} has no effect below level 2 (-O2)")
        if not self.keep and not self.fold:
            return found
        ops = count_nodes(model)
        names = [v.name or "" for g in all_graphs(model) for node in g for v in node.outputs]
        for option, globs in (("keep", self.keep), ("fold", self.fold)):
            for glob in globs:
                is_name = any(fnmatch.fnmatchcase(name, glob) for name in names)
                if is_name and glob in ops:
                    found.append(
                        f"{option} {glob!r} is an op type and the name of a value: both are meant"
                    )
                elif not is_name and glob not in ops:
                    known = [*ops, *names]
                    near = suggestion(glob, known) if known and not set("*?[") & set(glob) else ""
                    found.append(f"{option} {glob!r} matches no op type and no value{near}")
        return found

    def keeps(self, value: ir.Value) -> bool:
        """Return whether the node that makes a value must stay."""
        return bool(self.keep) and _matches(value, self.keep)

    def folds(self, value: ir.Value) -> bool:
        """Return whether a value is to be folded whatever it weighs."""
        return bool(self.fold) and _matches(value, self.fold)

    def rule_sets(self) -> list[RuleSet]:
        """Return all rule sets to choose from: built in, of other packages, and the ones given."""
        from onnxfold.rewrite.rule import RuleSet, available_rule_sets, load_rules

        given = (r if isinstance(r, RuleSet) else load_rules(r) for r in self.rules)
        return [*available_rule_sets(), *given]


def _matches(value: ir.Value, globs: tuple[str, ...]) -> bool:
    """Return whether a glob matches the name of a value, or is the op type of its node."""
    from onnxfold.graphs import op_name

    node, name = value.producer(), value.name or ""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs) or (
        node is not None and op_name(node) in globs
    )


def byte_size(size: int | str) -> int:
    """Return a number of bytes: 4096, "512MB" (decimal units) or "1.5GiB" (binary units).

    Raises:
        UsageError: It is no size.
    """
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I)?B?", size.strip().upper())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{size!r} is not a size such as 4096, 512MB or 1.5GiB")
    unit = _BINARY_UNITS[match[2]] if match[3] else _UNITS[match[2]]
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def named_shape(text: str) -> tuple[str, list[int]]:
    """Return the name of an input and its shape: x:1,3,224,224, with -1 for a size that stays.

    Raises:
        UsageError: It is something else.
    """
    name, _, sizes = text.rpartition(":")
    parts = sizes.split(",") if sizes else []
    if not name or not all(p.strip() == "-1" or p.strip().isdecimal() for p in parts):
        raise UsageError(f"{text!r} is not of the form x:1,3,224,224")
    return name, [int(part) for part in parts]


class ShapelessArguments(TypedDict, total=False):
    """The options by keyword but ``input_shapes``, see `Options`."""

    level: Level
    fold_all: bool
    fold_quantized: bool
    max_growth: int | str | None
    memory_limit: int | str | None
    keep: Sequence[str]
    fold: Sequence[str]
    precision: Precision
    explain: bool
    enable: Sequence[str]
    disable: Sequence[str]
    target: Target | None
    rules: Sequence[str | os.PathLike[str] | RuleSet]
    passes: Sequence[str] | None
    dims: Mapping[str, int]
    keep_dims: Sequence[str]
    value_info: bool


class OptionArguments(ShapelessArguments, total=False):
    """The options by keyword, see `Options`."""

    input_shapes: Mapping[str, Sequence[int]]


def options_of(given: Mapping[str, Any]) -> Options:
    """Return the options that keywords say; a list is as good as a tuple.

    Raises:
        UsageError: There is no such option, or it cannot have this value.
    """
    known = Options.__dataclass_fields__
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r}{suggestion(name, known)}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    for name in ("max_growth", "memory_limit"):
        if isinstance(values.get(name), str):
            values[name] = byte_size(values[name])
    return Options(**values)


@dataclass(frozen=True)
class Check:
    """How a result is compared with its source, see `onnxfold.compare`.

    Args:
        check: Number of runs with random inputs; 0 for no check, unless another argument is given:
            each of them asks for one.
        feeds: Inputs to use instead of random ones.
        check_dims: Sizes of dynamic dimensions, by name.
        rtol: Relative tolerance; None for that of the level and the precision, unless `atol` or
            `ulp` is given.
        atol: Absolute tolerance, likewise.
        ulp: Units in the last place that floats may be apart, likewise.
        custom_ops: Shared libraries with custom ops of the model.
    """

    check: int = 0
    feeds: GivenFeeds | None = None
    check_dims: Mapping[str, int] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    ulp: int | None = None
    custom_ops: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        check_amounts(check=self.check, rtol=self.rtol, atol=self.atol, ulp=self.ulp)
        if isinstance(self.custom_ops, str):
            raise UsageError("custom_ops must be a sequence, not one string")

    @property
    def seeds(self) -> int:
        """Number of runs with random inputs; 0 for no check."""
        given = (self.rtol, self.atol, self.ulp, self.feeds)
        asks = any(value is not None for value in given) or self.check_dims or self.custom_ops
        return self.check or int(bool(asks))

    @property
    def tolerance(self) -> dict[str, float] | None:
        """The tolerances as `onnxfold.compare` takes them, or None if none is given."""
        given = {"rtol": self.rtol, "atol": self.atol, "ulp": self.ulp}
        found = {name: value for name, value in given.items() if value is not None}
        return found or None


class CheckArguments(TypedDict, total=False):
    """The arguments of a check by keyword, see `Check`."""

    check: int
    feeds: GivenFeeds | None
    check_dims: Mapping[str, int]
    rtol: float | None
    atol: float | None
    ulp: int | None
    custom_ops: Sequence[str | os.PathLike[str]]


class CheckedOptionArguments(OptionArguments, CheckArguments, total=False):
    """Options of an optimization, see `onnxfold.options.Options`, and of its check, see `Check`."""


def checked_options_of(given: Mapping[str, Any]) -> tuple[Options, Check]:
    """Return the options and the check that keywords say, see `options_of`.

    Raises:
        UsageError: There is no such option, or it cannot have its value.
    """
    own = {name: value for name, value in given.items() if name in Check.__dataclass_fields__}
    return options_of({n: v for n, v in given.items() if n not in own}), Check(**own)
