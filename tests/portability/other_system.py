"""Simulate another operating system for modules of onnxfold and its tests.

The simulation includes the processes in which `onnxfold.support.isolated` runs functions.
"""

import builtins
import sys
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AFFECTED = (str(ROOT / "onnxfold"), str(ROOT / "tests"))
UNAFFECTED = str(Path(__file__).parent)


class View(types.ModuleType):
    """A module that hides some names and adds or replaces others."""

    def __init__(
        self, module: types.ModuleType, absent: Collection[str] = (), **added: Any
    ) -> None:
        super().__init__(module.__name__)
        self._module = module
        self._absent = absent
        self._added = added

    def __getattr__(self, name: str) -> Any:
        if name in self._added:
            return self._added[name]
        if name in self._absent:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)


def install(
    simulation: str, views: Mapping[str, types.ModuleType], absent: Collection[str] = ()
) -> None:
    """Replace modules when modules of onnxfold or of its tests import them.

    Args:
        simulation: Name of the module that calls this function. Processes of
            `onnxfold.support.isolated` import the module first.
        views: The replacements by the names of modules.
        absent: Names of modules that cannot be imported.
    """
    assert "onnxfold.support.system" not in sys.modules
    prefix = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {simulation}; "
    original_import = builtins.__import__

    def import_module(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        file = str((globals or {}).get("__file__", ""))
        if not level and file.startswith(AFFECTED) and not file.startswith(UNAFFECTED):
            if name in absent:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in views:
                return views[name]
        module = original_import(name, globals, locals, fromlist, level)
        isolated: Any = sys.modules.get("onnxfold.support.isolated")
        program = getattr(isolated, "_PROGRAM", prefix)
        if not program.startswith(prefix):
            isolated._PROGRAM = prefix + program
        return module

    builtins.__import__ = import_module
