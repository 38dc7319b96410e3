"""Exit codes, and functions that print the progress and the result of a command."""

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


def with_progress(
    function: Callable[..., Result], *args: Any, quiet: bool, **options: Any
) -> Result:
    """Call a function, and show its progress unless ``--quiet`` was given."""
    from onnxfold.support.tables import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        return function(*args, progress=progress, **options)


def write_json(document: dict[str, Any]) -> None:
    """Write a JSON document to standard output."""
    write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def show(result: Any, as_json: bool, quiet: bool = False, **settings: Any) -> None:
    """Write a result to standard output as a JSON document, or as text unless ``quiet`` is set.

    Args:
        result: The result, with the methods ``to_dict`` and ``to_text``.
        as_json: Whether to write a JSON document.
        quiet: Whether to write no text.
        settings: Arguments of ``to_text``.
    """
    if as_json:
        write_json(result.to_dict())
    elif not quiet:
        write(result.to_text(**settings))


def write(text: str) -> None:
    """Write a text to standard output.

    Characters that the encoding does not have are replaced. A closed pipe is not an error, because
    the command has already done its work.

    Raises:
        OSError: The text cannot be written.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    except OSError as error:
        # when Python exits, it flushes the remaining text, which would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise
