"""Running a command line: its command, logging, signals, exit codes, and errors as one line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import click
from click.shell_completion import CompletionItem

from onnxfold.cli.inspecting import (
    adapters,
    bench,
    compare,
    doctor,
    explain,
    inspect,
    list_passes,
    list_rules,
    reduce,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK
from onnxfold.cli.writing_models import batch, infer_shapes, optimize, split, tune
from onnxfold.support.errors import CheckFailedError, OnnxFoldError, spelled
from onnxfold.support.lazy_imports import defer_symbolic_arithmetic

_logger = logging.getLogger("onnxfold")
_SIGNALS = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")]
_USUAL = (signal.SIG_DFL, signal.default_int_handler)
_GROUPS = {
    "Optimize": (optimize, batch, tune, infer_shapes),
    "Understand": (compare, inspect, explain, bench, reduce),
    "Runtime constants": (split, adapters),
    "Information": (list_rules, list_passes, doctor),
}
_EXAMPLES = """\b
Examples:
  onnxfold model.onnx smaller.onnx
  onnxfold optimize model.onnx -o model.onnx --check 3
  onnxfold compare model.onnx smaller.onnx --bisect"""


class OptimizeByDefault(click.Group):
    """`onnxfold IN OUT` is `onnxfold optimize IN OUT`, as users of other optimizers expect."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by subject, each with its whole summary."""
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(c.name or "", (c.help or "").partition("\n")[0]) for c in commands]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the command in front where the first word is a file or an option of it."""
        word = args[0] if args else ""
        is_option = word.startswith("-") and word not in ("--help", "-h", "--version")
        is_file = not word.startswith("-") and ("." in word or os.sep in word)
        if word not in self.commands and (is_option or is_file or os.path.exists(word)):
            args = ["optimize", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; messages spell its arguments as its options, until it has ended."""
        found = super().resolve_command(ctx, args)
        commands = [*self.commands.values(), *filter(None, [found[1]])]
        params = (param for command in commands for param in command.params)
        ctx.with_resource(spelled({p.name: max(p.opts, key=len) for p in params if p.name}))
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands, or else a file or an option of `optimize`."""
        found = super().shell_complete(ctx, incomplete)
        if found or not incomplete:
            return found
        if incomplete.startswith("-"):
            return optimize.shell_complete(click.Context(optimize, parent=ctx), incomplete)
        return [CompletionItem(incomplete, type="file")]


@click.group(
    cls=OptimizeByDefault,
    commands=sum(_GROUPS.values(), ()),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXAMPLES,
)
@click.version_option(package_name="onnxfold", message="%(package)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Precompute everything in an ONNX model that does not depend on its inputs.

    The result is equal bit for bit. `onnxfold IN OUT` is short for `onnxfold optimize IN OUT`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_ERROR)


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
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # otherwise the next file has the number of a closed stream, and gets what libraries print
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
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
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except EndedBySignal as ended:
        with contextlib.suppress(OSError):  # the terminal may be what went away
            _complain(str(ended))
        return 128 + ended.number
    except Exception as error:
        _complain(_reason(error))
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


def _complain(message: str) -> None:
    """One line on standard error."""
    click.echo(f"onnxfold: error: {' '.join(message.split())}", err=True)
