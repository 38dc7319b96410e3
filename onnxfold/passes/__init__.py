"""The passes that users can select by name. Each is an ``onnx_ir`` pass.

Some passes are from onnx-ir. Other packages can register further passes by entry points.

>>> from onnxfold import passes
>>> passes.create("constant-propagation")(model)  # doctest: +SKIP
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.support.errors import OnnxFoldError, UsageError, suggestion

if TYPE_CHECKING:
    from onnxfold.api.options import Options
    from onnxfold.passes.context import RunContext

__all__ = ["PassInfo", "all_passes", "create"]


@dataclass(frozen=True)
class PassInfo:
    """A pass that can be selected by name."""

    name: str
    doc: str
    """One sentence about the pass; the location for a pass of another package."""
    location: str
    """The module and the class of the pass, as ``"package.module:Class"``."""


@functools.cache
def _factory(location: str) -> tuple[Any, frozenset[str]]:
    """Return the class of a pass, and the names of the parameters of its constructor."""
    factory = metadata.EntryPoint("", location, "").load()
    return factory, frozenset(inspect.signature(factory).parameters)


def create(
    name: str, options: Options | None = None, *, run: RunContext | None = None
) -> ir.passes.PassBase:
    """Return a new pass.

    Args:
        name: The name of one of `all_passes`.
        options: The options, for a pass with a parameter ``options``.
        run: The run to which the pass belongs, for a pass with a parameter ``run``.

    Raises:
        UsageError: No pass has this name, the pass cannot be loaded, is not an ``onnx_ir`` pass, or
            rejects the options.
    """
    available = all_passes()
    if name not in available:
        raise UsageError(f"there is no pass {name!r}{suggestion(name, available)}")
    if options is None:
        from onnxfold.api.options import Options

        options = Options()
    arguments = {"options": options, "run": run}
    try:
        factory, parameters = _factory(available[name].location)
        for key in arguments.keys() - parameters:
            del arguments[key]
        created = factory(**arguments)
    except OnnxFoldError:
        raise
    except Exception as error:  # importing a module of another package can raise any error
        raise UsageError(f"the pass {name!r} cannot be loaded: {error}") from error
    if not isinstance(created, ir.passes.PassBase):
        raise UsageError(f"{available[name].location} is not an onnx_ir pass")
    return created


@functools.cache
def all_passes() -> dict[str, PassInfo]:
    """Return all passes by name.

    Passes of the entry points ``onnxfold.passes`` come last. They cannot replace a pass of onnxfold
    with the same name.
    """
    infos = {}
    for name, (location, doc) in _BUILT_IN.items():
        absolute = __name__ + location if location.startswith(".") else location
        infos[name] = PassInfo(name, doc, absolute)
    for entry in metadata.entry_points(group="onnxfold.passes"):
        infos.setdefault(entry.name, PassInfo(entry.name, entry.value, entry.value))
    return infos


_BUILT_IN = {
    "constant-propagation": (
        ".constant_propagation:ConstantPropagation",
        "Fold nodes whose inputs are constant, within the limit of growth.",
    ),
    "simplify": (".simplify:Simplify", "Apply the rewrite rules, see `onnxfold rules`."),
    "symbolic-shapes": (
        ".symbolic_shapes:SymbolicShapes",
        "Replace shape arithmetic by its results; dynamic dimensions stay dynamic.",
    ),
    "dynamic-broadcasts": (
        ".dynamic_broadcasts:DynamicBroadcasts",
        "Replace values by constants that broadcast if only the values' sizes depend on inputs.",
    ),
    "value-info": (
        ".value_info:ValueInfo",
        "Write the dtypes and shapes of all values into the model.",
    ),
    "dead-code": (".cleanups:RemoveDeadCode", "Remove unused nodes, initializers and functions."),
    "deduplicate": (
        ".duplicates:DeduplicateInitializers",
        "Store initializers with the same bytes and type once.",
    ),
    "lift-constants": (".cleanups:LiftConstants", "Turn Constant nodes into initializers."),
    "common-subexpressions": (
        ".duplicates:CommonSubexpressions",
        "Compute the same op on the same inputs once.",
    ),
    "inline-functions": (
        ".cleanups:InlineFunctions",
        "Inline functions with the opsets of the model (onnx-ir).",
    ),
    "sort": ("onnx_ir.passes.common:TopologicalSortPass", "Sort nodes topologically (onnx-ir)."),
    "debugging-metadata": (
        ".debugging_metadata:RemoveDebuggingMetadata",
        "Remove stack traces and other debugging metadata of exporters.",
    ),
    "clear-metadata": (
        ".cleanups:ClearMetadata",
        "Remove metadata and doc strings of graphs and nodes (onnx-ir).",
    ),
}
