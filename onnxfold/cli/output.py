"""Exit codes, and what is printed where."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

EXIT_OK = 0
EXIT_DIFFERENT = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def is_verbose() -> bool:
    """Return whether ``--verbose`` was given."""
    return logging.getLogger("onnxfold").level == logging.DEBUG


def watched(function: Callable[..., Result], *args: Any, quiet: bool, **options: Any) -> Result:
    """Call a function that reports its progress; show it unless ``--quiet`` was given."""
    from onnxfold.support.tables import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        return function(*args, progress=progress, **options)


def write_json(document: dict[str, Any]) -> None:
    """One JSON document on standard output."""
    write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def show(result: Any, as_json: bool, quiet: bool = False, **how: Any) -> None:
    """Write a result as one JSON document, or, unless ``--quiet`` was given, as its table."""
    if as_json:
        write_json(result.to_dict())
    elif not quiet:
        write(result.to_text(**how))


def write(text: str) -> None:
    """To standard output; a reader that has gone away is no error, the work is done."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    except OSError as error:
        # Python writes the rest at the end, again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise
