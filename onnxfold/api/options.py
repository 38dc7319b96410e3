"""The options of an optimization and of the check of its result."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from onnxfold.api.signatures import Size
from onnxfold.api.targets import Target, target_of
from onnxfold.support.errors import UsageError, option, suggestion

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxfold.ops import Op
    from onnxfold.rewrite.rule import RuleSet


Level = Literal[0, 1, 2]
Precision = Literal["exact", "wide"]
FoldAt = Literal["compile", "runtime"]

_MIN_GROWTH = 64 * 1024
"""Bytes by which a model of any size may grow by default. Large models may grow by more."""


class OptionArguments(TypedDict, total=False):
    """The options of an optimization.

    Args:
        level: 0: fold constants; 1 (default): also apply rules that preserve every bit; 2: also
            apply inexact rules.
        fold_all: Fold all constants that can be evaluated, regardless of their size.
        fold_quantized: Also fold DequantizeLinear of weights.
        max_growth: Bytes by which the model may grow if this removes nodes, such as 64kB; 0 allows
            no growth. By default 64 KiB or 1 % of the model, whichever is larger, and at most
            16 KiB for each removed node.
        memory_limit: Bytes of results to hold in memory, such as 512MB; further results are written
            to disk. A node whose evaluation takes more than this limit and more than 16 MiB is not
            folded. By default 512 MiB.
        keep: Do not fold nodes whose output name matches a glob, or whose op type is given, such as
            Transpose or com.microsoft::Gelu.
        fold: Fold values whose name matches a glob, or that a node of an op type produces,
            regardless of their size. Values that cannot be evaluated or match keep are not folded.
        precision: exact: round after every op, as a runtime does. wide: compute chains of constants
            in 64 bits and round once, at the end of the chain.
        explain: Also record why nodes were folded, not only why nodes were kept.
        enable: Use opt-in rules or rule sets.
        disable: Do not use rules or rule sets.
        target: Also use ops that only this runtime has; implies level 2.
        rules: Also use the rules of Python files, or rule sets.
        ops: Definitions of custom ops: Python files, or classes that `onnxfold.ops.op` decorates.
            They define shapes, costs and determinism.
        custom_ops: Shared libraries with custom ops of the model, for onnxruntime. Nodes of ops
            that are defined as deterministic are folded if their operands are constant.
        passes: Run these passes, in this order, instead of those of the level.
        dims: Fix sizes of symbolic dimensions, by name.
        input_shapes: Fix shapes of inputs, by name or as strings such as x:1,3,224,224; -1 does not
            change a size.
        keep_dims: Keep dimensions dynamic, even if the shape of an input fixes them.
        value_info: Write the inferred dtypes and shapes of all values. By default, dtypes and
            shapes in the model are kept only if inference cannot restore them.
        keep_metadata: Keep the debugging metadata of exporters, such as stack traces, FX nodes and
            class names. Metadata of the model and names of modules are always kept.
    """

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
    target: str | Target | None
    rules: Sequence[str | os.PathLike[str] | RuleSet]
    ops: Sequence[str | os.PathLike[str] | type[Op]]
    custom_ops: Sequence[str | os.PathLike[str]]
    passes: Sequence[str] | None
    dims: Mapping[str, int]
    input_shapes: Mapping[str, Sequence[Size]] | Sequence[str] | None
    keep_dims: Sequence[str]
    value_info: bool
    keep_metadata: bool


class SplitArguments(OptionArguments, total=False):
    """The options of splitting a model.

    Args:
        runtime_constants: Inputs that are equal in many runs, by name or glob. A name or glob that
            matches no input selects weights, by their names in the file or in PyTorch.
        overridable: Also use every input that has a default value as a runtime constant.
        fold_at: compile: fold constants and optimize both parts now; runtime: let runtime_fold
            compute constants, for a smaller bundle. By default compile.
        max_cache: Bytes that cached tensors may take at nominal sizes. By default unlimited.
        nominal: Assumed sizes of symbolic dimensions, by name, for the cut and for timing kernels.
        backend_options: Options for the backend's compiler, such as -O2. They are part of the cache
            key of kernels.
        target_cpu: CPU that kernels are compiled for: a level (x86-64, x86-64-v2, x86-64-v3,
            x86-64-v4), native for this CPU, or generic for all CPUs of this architecture. By
            default native. With several CPUs, each component has a kernel for each of them.
        compile_seconds: Time limit in seconds of each compilation and of each check of a kernel. By
            default 120.
        dump_ir: Folder for the graphs of both parts as .dot files, and for the compilation stages
            of runtime_fold.
    """

    runtime_constants: Iterable[str]
    overridable: bool
    fold_at: FoldAt
    max_cache: int | None
    nominal: Mapping[str, int] | None
    backend_options: Sequence[str]
    target_cpu: str | Sequence[str] | None
    compile_seconds: float
    dump_ir: str | os.PathLike[str] | None


class CheckedOptionArguments(OptionArguments, total=False):
    """The options of an optimization, see `OptionArguments`, and of the check of its result.

    If a tolerance is given, the outputs must be within it. Otherwise, the outputs must be equal bit
    for bit, except for the tolerances in `onnxfold.tools.comparison.tolerances`. These apply to
    half precision and, with inexact rules or wide precision, to all floats.

    Args:
        check: Number of random inputs on which the result is compared with the model before it is
            written. The outputs must be equal or within the tolerance node by node. The result must
            run in onnxruntime's default session if the model does; differences in this session are
            only reported. Any other option of the check, and custom_ops, also enables the check.
        feeds: Inputs to use instead of random ones: an .npz file, a folder with input_0.pb, ..., a
            folder of such folders, or arrays by name.
        check_dims: Sizes of dynamic dimensions in the comparison, by name.
        rtol: Relative tolerance; setting one tolerance sets the others to 0.
        atol: Absolute tolerance.
        ulp: Maximum difference of floats in units in the last place.
    """

    check: int
    feeds: Mapping[str, Any] | str | os.PathLike[str] | None
    check_dims: Mapping[str, int]
    rtol: float | None
    atol: float | None
    ulp: int | None


@dataclass(frozen=True)
class Options:
    """The parsed values of the options in `CheckedOptionArguments`, with their defaults."""

    level: Level = 1
    fold_all: bool = False
    fold_quantized: bool = False
    max_growth: int | None = None
    memory_limit: int | None = None
    keep: Sequence[str] = ()
    fold: Sequence[str] = ()
    precision: Precision = "exact"
    explain: bool = False
    enable: Sequence[str] = ()
    disable: Sequence[str] = ()
    target: Target | None = None
    rules: Sequence[str | os.PathLike[str] | RuleSet] = ()
    ops: Sequence[str | os.PathLike[str] | type[Op]] = ()
    passes: Sequence[str] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    keep_dims: Sequence[str] = ()
    value_info: bool = False
    keep_metadata: bool = False
    check: int = 0
    feeds: Mapping[str, Any] | str | os.PathLike[str] | None = None
    check_dims: Mapping[str, int] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    ulp: int | None = None
    custom_ops: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            object.__setattr__(self, "target", target_of(self.target))

    def growth_of(self, size: int) -> int:
        """Return the bytes by which a model of ``size`` bytes may grow."""
        if self.max_growth is not None:
            return self.max_growth
        return max(_MIN_GROWTH, size // 100)

    def warnings_for(self, model: ir.Model) -> list[str]:
        """Return a warning for each glob of ``keep`` and ``fold`` that is ineffective or ambiguous.

        A glob is ineffective if it matches neither a value nor an op type of the model. It is
        ambiguous if it matches a value and is an op type.
        """
        from onnxfold.ir.graphs import all_graphs, count_nodes

        warnings: list[str] = []
        if not self.keep and not self.fold:
            return warnings
        ops = count_nodes(model)
        names = [v.name or "" for g in all_graphs(model) for node in g for v in node.outputs]
        for argument, globs in (("keep", self.keep), ("fold", self.fold)):
            for glob in globs:
                is_name = glob in names or any(fnmatch.fnmatchcase(name, glob) for name in names)
                subject = f"{option(argument)} {glob!r}"
                if is_name and glob in ops:
                    reason = "is an op type and the name of a value; it applies to both"
                    warnings.append(f"{subject} {reason}")
                elif not is_name and glob not in ops:
                    candidates = [*ops, *names]
                    is_pattern = bool(set("*?[") & set(glob))
                    hint = "" if is_pattern or not candidates else suggestion(glob, candidates)
                    warnings.append(f"{subject} matches no op type and no value{hint}")
        return warnings

    def keeps(self, value: ir.Value) -> bool:
        """Return whether ``keep`` matches a value. The node of such a value must not be folded."""
        return bool(self.keep) and _matches(value, self.keep)

    def folds(self, value: ir.Value) -> bool:
        """Return whether ``fold`` matches a value. The size of such a value is not limited."""
        return bool(self.fold) and _matches(value, self.fold)

    def rule_sets(self) -> list[RuleSet]:
        """Return all rule sets: of onnxfold, other packages, the target and ``rules``.

        Raises:
            UsageError: A file or package of rules cannot be loaded.
        """
        from onnxfold.rewrite.rule import RuleSet, available_rule_sets, load_rules

        target_rules = () if self.target is None else self.target.rules
        sets = [*available_rule_sets()]
        for rules in (*target_rules, *self.rules):
            sets.append(rules if isinstance(rules, RuleSet) else load_rules(rules))
        return sets

    def load_ops(self) -> None:
        """Register the definitions of the target's ops and of ``ops``."""
        target_ops = () if self.target is None else self.target.ops
        sources = (*target_ops, *self.ops)
        if not sources:
            return
        from onnxfold.ops import load_ops

        for source in sources:
            load_ops(source)

    @property
    def seeds(self) -> int:
        """The number of runs with random inputs; 0 for no check.

        The number is 1 if ``check`` is 0, but another option enables the check. With ``feeds``, the
        check uses no random inputs.
        """
        is_implied = self.tolerance or self.feeds is not None or self.check_dims or self.custom_ops
        return self.check or int(bool(is_implied))

    @property
    def tolerance(self) -> dict[str, float] | None:
        """The tolerances that are not None as keywords of `onnxfold.compare`; None without any."""
        options = {"rtol": self.rtol, "atol": self.atol, "ulp": self.ulp}
        tolerances = {name: value for name, value in options.items() if value is not None}
        return tolerances or None


