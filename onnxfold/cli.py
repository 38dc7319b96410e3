"""The command line. All that is printed is printed here; the library logs.

Only click is imported at the top: the rest comes when a command needs it, so that help is instant.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from onnxfold.deferred import SYMBOLIC_ARITHMETIC, defer
from onnxfold.errors import CheckFailedError, OnnxFoldError

_logger = logging.getLogger("onnxfold")

EXIT_OK = 0
EXIT_DIFFERENT = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Command = TypeVar("Command", bound=Callable[..., Any])


def byte_size(text: str) -> int:
    """A number of bytes: 4096, 512MB (decimal units), 1.5GiB (binary units)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I)?B?", text.strip().upper())
    if match is None or (match[3] and not match[2]):
        raise click.BadParameter(f"{text!r} is not a size such as 4096, 512MB or 1.5GiB")
    unit = _BINARY_UNITS[match[2]] if match[3] else _UNITS[match[2]]
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def dimension(text: str) -> tuple[str, int]:
    """A symbolic dimension and its size: batch=2."""
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal():
        raise click.BadParameter(f"{text!r} is not of the form batch=2")
    return name, int(size)


def input_shape(text: str) -> tuple[str, list[int]]:
    """The name of an input and its shape: x:1,3,224,224."""
    name, _, sizes = text.rpartition(":")
    parts = sizes.split(",") if sizes else []
    if not name or not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form x:1,3,224,224")
    return name, [int(part) for part in parts]


class OptimizeByDefault(click.Group):
    """`onnxfold IN OUT` is `onnxfold optimize IN OUT`, as users of other optimizers expect."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the command in front where the first word is a file or an option of it."""
        if args and self._begins_optimize(args[0]):
            args = ["optimize", *args]
        return super().parse_args(ctx, args)

    def _begins_optimize(self, word: str) -> bool:
        if word in self.commands:
            return False
        if word.startswith("-"):
            return word not in {"--help", "-h", "--version"}
        return "." in word or os.sep in word or os.path.exists(word)


def _set_verbosity(ctx: click.Context, param: click.Parameter, verbose: bool) -> bool:
    if verbose:
        _logger.setLevel(logging.DEBUG)
    return verbose


def _output_options(command: Command) -> Command:
    """The options that all commands share."""
    for option in (
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_set_verbosity,
            help="Log what is done; show the traceback of a bug.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead."),
    ):
        command = option(command)
    return command


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        _write(f"onnxfold {version('onnxfold')}\n")
        ctx.exit()


@click.group(
    cls=OptimizeByDefault,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Fold everything constant in an ONNX model, bit for bit, in little memory.

    `onnxfold IN OUT` is short for `onnxfold optimize IN -o OUT`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_ERROR)


