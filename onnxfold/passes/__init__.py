"""What users name and order: one pass a file, each an ``onnx_ir`` pass, made by name.

Beside ours there are some of onnx-ir's, and those that other packages bring.

>>> from onnxfold import passes
>>> passes.create("constant-propagation")(model)  # doctest: +SKIP
"""

from __future__ import annotations

import functools
import importlib
import inspect
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.errors import OnnxFoldError, UsageError, suggestion

if TYPE_CHECKING:
    from onnxfold.options import Options
    from onnxfold.passes.context import Run

__all__ = ["PassInfo", "all_passes", "create"]


@dataclass(frozen=True)
class PassInfo:
    """A pass that can be asked for by name."""

    name: str
    doc: str
    home: str
    """Module and class, as ``"package.module:Class"``."""

    def make(self, options: Options, run: Run | None = None) -> ir.passes.PassBase:
        """Return a new pass; it is given ``options=`` and ``run=`` if it takes them.

        Raises:
            UsageError: it cannot be loaded.
        """
        given = {"options": options, "run": run}
        try:
            factory, taken = _factory(self.home)
            made = factory(**{key: value for key, value in given.items() if key in taken})
        except OnnxFoldError:
            raise
        except Exception as error:  # whatever a stranger's module does when it is loaded
            raise UsageError(f"the pass {self.name!r} cannot be loaded: {error}") from error
        if not isinstance(made, ir.passes.PassBase):
            raise UsageError(f"{self.home} is not an onnx_ir pass")
        return made


@functools.cache
def _factory(home: str) -> tuple[Any, frozenset[str]]:
    """Return the class of a pass, and what it takes."""
    module, _, name = home.partition(":")
    factory: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    return factory, frozenset(inspect.signature(factory).parameters)


def create(
    name: str, options: Options | None = None, *, run: Run | None = None
) -> ir.passes.PassBase:
    """Return a new pass.

    Args:
        name: One of `all_passes`.
        options: The options it takes what it needs from.
        run: The run that it is part of, if it is not used alone.

    Raises:
        UsageError: there is no pass of that name, or it cannot be loaded.
    """
    known = all_passes()
    if name not in known:
        raise UsageError(f"there is no pass {name!r}{suggestion(name, known)}")
    if options is None:
        from onnxfold.options import Options  # they know the rules, which take a while to load

        options = Options()
    return known[name].make(options, run)


@functools.cache
def all_passes() -> dict[str, PassInfo]:
    """Return every pass by name: ours first, then onnx-ir's, then the entry points
    ``onnxfold.passes``.
    """
    found = {info.name: info for info in _KNOWN}
    for entry in metadata.entry_points(group="onnxfold.passes"):
        found.setdefault(entry.name, PassInfo(entry.name, entry.value, entry.value))
    return found


_KNOWN = (
    PassInfo(
        "constant-propagation",
        "Fold nodes whose inputs are constant, within the limit of growth.",
        "onnxfold.passes.constant_propagation:ConstantPropagation",
    ),
    PassInfo(
        "simplify",
        "Apply the rewrite rules, see `onnxfold rules`.",
        "onnxfold.passes.simplify:Simplify",
    ),
    PassInfo(
        "symbolic-shapes",
        "Replace shape arithmetic by its results; dynamic dimensions stay dynamic.",
        "onnxfold.passes.symbolic_shapes:SymbolicShapes",
    ),
    PassInfo(
        "move-transposes",
        "Reorder axes where that leaves fewer transposes.",
        "onnxfold.passes.transposes:MoveTransposes",
    ),
    PassInfo(
        "value-info",
        "Write the dtypes and shapes of all values into the model.",
        "onnxfold.passes.value_info:ValueInfo",
    ),
    PassInfo(
        "dead-code",
        "Remove unused nodes, initializers and functions.",
        "onnxfold.passes.dead_code:RemoveDeadCode",
    ),
    PassInfo(
        "deduplicate",
        "Store initializers with the same bytes and type once.",
        "onnxfold.passes.deduplicate:DeduplicateInitializers",
    ),
    PassInfo(
        "lift-constants",
        "Turn Constant nodes into initializers.",
        "onnxfold.passes.lift_constants:LiftConstants",
    ),
    PassInfo(
        "common-subexpressions",
        "Compute the same op on the same inputs once.",
        "onnxfold.passes.subexpressions:CommonSubexpressions",
    ),
    PassInfo(
        "inline-functions",
        "Inline functions (onnx-ir).",
        "onnx_ir.passes.common:InlinePass",
    ),
    PassInfo(
        "sort",
        "Sort nodes topologically (onnx-ir).",
        "onnx_ir.passes.common:TopologicalSortPass",
    ),
    PassInfo(
        "clear-metadata",
        "Remove metadata and doc strings of graphs and nodes (onnx-ir).",
        "onnxfold.passes.clear_metadata:ClearMetadata",
    ),
)
