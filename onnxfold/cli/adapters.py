"""`onnxfold adapters`: which runtime constants of a bundle adapters give."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import PATH, output_options
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, write, write_json


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("files", metavar="ADAPTER...", type=PATH, nargs=-1, required=True)
@output_options
def adapters(bundle: str, files: tuple[str, ...], as_json: bool) -> int:
    """Show which runtime constants of a bundle the tensors of adapters are.

    An ADAPTER is peft's folder, or a .safetensors, .npz or .onnx_adapter file.

    Exit code 0: all tensors fit; 1: some do not; 2: bad input.
    """
    from onnxfold.adapter_files import read_adapter
    from onnxfold.runtime.adapter_matching import fits
    from onnxfold.runtime.bundles.bundle import open_bundle

    manifest = open_bundle(bundle).manifest
    found = {file: fits(read_adapter(file), manifest) for file in files}
    if as_json:
        write_json({file: [vars(fit) for fit in each] for file, each in found.items()})
    else:
        from onnxfold.report.console import render
        from onnxfold.report.runtime_tables import adapters_text

        write(render(*adapters_text(manifest, found)))
    fit_all = all(fit.problem is None for each in found.values() for fit in each)
    return EXIT_OK if fit_all else EXIT_DIFFERENT