@cli.command()
@click.argument("source", metavar="IN")
@click.argument("destination", metavar="[OUT]", required=False)
@click.option("-o", "--output", metavar="OUT", help="File to write; IN itself is allowed.")
@click.option(
    "-O",
    "--level",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="0: fold constants; 1: also rules that keep every bit; 2: also inexact rules.",
)
@click.option("--target", metavar="RUNTIME", help="Also use this runtime's own ops: onnxruntime.")
@click.option(
    "--enable", multiple=True, metavar="NAME", help="Use an opt-in rule or rule set; repeatable."
)
@click.option(
    "--disable", multiple=True, metavar="NAME", help="Leave out a rule or rule set; repeatable."
)
@click.option(
    "--rules",
    multiple=True,
    metavar="FILE",
    help="Also use the rules in a Python file; repeatable.",
)
@click.option(
    "--passes",
    metavar="A,B,C",
    help="Run these passes, in this order, instead of the level's own.",
)
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Fix a symbolic dimension; may be repeated.",
)
@click.option(
    "--input-shape",
    "input_shapes",
    type=input_shape,
    multiple=True,
    metavar="NAME:D,D,...",
    help="Fix the shape of an input: x:1,3,224,224; may be repeated.",
)
@click.option("--fold-all", is_flag=True, help="Fold whatever can be folded, whatever it weighs.")
@click.option("--fold-quantized", is_flag=True, help="Fold DequantizeLinear of weights too.")
@click.option(
    "--max-growth",
    type=byte_size,
    default="0",
    metavar="BYTES",
    help="Bytes by which folding may make the model grow.  [default: 0]",
)
@click.option(
    "--memory-limit",
    type=byte_size,
    metavar="BYTES",
    help="Bytes of intermediate results to hold in memory, such as 512MB; more goes to disk.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="GLOB",
    help="Do not fold values whose name matches; may be repeated.",
)
@click.option(
    "--external-data/--no-external-data",
    default=None,
    help="Weights in a file of their own, or not.  [default: as IN; yes above 2 GB]",
)
@click.option(
    "--external-data-name", metavar="NAME", help="Name of that file.  [default: OUT.data]"
)
@click.option(
    "--share-weights", is_flag=True, help="Refer to IN's weights instead of copying them."
)
@click.option("--no-fsync", is_flag=True, help="Do not wait until the disk has it all.")
@click.option(
    "--check",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Compare with IN on N random inputs before OUT is put in place.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@_output_options
def optimize(
    source: str,
    destination: str | None,
    output: str | None,
    external_data: bool | None,
    external_data_name: str | None,
    no_fsync: bool,
    passes: str | None,
    dims: tuple[tuple[str, int], ...],
    input_shapes: tuple[tuple[str, list[int]], ...],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a model that no longer contains the constant work of IN.

    Sizes are bytes, or have a unit: 512MB is decimal, 512MiB binary.
    """
    target = _one_target(destination, output)
    if external_data_name is not None and external_data is False:
        raise click.UsageError("--external-data-name contradicts --no-external-data")
    from onnxfold.api import optimize_file
    from onnxfold.report.progress import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        report = optimize_file(
            source,
            target,
            external_data=external_data_name or external_data,
            fsync=not no_fsync,
            progress=progress,
            dims=dict(dims),
            input_shapes=dict(input_shapes),
            passes=None if passes is None else [name.strip() for name in passes.split(",")],
            **options,
        )
    if as_json:
        _write_json(report.to_dict())
    elif not quiet:
        from onnxfold.report.optimize_table import optimize_text

        _write(optimize_text(report))


@cli.command(name="rules")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def list_rules(as_json: bool) -> None:
    """List the rewrite rules, by rule set."""
    from onnxfold.rewrite.rule_set import available_rule_sets

    sets = available_rule_sets()
    if as_json:
        _write_json({s.name: {rule.name: rule.doc for rule in s} for s in sets})
        return
    _write("\n\n".join(str(s) + ("\n(opt-in)" if s.optional else "") for s in sets) + "\n")


@cli.command(name="passes")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def list_passes(as_json: bool) -> None:
    """List the passes that --passes takes."""
    from onnxfold.passes.registry import all_passes

    known = all_passes()
    if as_json:
        _write_json({name: info.doc for name, info in known.items()})
        return
    width = max(map(len, known))
    _write("".join(f"{name:{width}}  {info.doc}\n" for name, info in known.items()))


def _one_target(destination: str | None, output: str | None) -> str:
    """OUT is given once, as an argument or with -o; never guessed."""
    if destination is not None and output is not None:
        raise click.UsageError("OUT is given twice, as an argument and with -o")
    target = output if output is not None else destination
    if not target:
        raise click.UsageError("no output: give -o OUT (IN itself is allowed)")
    return target


@cli.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Random inputs to compare on; each has other sizes of dynamic dimensions.",
)
@click.option(
    "--feeds",
    metavar="PATH",
    help="Inputs to use instead: an .npz file, or a folder with input_0.pb, ...",
)
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a symbolic dimension; may be repeated.",
)
@click.option("--rtol", type=click.FloatRange(min=0), default=0.0, help="Relative tolerance.")
@click.option("--atol", type=click.FloatRange(min=0), default=0.0, help="Absolute tolerance.")
@click.option("--exact", is_flag=True, help="Allow half precision no difference either.")
@_output_options
def compare(
    a: str, b: str, dims: tuple[tuple[str, int], ...], as_json: bool, **options: Any
) -> int:
    """Compare what models A and B compute.

    Exit code 0: the same bit for bit, or within the tolerance; 1: different; 2: bad input.
    """
    from onnxfold.compare import compare as compare_models

    result = compare_models(a, b, dims=dict(dims), **options)
    if as_json:
        _write_json(result.to_dict())
    else:
        from onnxfold.report.compare_table import compare_text

        _write(compare_text(result))
    return EXIT_OK if result.passed else EXIT_DIFFERENT


@cli.command()
@click.argument("model")
@_output_options
def inspect(model: str, as_json: bool) -> None:
    """Show ops, interface, opsets, bytes and largest tensors of MODEL."""
    from onnxfold.report.inventory import take_inventory

    inventory = take_inventory(model)
    if as_json:
        _write_json(inventory.to_dict())
    else:
        from onnxfold.report.inspect_table import inspect_text

        _write(inspect_text(inventory))


_RUNTIME_CONSTANTS = click.option(
    "--runtime-const",
    "runtime_constants",
    multiple=True,
    metavar="GLOB",
    help="Input that stays the same over many runs; may be repeated.",
)
_BACKEND = click.option(
    "--backend",
    type=click.Choice(["auto", "iree", "onnxruntime"]),
    default="auto",
    show_default=True,
    help="Who runs runtime_fold; iree compiles it, auto only takes what was compiled before.",
)
_OVERRIDABLE = click.option(
    "--overridable", is_flag=True, help="Also every input that has a default value."
)
_MAX_CACHE = click.option(
    "--max-cache",
    type=byte_size,
    metavar="BYTES",
    help="Bytes that cached tensors may take at nominal sizes.",
)


@cli.command()
@click.argument("source", metavar="IN")
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder to write.")
@_RUNTIME_CONSTANTS
@_OVERRIDABLE
@click.option(
    "--fold-at",
    type=click.Choice(["compile", "runtime"]),
    default="compile",
    show_default=True,
    help="When to compute what depends on the file alone.",
)
@_MAX_CACHE
@click.option(
    "--nominal",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size to assume for a symbolic dimension when choosing the cut; may be repeated.",
)
@_BACKEND
@click.option(
    "--compile-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="S",
    help="Time limit of one compilation.",
)
@click.option(
    "-O",
    "--level",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="Of the optimization of both parts, see optimize.",
)
@click.option("--no-fsync", is_flag=True, help="Do not wait until the disk has it all.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@_output_options
def split(
    source: str,
    output: str,
    nominal: tuple[tuple[str, int], ...],
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Split IN into what runs once for given runtime constants, and what runs every time.

    Writes entry.onnx, runtime_fold.onnx, manifest.json and compiled kernels into DIR.
    """
    from onnxfold.runtime.split import split as split_file

    bundle = split_file(source, output, nominal=dict(nominal), fsync=not no_fsync, **options)
    if as_json:
        _write_json(bundle.manifest.to_dict())
    elif not quiet:
        from onnxfold.report.split_table import split_text

        _write(split_text(bundle))


@cli.command()
@click.argument("source", metavar="BUNDLE|MODEL")
@_RUNTIME_CONSTANTS
@_OVERRIDABLE
@_MAX_CACHE
@click.option("--original", metavar="MODEL", help="What BUNDLE was made of, to compare with.")
@click.option(
    "--dim",
    "dims",
    type=dimension,
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a symbolic dimension; may be repeated.  [default: 1 for a batch, 16]",
)
@_BACKEND
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, metavar="N")
@click.option("--threads", type=click.IntRange(min=0), default=1, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@_output_options
def bench(
    source: str,
    dims: tuple[tuple[str, int], ...],
    overridable: bool,
    max_cache: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Time BUNDLE, or MODEL split on the way, against the original, run by run in turns."""
    from onnxfold.runtime.bench import bench as run_bench

    if overridable:
        options["overridable"] = True
    if max_cache is not None:
        options["max_cache"] = max_cache
    result = run_bench(source, dims=dict(dims), **options)
    if as_json:
        _write_json(result.to_dict())
    else:
        from onnxfold.report.split_table import bench_text

        _write(bench_text(result))


def main(args: list[str] | None = None) -> int:
    """Runs a command line (`sys.argv` if none is given) and returns the exit code."""
    _start_logging()
    defer(SYMBOLIC_ARITHMETIC)
    try:
        code = cli.main(args=args, prog_name="onnxfold", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_OK
    except (click.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        _complain(_reason(error))
        _logger.debug("traceback:", exc_info=True)
        return EXIT_DIFFERENT if isinstance(error, CheckFailedError) else EXIT_ERROR


def _reason(error: Exception) -> str:
    """What went wrong, for the user."""
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


def _start_logging() -> None:
    """Warnings, and everything with --verbose, to standard error."""
    logging.basicConfig(format="%(name)s: %(levelname)s: %(message)s")
    _logger.setLevel(logging.WARNING)


def _complain(message: str) -> None:
    """One line on standard error."""
    click.echo(f"onnxfold: error: {' '.join(message.split())}", err=True)


def _write_json(document: dict[str, Any]) -> None:
    _write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _write(text: str) -> None:
    """To standard output; a reader that has gone away is no error, the work is done."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
