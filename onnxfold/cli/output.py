"""Exit codes, and what is printed where."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

EXIT_OK = 0
EXIT_DIFFERENT = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def complain(message: str) -> None:
    """One line on standard error."""
    click.echo(f"onnxfold: error: {' '.join(message.split())}", err=True)


def write_json(document: dict[str, Any]) -> None:
    """One JSON document on standard output."""
    write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def show(result: Any, as_json: bool, **how: Any) -> None:
    """A result as its table (`onnxfold.table_repr`), or as one JSON document."""
    write_json(result.to_dict()) if as_json else write(result.to_text(**how))


def write(text: str) -> None:
    """To standard output; a reader that has gone away is no error, the work is done."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
