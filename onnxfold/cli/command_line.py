"""The group of all commands, and `main`: logging, signals, exit codes and error messages."""

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
_DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler)
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
    """A group whose default command is `optimize`, as users of other optimizers expect.

    `onnxfold IN OUT` is short for `onnxfold optimize IN OUT`.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by subject, with summaries that are not truncated."""
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(c.name or "", (c.help or "").partition("\n")[0]) for c in commands]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `optimize` if the first word is a file or an option of `optimize`.

        A word that contains a dot or a path separator counts as a file, even if it does not exist.
        The name of a command does not count as a file.
        """
        word = args[0] if args else ""
        is_option = word.startswith("-") and word not in ("--help", "-h", "--version")
        is_file = not word.startswith("-") and ("." in word or os.sep in word)
        if word not in self.commands and (is_option or is_file or os.path.exists(word)):
            args = ["optimize", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. While the command runs, messages spell arguments as its options."""
        resolved = super().resolve_command(ctx, args)
        command = resolved[1]
        # options of the resolved command, which is last, override options of the same argument
        commands = [*self.commands.values(), *([] if command is None else [command])]
        params = (param for each in commands for param in each.params)
        ctx.with_resource(spelled({p.name: max(p.opts, key=len) for p in params if p.name}))
        return resolved

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command, or a file or an option of `optimize`."""
        completions = super().shell_complete(ctx, incomplete)
        if completions or not incomplete:
            return completions
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

    By default, the outputs of the result are equal bit for bit. `onnxfold IN OUT` is short for
    `onnxfold optimize IN OUT`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_ERROR)


class EndedBySignal(BaseException):
    """A signal that ends the process.

    The main thread raises this exception. Like KeyboardInterrupt, the class is not an Exception, so
    that ``except Exception`` does not catch it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {name}")


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Raise `EndedBySignal` at the first signal that terminates the process.

    Later signals are ignored until the process ends, because they would interrupt the cleanup and
    the error message. Signals with another handler, and signals that are ignored (nohup), keep
    their handler. Outside of the main thread, the context changes no handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    ended: EndedBySignal | None = None

    def end(number: int, _: FrameType | None) -> None:
        nonlocal ended
        if ended is None:
            ended = EndedBySignal(number)
            raise ended

    replaced = [number for number, handler in handlers.items() if handler in _DEFAULT_HANDLERS]
    try:
        for number in replaced:
            signal.signal(number, end)
        yield
    except Exception as error:
        # importing an extension module can replace the exception by another one
        if ended is not None:
            raise ended from error
        raise
    finally:
        for number in replaced:
            signal.signal(number, handlers[number] if ended is None else signal.SIG_IGN)


def main(args: list[str] | None = None) -> int:
    """Run a command line and return its exit code. An error is printed, not raised.

    Args:
        args: The arguments of the command line, by default those of the process (`sys.argv`).
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # A file that is opened later would reuse the descriptor of a closed stream. Libraries that
        # print to the stream would then write to this file.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    # write warnings to standard error, and with --verbose all messages
    logging.basicConfig(format="%(name)s: %(levelname)s: %(message)s")
    _logger.setLevel(logging.WARNING)
    defer_symbolic_arithmetic()
    # importing NumPy starts the threads of its linear algebra, and no kernel uses these threads
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with end_on_signals():
            # with the arguments of the process, the process ends after the command
            code = cli.main(
                args=args, prog_name="onnxfold", standalone_mode=False, obj=args is None
            )
        return code if isinstance(code, int) else EXIT_OK
    except (click.Abort, KeyboardInterrupt):
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except EndedBySignal as ended:
        with contextlib.suppress(OSError):  # the terminal may be closed (SIGHUP)
            _print_error(str(ended))
        return 128 + ended.number
    except Exception as error:
        _print_error(_message_of(error))
        _logger.debug("traceback:", exc_info=True)
        return EXIT_DIFFERENT if isinstance(error, CheckFailedError) else EXIT_ERROR


def _message_of(error: Exception) -> str:
    """Return the error message to print."""
    if isinstance(error, OnnxFoldError):
        return str(error)
    if isinstance(error, click.ClickException):
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        hint = f"; see '{ctx.command_path} --help'" if ctx is not None else ""
        return error.format_message().rstrip(".") + hint
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return f"{file}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return "out of memory"
    remedy = "this is a bug, run with --verbose for the traceback"
    return f"{type(error).__name__}: {error}; {remedy}"


def _print_error(message: str) -> None:
    """Print an error message as one line on standard error."""
    click.echo(f"onnxfold: error: {' '.join(message.split())}", err=True)
