"""Import some modules at their first use.

onnx-ir imports sympy, which takes 34 MB and 0.4 s, and uses it for arithmetic with symbolic
dimensions only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

SYMBOLIC_ARITHMETIC = ("sympy", "onnx_ir._symbolic_shapes")


class _DeferringFinder:
    """Finds modules as Python does, and loads them at the first access to an attribute.

    It has no base class because importing ``importlib.abc`` takes longer.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a lazy loader, for the deferred modules only."""
        if fullname not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer(names: Sequence[str]) -> None:
    """Defer modules that are not imported yet; for the command line, not the library."""
    if not any(isinstance(finder, _DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DeferringFinder(names))