def _matches(value: ir.Value, globs: Sequence[str]) -> bool:
    """Return whether a glob matches the name of a value or equals the op type of its producer."""
    from onnxfold.ir.graphs import op_name

    node = value.producer()
    if matches_any(value.name or "", globs):
        return True
    return node is not None and op_name(node) in globs


def matches_any(name: str, globs: Sequence[str]) -> bool:
    """Return whether a name is equal to one of the globs or matches one."""
    return name in globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def byte_size(size: int | str | None) -> int | None:
    """Parse a number of bytes such as 4096, "512MB" (decimal units) or "1.5GiB" (binary units).

    Integers and None are returned unchanged.

    Raises:
        UsageError: The string is not a size.
    """
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I)?B?", size.strip().upper())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{size!r} is not a size such as 4096, 512MB or 1.5GiB")
    unit = (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " ")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def named_shape(text: str) -> tuple[str, list[int]]:
    """Parse the name and shape of an input, such as x:1,3,224,224. -1 does not change a size.

    Raises:
        UsageError: The text does not have this form.
    """
    name, _, sizes = text.rpartition(":")
    parts = sizes.split(",") if sizes else []
    if not name or not all(part.strip() == "-1" or part.strip().isdecimal() for part in parts):
        raise UsageError(f"{text!r} is not of the form x:1,3,224,224")
    return name, [int(part) for part in parts]


def options_of(
    arguments: Mapping[str, Any], declaration: type[OptionArguments] = CheckedOptionArguments
) -> Options:
    """Create options from keywords.

    Args:
        arguments: The values, by name.
        declaration: The type that declares the names.

    Raises:
        UsageError: A name is unknown, a size or shape cannot be parsed, the target does not exist,
            or the level is too low for a target.
    """
    declared = declaration.__annotations__
    for name in arguments:
        if name not in declared:
            raise UsageError(f"unknown option {name!r}{suggestion(name, declared)}")
    shapes = arguments.get("input_shapes") or {}
    is_named = isinstance(shapes, Mapping)
    values = {
        **arguments,
        "max_growth": byte_size(arguments.get("max_growth")),
        "memory_limit": byte_size(arguments.get("memory_limit")),
        "input_shapes": shapes if is_named else dict(map(named_shape, shapes)),
    }
    if values["memory_limit"] == 0:
        raise UsageError(f"{option('memory_limit')} must be positive, got 0")
    target = arguments.get("target")
    if target is not None and values.setdefault("level", 2) < 2:
        raise UsageError(f"the target {target} requires level 2, got level {values['level']}")
    return Options(**values)
