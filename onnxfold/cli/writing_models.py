"""Commands that write models: `optimize`, `batch`, `tune`, `infer-shapes` and `split`."""

from __future__ import annotations

import atexit
import gc
import os
from typing import Any

import click

from onnxfold.cli.arguments import (
    FOLDER,
    LEVEL,
    OPS,
    PATH,
    QUIET,
    REPORT,
    SectionedCommand,
    flag,
    number,
    optimization_options,
    option,
    output_options,
    runtime_options,
    section,
    size_in_bytes,
    sizes,
)
from onnxfold.cli.output import (
    EXIT_DIFFERENT,
    EXIT_ERROR,
    EXIT_OK,
    is_verbose,
    show,
    with_progress,
    write,
)
from onnxfold.support.errors import about


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
    flag("--force", help="Overwrite the argument OUT if it exists; -o always does."),
    click.option(
        "--external-data/--no-external-data",
        default=None,
        help="Write weights to a data file or into the model.  [default: as in IN; a data file "
        "above 2 GB]",
    ),
    click.option(
        "--external-data-name", metavar="NAME", help="Name of the data file.  [default: OUT.data]"
    ),
    flag(
        "--share-weights",
        help="Refer to weights in IN's files if these are in OUT's folder or below.",
    ),
    flag("--no-fsync", help="Do not wait for the disk."),
)
@optimization_options
@section(
    "Report",
    flag(
        "--plan",
        "only_plan",
        help="Only predict memory and bytes. No large weight is read and nothing is written.",
    ),
    flag("--explain", help="Also show why nodes were folded or kept."),
    REPORT,
    option(
        "--dump-ir",
        metavar="DIR",
        help="Write the graph after each pass that changed it into a new or empty folder: text, "
        ".dot, difference.",
    ),
    flag("--advise", help="Also count the nodes that other options would remove."),
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

    Sizes are in bytes unless a unit is given: 512MB is decimal, 512MiB is binary.
    """
    import onnxfold

    result: Any
    # the process ends after this command, and garbage collection at exit would visit every object
    if process_ends:
        gc.disable()
        atexit.register(gc.freeze)
    if only_plan:
        del options["advise"]
        for argument, option in (("report", "--report"), ("dump_ir", "--dump-ir")):
            if options.pop(argument) is not None:
                raise click.UsageError(f"{option} contradicts --plan, which writes nothing")
        result = onnxfold.plan(source, **options)
        quiet = False
        show(result, as_json)
    else:
        target = _single_destination(source, destination, output, force)
        if external_data_name is not None and external_data is False:
            raise click.UsageError("--external-data-name contradicts --no-external-data")
        result = with_progress(
            onnxfold.optimize_file,
            source,
            target,
            quiet=quiet,
            external_data=external_data if external_data_name is None else external_data_name,
            fsync=not no_fsync,
            count_withheld=as_json or is_verbose(),
            **options,
        )
        show(result, as_json, quiet, verbose=is_verbose())
        if (as_json or quiet) and result.check is not None and not result.check.passed:
            click.echo(f"onnxfold: warning: {result.warnings[-1]}", err=True)
    if options["explain"] and not as_json and not quiet:
        from onnxfold.tools.report.explanations import Decisions

        write("\n" + Decisions(result.decisions).to_text())


def _single_destination(
    source: str, destination: str | None, output: str | None, force: bool
) -> str:
    """Return OUT, which must be given once, as an argument or with -o.

    Without -o and ``force``, an existing file is only overwritten if it is IN. If the shell has
    expanded a pattern, the second argument is another input.

    Raises:
        click.UsageError: OUT is missing, given twice or would be overwritten, or a path is "-".
    """
    if destination is not None and output is not None:
        raise click.UsageError("OUT is given twice, as an argument and with -o")
    target = output if output is not None else destination
    if not target:
        raise click.UsageError("no output: give -o OUT; OUT may be IN")
    if "-" in (source, target):
        raise click.UsageError("standard input and output are not supported: give paths")
    is_source = os.path.realpath(target) == os.path.realpath(source)
    if output is None and not force and not is_source and os.path.exists(target):
        raise click.UsageError(f"{target} exists: give it with -o, or add --force, to overwrite it")
    return target


@click.command(cls=SectionedCommand)
@click.argument("sources", metavar="MODEL...", type=PATH, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    metavar="DIR",
    required=True,
    help="Folder or URL for the results. Each result has the path in DIR that its source has below "
    "MODEL.",
)
@number(
    "--workers",
    click.IntRange(1),
    None,
    "Number of models optimized at the same time.  [default: number of processors]",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Run on a dask cluster instead: tcp://host:8786."
)
@click.option(
    "--memory",
    type=size_in_bytes,
    metavar="BYTES",
    help="Memory for all models in progress. A model waits until its memory is available.  "
    "[default: free memory]",
)
@number("--timeout", click.FloatRange(0), None, "Time limit for each model.")
@flag("--plan", "only_plan", help="Only predict memory. Nothing is written into DIR.")
@click.option(
    "--journal",
    type=PATH,
    metavar="FILE",
    help="File of results, one JSON document per line.  [default: DIR/onnxfold-batch.jsonl]",
)
@optimization_options
def batch(sources: tuple[str, ...], output: str, quiet: bool, as_json: bool, **options: Any) -> int:
    """Optimize many models in parallel.

    MODEL is a file, a folder, a pattern such as 'exports/**/*.onnx', or a URL. A local folder or
    pattern does not match files in DIR.

    A failed model is reported and does not stop the batch. Models finished by an earlier batch
    with the same options are skipped, so an interrupted batch resumes. The exit code is 0 if all
    models have a result, 1 if results are missing only because --check found a difference, and 2
    otherwise.
    """
    import onnxfold

    result = with_progress(onnxfold.batch, sources, output, quiet=quiet, **options)
    show(result, as_json, quiet, verbose=is_verbose())
    for outcome in result.failed if quiet and not as_json else ():
        click.echo(f"onnxfold: error: {outcome.reason}", err=True)
    return max(
        (EXIT_DIFFERENT if o.differs else EXIT_ERROR for o in result.failed), default=EXIT_OK
    )


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=PATH, metavar="OUT", required=True, help="File to write.")
@sizes(
    "--dim",
    "dims",
    help="Size of a dynamic dimension, by default 1 for a batch and 16 otherwise, or the first "
    "that runs",
)
@number("--threads", click.IntRange(0), 0, "Number of threads of onnxruntime, 0 for one per core.")
@number(
    "--seconds",
    click.FloatRange(0),
    30.0,
    "Time budget. At least 9 runs of each candidate are measured.",
)
@number(
    "--check",
    click.IntRange(1),
    1,
    "Number of random inputs on which each candidate is compared with IN.",
)
@QUIET
@output_options
def tune(source: str, output: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Measure several optimizations of IN on this machine and write the fastest to OUT.

    Candidates are IN itself, -O1, -O2, -O2 --target onnxruntime, and -O1 and -O2 with --value-info.
    Each candidate is compared with IN. A candidate with other applications of inexact rules must be
    faster than the best candidate before it by more than the spread of the runs. The result is
    never a candidate that was measured to be slower than IN.
    """
    import onnxfold

    show(with_progress(onnxfold.tune, source, output, quiet=quiet, **options), as_json, quiet)


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="OUT",
    required=True,
    help="File to write; IN itself is allowed.",
)
@flag("--share-weights", help="Refer to IN's data files if these are in OUT's folder or below.")
@OPS
@flag("--no-fsync", help="Do not wait for the disk.")
@QUIET
@output_options
def infer_shapes(
    source: str,
    output: str,
    share_weights: bool,
    ops: tuple[str, ...],
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Record the inferred dtypes and shapes of IN's values in OUT.

    Sizes are numbers, names of the inputs' dimensions, or expressions of these such as 2*seq. Only
    value_info changes. Nodes, names, weights, metadata, inputs and outputs do not. Data files of IN
    are copied, unless OUT is IN or --share-weights is given.
    """
    import onnxfold

    target = _single_destination(source, None, output, force=True)
    options = {"share_weights": share_weights, "fsync": not no_fsync, "ops": ops}
    result = with_progress(onnxfold.infer_shapes_file, source, target, quiet=quiet, **options)
    show(result, as_json, quiet)


@click.command()
@click.argument("source", metavar="IN", type=PATH)
@click.option("-o", "--output", type=FOLDER, metavar="DIR", help="Folder to write.")
@runtime_options
@option("--fold-at", default="compile")
@option("--nominal")
@flag("--strict-backend", help="Write nothing unless the backend compiles all of runtime_fold.")
@option("--compile-seconds", default=120.0, metavar="S")
@option("--dump-ir", metavar="DIR")
@LEVEL
@option("--keep-metadata")
@REPORT
@flag("--no-fsync", help="Do not wait for the disk.")
@QUIET
@output_options
def split(
    source: str,
    output: str | None,
    report: str | None,
    no_fsync: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Split a model into a part that runs once and a part for each run.

    The first part depends only on runtime constants. These are inputs that are equal in many runs.

    The command writes entry.onnx, runtime_fold.onnx, manifest.json and compiled kernels into DIR.

    If neither the options nor IN declare runtime constants, the command writes nothing, and the
    exit code is 2. It lists the inputs that are worth holding constant, each alone and the best
    pair. The list has the nodes that would run once, their share of the work, and the bytes cached,
    at nominal sizes. With --fold-at runtime, no runtime constants are required.
    """
    from onnxfold.analysis.constness import recorded
    from onnxfold.ir import storage
    from onnxfold.runtime.split_model import split as split_file

    if report is not None:
        from onnxfold.tools.report.page.documents import check_destination, write_split_page

        check_destination(report, source)
    constants = options["runtime_constants"] or options["overridable"]
    if not constants and options["fold_at"] != "runtime":
        with about(source):
            if not recorded(storage.load(source)):
                return _list_candidates(source, output, options, as_json)
    if output is None:
        raise click.UsageError("no output: give -o DIR")
    with about(source):
        bundle = with_progress(
            split_file, source, output, quiet=quiet, fsync=not no_fsync, **options
        )
    if report is not None:
        write_split_page(bundle, source, report)
    show(bundle, as_json, quiet, verbose=True)
    return EXIT_OK


def _list_candidates(
    source: str, output: str | None, options: dict[str, Any], as_json: bool
) -> int:
    from onnxfold.runtime.backends.base import check_name
    from onnxfold.runtime.split_model import candidates

    settings = {**options}
    backend = settings.pop("backend")
    strict = settings.pop("strict_backend")
    check_name(backend, settings["backend_options"], strict, settings["target_cpu"])
    inputs = candidates(source, **settings)
    show(inputs, as_json)
    if not as_json and (inputs.found or inputs.pair):
        level = "-O2 " if all(each.level == 2 for each in inputs.found) else ""
        write("assumed sizes: 64 for dynamic dimensions, 1 for a batch; see --nominal NAME=SIZE\n")
        write("nothing was written; give the inputs that are equal in many runs:\n")
        write(f"onnxfold split {source} {level}--runtime-const NAME -o {output or 'DIR'}\n")
    return EXIT_ERROR
