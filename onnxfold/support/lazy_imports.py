"""Deferred imports of symbolic arithmetic.

onnx-ir imports sympy, but uses it only for arithmetic with symbolic dimensions. The import takes
34 MB and 0.4 s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


class _DeferringFinder:
    """A finder of modules whose deferred modules are loaded at their first use.

    The class does not derive from `importlib.abc.MetaPathFinder`, because importing
    `importlib.abc` is slow.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a deferred module with a lazy loader, or None for other modules."""
        if fullname not in ("sympy", "onnx_ir._symbolic_shapes"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_symbolic_arithmetic() -> None:
    """Defer the modules for symbolic arithmetic, unless they are already imported.

    This affects all code of a process. Therefore, only the command line and the child processes of
    `onnxfold.support.isolated` call this function.
    """
    if _DeferringFinder not in sys.meta_path:
        sys.meta_path.insert(0, _DeferringFinder)
