"""Passes by name: ours, onnx-ir's, and those that other packages bring."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.options import Options

Factory = Callable[[Options], ir.passes.PassBase]


@dataclass(frozen=True)
class PassInfo:
    """A pass that can be asked for by name."""

    name: str
    doc: str
    factory: Factory


def create(name: str, options: Options | None = None) -> ir.passes.PassBase:
    """A new pass.

    Args:
        name: One of :func:`all_passes`.
        options: The options it takes what it needs from.

    Raises:
        UsageError: there is no pass of that name, or it cannot be loaded.
    """
    known = all_passes()
    if name not in known:
        raise UsageError(f"there is no pass {name!r}; there are {', '.join(known)}")
    return known[name].factory(options or Options())


@functools.cache
def all_passes() -> dict[str, PassInfo]:
    """Every pass by name: ours first, then onnx-ir's, then the entry points ``onnxfold.passes``.

    An entry point names a pass class; it is called with ``options=`` if it takes them.
    """
    found = {info.name: info for info in (*_own(), *_common())}
    for entry in metadata.entry_points(group="onnxfold.passes"):
        found.setdefault(entry.name, PassInfo(entry.name, entry.value, _Foreign(entry)))
    return found


def _own() -> list[PassInfo]:
    def constant_propagation(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.constant_propagation import ConstantPropagation

        return ConstantPropagation(options)

    def simplify(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.simplify import Simplify

        return Simplify(
            options.rule_sets(),
            level=options.level,
            enable=options.enable,
            disable=options.disable,
            target=options.target,
            options=options,
        )

    def symbolic_shapes(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.symbolic_shapes import SymbolicShapes

        return SymbolicShapes(
            options,
            dims=options.dims,
            input_shapes=options.input_shapes,
            keep_dims=options.keep_dims,
        )

    def value_info(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.value_info import ValueInfo

        return ValueInfo(write=options.value_info)

    def dead_code(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.dead_code import RemoveDeadCode

        return RemoveDeadCode()

    def deduplicate(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.deduplicate import DeduplicateInitializers

        return DeduplicateInitializers()

    def common_subexpressions(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.subexpressions import CommonSubexpressions

        return CommonSubexpressions(options)

    def lift_constants(options: Options) -> ir.passes.PassBase:
        from onnxfold.passes.lift_constants import LiftConstants

        return LiftConstants()

    return [
        PassInfo(
            "constant-propagation",
            "Fold every node whose inputs are constant, as far as the model does not grow by it.",
            constant_propagation,
        ),
        PassInfo("simplify", "Rewrite by the declarative rules, see `onnxfold rules`.", simplify),
        PassInfo(
            "symbolic-shapes",
            "Replace shape arithmetic by what it comes to, whatever the dynamic dims are.",
            symbolic_shapes,
        ),
        PassInfo(
            "value-info",
            "Write the dtypes and shapes of all values into the model.",
            value_info,
        ),
        PassInfo("dead-code", "Remove nodes, initializers and functions nobody uses.", dead_code),
        PassInfo(
            "deduplicate",
            "Store initializers with the same bytes and type once.",
            deduplicate,
        ),
        PassInfo(
            "lift-constants",
            "Turn Constant nodes into initializers, where these take no more bytes.",
            lift_constants,
        ),
        PassInfo(
            "common-subexpressions",
            "Compute the same op on the same inputs once.",
            common_subexpressions,
        ),
    ]


def _common() -> list[PassInfo]:
    def of(name: str, *arguments: object) -> Factory:
        def factory(options: Options) -> ir.passes.PassBase:
            from onnx_ir.passes import common

            made: ir.passes.PassBase = getattr(common, name)(*arguments)
            return made

        return factory

    return [
        PassInfo(
            "inline-functions",
            "Put functions in the place of their calls (onnx-ir).",
            of("InlinePass"),
        ),
        PassInfo("sort", "Put nodes behind what they read (onnx-ir).", of("TopologicalSortPass")),
        PassInfo(
            "clear-metadata",
            "Drop metadata and doc strings (onnx-ir).",
            of("ClearMetadataAndDocStringPass"),
        ),
    ]


class _Foreign:
    """Makes a pass that another package brings."""

    def __init__(self, entry: metadata.EntryPoint) -> None:
        self._entry = entry

    def __call__(self, options: Options) -> ir.passes.PassBase:
        try:
            factory = self._entry.load()
            takes_options = "options" in inspect.signature(factory).parameters
            made = factory(options=options) if takes_options else factory()
        except Exception as error:  # whatever a stranger's module does when it is loaded
            raise UsageError(f"the pass {self._entry.name!r} cannot be loaded: {error}") from error
        if not isinstance(made, ir.passes.PassBase):
            raise UsageError(f"{self._entry.value} is not an onnx_ir pass")
        return made
