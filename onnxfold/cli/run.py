"""Running a command line: logging, signals, exit codes, and errors as one line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import click

from onnxfold.cli.group import cli
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, complain
from onnxfold.errors import CheckFailedError, OnnxFoldError
from onnxfold.lazy_imports import defer_symbolic_arithmetic

_logger = logging.getLogger("onnxfold")
_SIGNALS = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")]
_USUAL = (signal.SIG_DFL, signal.default_int_handler)


class EndedBySignal(BaseException):
    """Raised where the main thread is; like KeyboardInterrupt, it is no Exception."""

    def __init__(self, number: int) -> None:
        self.number = number
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {name}")


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Raise `EndedBySignal` at the first signal that asks the process to end.

    Later signals are ignored until the process ends: they would interrupt the cleanup and the error
    message. Signals that have another handler, or are ignored (nohup), are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ended: EndedBySignal | None = None

    def end(number: int, _: FrameType | None) -> None:
        nonlocal ended
        if ended is None:
            ended = EndedBySignal(number)
            raise ended

    replaced = [number for number, handler in before.items() if handler in _USUAL]
    try:
        for number in replaced:
            signal.signal(number, end)
        yield
    except Exception as error:
        if ended is not None:  # a module of C that was being imported makes another error of it
            raise ended from error
        raise
    finally:
        for number in replaced:
            signal.signal(number, before[number] if ended is None else signal.SIG_IGN)


def main(args: list[str] | None = None) -> int:
    """Runs a command line (`sys.argv` if none is given) and returns the exit code."""
    # warnings, and everything with --verbose, to standard error
    logging.basicConfig(format="%(name)s: %(levelname)s: %(message)s")
    _logger.setLevel(logging.WARNING)
    defer_symbolic_arithmetic()
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
    except EndedBySignal as ended:
        with contextlib.suppress(OSError):  # the terminal may be what went away
            complain(str(ended))
        return 128 + ended.number
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
