"""Import symbolic arithmetic at its first use.

onnx-ir imports sympy, which takes 34 MB and 0.4 s, and uses it for arithmetic with symbolic
dimensions only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


class _DeferringFinder:
    """Finds modules as Python does, and loads them at first use; without a slow base class."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a lazy loader, for the deferred modules only."""
        if fullname not in ("sympy", "onnx_ir._symbolic_shapes"):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_symbolic_arithmetic() -> None:
    """Defer the modules unless they are imported; for the command line, not the library."""
    if _DeferringFinder not in sys.meta_path:
        sys.meta_path.insert(0, _DeferringFinder)
