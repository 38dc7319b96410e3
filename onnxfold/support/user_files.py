"""Python files of users: rules and definitions of ops."""

from __future__ import annotations

import importlib.util
import os
import traceback
from types import ModuleType

from onnxfold.support.errors import OnnxFoldError, UsageError, about


def run_file(path: str | os.PathLike[str], content: str) -> ModuleType:
    """Run a Python file and return its module.

    Args:
        path: The path of the file.
        content: A plural noun for the definitions in the file, for messages, such as ``rules``.

    Raises:
        UsageError: The file does not exist, is not a Python file, or raises an exception.
        OnnxFoldError: The file raises this exception, or there is not enough memory.
    """
    if not os.path.isfile(path):
        raise UsageError(f"cannot load the {content}: no such file", file=path)
    name = os.path.splitext(os.path.basename(path))[0]
    location = os.path.abspath(path)  # the path in the frames of a traceback
    spec = importlib.util.spec_from_file_location(name, location)
    if spec is None or spec.loader is None:
        raise UsageError(f"a file with {content} must be a Python file", file=path)
    module = importlib.util.module_from_spec(spec)
    try:
        with about(path):
            spec.loader.exec_module(module)
    except OnnxFoldError:
        raise
    except (Exception, SystemExit) as error:  # a user's file may raise any error
        kind = "" if isinstance(error, (SyntaxError, ImportError)) else f"{type(error).__name__}: "
        reason = error.msg if isinstance(error, SyntaxError) else error
        line = f"line {line_of(error, location, 1)}: {kind}"
        raise UsageError(f"cannot load the {content}: {line}{reason}", file=path) from error
    return module


def line_of(error: BaseException, path: str | os.PathLike[str], line: int) -> int:
    """Return the innermost line of a file in an error's traceback.

    The result is ``line`` if the traceback has no line of the file.
    """
    if isinstance(error, SyntaxError) and error.filename == os.fspath(path):
        line = error.lineno or line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno or line for frame in frames if frame.filename == os.fspath(path)]
    return lines[-1] if lines else line
