"""Running a command line: logging, exit codes, and errors as one line."""

from __future__ import annotations

import contextlib
import logging
import os

import click

from onnxfold.cli.group import cli
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, complain
from onnxfold.cli.signals import EndedBySignal, end_on_signals
from onnxfold.deferred import SYMBOLIC_ARITHMETIC, defer
from onnxfold.errors import CheckFailedError, OnnxFoldError

_logger = logging.getLogger("onnxfold")


def main(args: list[str] | None = None) -> int:
    """Runs a command line (`sys.argv` if none is given) and returns the exit code."""
    # warnings, and everything with --verbose, to standard error
    logging.basicConfig(format="%(name)s: %(levelname)s: %(message)s")
    _logger.setLevel(logging.WARNING)
    defer(SYMBOLIC_ARITHMETIC)
    # NumPy's linear algebra, which no kernel uses, starts its threads when NumPy is imported
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with end_on_signals():
            # what begins with the process's own arguments is all that the process is for
            code = cli.main(
                args=args, prog_name="onnxfold", standalone_mode=False, obj=args is None
            )
        return code if isinstance(code, int) else EXIT_OK
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        return EXIT_INTERRUPTED
    except EndedBySignal as signal:
        with contextlib.suppress(OSError):  # the terminal may be what went away
            complain(str(signal))
        return 128 + signal.number
    except Exception as error:
        complain(_reason(error))
        _logger.debug("traceback:", exc_info=True)
        return EXIT_DIFFERENT if isinstance(error, CheckFailedError) else EXIT_ERROR


def _reason(error: Exception) -> str:
    """Return what went wrong, for the user."""
    if isinstance(error, OnnxFoldError):
        return str(error)
    if isinstance(error, click.ClickException):
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see '{ctx.command_path} --help')" if ctx is not None else ""
        return error.format_message().rstrip(".") + hint
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory"
    bug = "this is a bug; run with --verbose for the traceback"
    return f"{type(error).__name__}: {error} ({bug})"
