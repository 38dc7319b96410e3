"""Load definitions of custom ops from Python files and from other packages."""

from __future__ import annotations

import functools
import os
from importlib import metadata

from onnxfold.ops.definition import Op, all_definitions, load_missing_definitions
from onnxfold.support.errors import UsageError
from onnxfold.support.user_files import run_file

ENTRY_POINTS = "onnxfold.ops"
"""The group of entry points for modules of other packages that register definitions on import."""


def load_ops(source: str | os.PathLike[str] | type[Op]) -> None:
    """Register the definitions in a Python file, or check that a class is registered.

    Args:
        source: A Python file, or a subclass of `Op` that the decorator `op` has registered.

    Raises:
        UsageError: The file cannot be loaded or defines no op, or the class is not registered.
    """
    if not isinstance(source, type):
        status = os.stat(source) if os.path.isfile(source) else None
        modified = 0 if status is None else status.st_mtime_ns
        _load_file(os.path.abspath(source), os.fspath(source), modified)
    elif not any(isinstance(definition, source) for definition in all_definitions()):
        raise UsageError(f"{source.__name__} is not decorated with @op")


@functools.lru_cache(maxsize=64)
def _load_file(location: str, path: str, modified: int) -> None:
    """Run a file that registers definitions. The cache avoids a second run of an unchanged file.

    Args:
        location: The absolute path, for the cache.
        path: The path of the file, which messages contain.
        modified: The time of the last modification in nanoseconds, for the cache.

    Raises:
        UsageError: The file cannot be loaded, or it defines no op.
    """
    previous = set(all_definitions())
    run_file(path, "ops")
    if previous.issuperset(all_definitions()):
        raise UsageError("the file defines no op; decorate a subclass of Op with @op", file=path)


@load_missing_definitions
def load_installed_ops() -> None:
    """Register the definitions in the entry points of other packages.

    Raises:
        UsageError: An entry point cannot be loaded.
    """
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # other packages may raise any exception
            raise UsageError(f"the ops {entry.name!r} cannot be loaded: {error}") from error
