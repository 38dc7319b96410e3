"""`onnxfold optimize`: fold the constants of a model."""

from __future__ import annotations

import os
from typing import Any

import click

from onnxfold.cli.arguments import (
    PATH,
    REPORT,
    SectionedCommand,
    is_verbose,
    optimization_options,
    section,
)
from onnxfold.cli.output import show, write


@click.command(
    cls=SectionedCommand,
    epilog="Example: onnxfold optimize model.onnx -o model.onnx --check 3",
)
@click.argument("source", metavar="IN", type=PATH)
@click.argument("destination", metavar="[OUT]", type=PATH, required=False)
@section(
    "Output",
    click.option(
        "-o", "--output", type=PATH, metavar="OUT", help="File to write; IN itself is allowed."
    ),
    click.option(
        "--force", is_flag=True, help="Overwrite the argument OUT if it exists; -o always does."
    ),
    click.option(
        "--external-data/--no-external-data",
        default=None,
        help="Write weights to a data file, or not.  [default: as IN; yes above 2 GB]",
    ),
    click.option(
        "--external-data-name", metavar="NAME", help="Name of the data file.  [default: OUT.data]"
    ),
    click.option(
        "--share-weights", is_flag=True, help="Refer to IN's weights instead of copying them."
    ),
    click.option("--no-fsync", is_flag=True, help="Do not wait for the disk."),
)
@optimization_options
@section(
    "Report",
    click.option(
        "--plan",
        "only_plan",
        is_flag=True,
        help="Only predict memory and bytes; read no large weight, write nothing.",
    ),
    click.option("--explain", is_flag=True, help="Also show why nodes were folded or stay."),
    REPORT,
    click.option(
        "--dump-ir",
        type=PATH,
        metavar="DIR",
        help="Write the graph after each pass into a new or empty folder: text, .dot, difference.",
    ),
    click.option("--advise", is_flag=True, help="Also try what other options would remove."),
)
@click.pass_obj
def optimize(
    process_ends: bool | None,
    /,
    source: str,
    destination: str | None,
    output: str | None,
    force: bool,
    external_data: bool | None,
    external_data_name: str | None,
    no_fsync: bool,
    quiet: bool,
    only_plan: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Optimize IN and write the result to OUT.

    Sizes are bytes, or have a unit: 512MB is decimal, 512MiB binary.
    """
    if process_ends:
        from onnxfold.memory import leave_garbage

        leave_garbage()
    if only_plan:
        del options["advise"]
        for argument, option in (("report", "--report"), ("dump_ir", "--dump-ir")):
            if options.pop(argument) is not None:
                raise click.UsageError(f"{option} contradicts --plan, which writes nothing")
        from onnxfold.api import plan

        _show(plan(source, **options), as_json, options["explain"])
        return
    target = _one_target(source, destination, output, force)
    if external_data_name is not None and external_data is False:
        raise click.UsageError("--external-data-name contradicts --no-external-data")
    from onnxfold.api import optimize_file
    from onnxfold.report.console import LateProgress

    with LateProgress(enabled=not quiet) as progress:
        done = optimize_file(
            source,
            target,
            external_data=external_data_name or external_data,
            fsync=not no_fsync,
            progress=progress,
            count_withheld=as_json or is_verbose(),
            **options,
        )
    if as_json or not quiet:
        _show(done, as_json, options["explain"], verbose=is_verbose())
    if (as_json or quiet) and done.check is not None and not done.check.passed:
        click.echo(f"onnxfold: warning: {done.warnings[-1]}", err=True)


def _show(result: Any, as_json: bool, explain: bool, **how: Any) -> None:
    show(result, as_json, **how)
    if explain and not as_json:
        from onnxfold.report.explanations import Decisions

        write("\n" + Decisions(result.decisions).to_text())


def _one_target(source: str, destination: str | None, output: str | None, force: bool) -> str:
    """Return OUT, which is given once, as an argument or with -o.

    An argument that exists may be a second input, from a pattern that the shell has expanded.
    """
    if destination is not None and output is not None:
        raise click.UsageError("OUT is given twice, as an argument and with -o")
    target = output if output is not None else destination
    if not target:
        raise click.UsageError("no output: give -o OUT (IN itself is allowed)")
    if "-" in (source, target):
        raise click.UsageError("standard input and output are not supported: give paths")
    is_other = os.path.realpath(target) != os.path.realpath(source)
    if output is None and not force and is_other and os.path.exists(target):
        raise click.UsageError(f"{target} exists: give it with -o, or add --force, to overwrite it")
    return target
