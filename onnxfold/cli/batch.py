"""`onnxfold batch`: many models, several at a time."""

from __future__ import annotations

from typing import Any

import click

from onnxfold.cli.arguments import (
    PATH,
    SectionedCommand,
    check_options,
    is_verbose,
    output_options,
    size_in_bytes,
)
from onnxfold.cli.folding import folding_arguments, folding_options
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_ERROR, EXIT_OK, write, write_json


@click.command(cls=SectionedCommand)
@click.argument("sources", metavar="MODEL...", type=PATH, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="DIR",
    required=True,
    help="Folder or URL for the results, which keep their paths below MODEL's folder.",
)
@folding_options
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Models at a time on this machine.  [default: one a processor]",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Run on a dask cluster instead: tcp://host:8786."
)
@click.option(
    "--memory",
    type=size_in_bytes,
    metavar="BYTES",
    help="Bytes that all models in work may take together; others wait.  [default: what is free]",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Time for one model."
)
@check_options
@click.option(
    "--plan", "only_plan", is_flag=True, help="Only predict memory; write nothing into DIR."
)
@click.option(
    "--journal",
    type=PATH,
    metavar="FILE",
    help="Keeps what was done, a JSON document a line.  [default: DIR/onnxfold-batch.jsonl]",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@output_options
def batch(sources: tuple[str, ...], output: str, quiet: bool, as_json: bool, **options: Any) -> int:
    """Optimize many models in parallel.

    SOURCES are files, folders, 'patterns/**/*.onnx' or URLs.

    A failed model is reported and does not stop the batch. What an earlier batch has made of
    the same model with the same options is left as it is, so that a batch that was interrupted goes
    on where it was. The exit code is 0 if all models have a result, 1 if some lack it only because
    they would not compute the same (--check), 2 otherwise.
    """
    from onnxfold.batches import batch as optimize_all
    from onnxfold.report.progress import LateProgress

    options["check_dims"] = dict(options["check_dims"])
    with LateProgress(enabled=not quiet) as progress:
        done = optimize_all(sources, output, progress=progress, **folding_arguments(options))
    if as_json:
        write_json(done.to_dict())
    elif not quiet:
        from onnxfold.batches.table import batch_text

        write(batch_text(done, verbose=is_verbose()))
    if not done.failed:
        return EXIT_OK
    return EXIT_DIFFERENT if all(o.differs for o in done.failed) else EXIT_ERROR
