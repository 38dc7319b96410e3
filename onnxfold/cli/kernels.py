"""`onnxfold kernels`: what is kept of earlier compilations."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import output_options
from onnxfold.cli.output import write, write_json


@click.command()
@click.option("--clear", is_flag=True, help="Remove them all.")
@output_options
def kernels(clear: bool, as_json: bool) -> None:
    """Show or remove the compiled kernels kept for later splits.

    ONNXFOLD_KERNEL_CACHE_BYTES is what they may take, 1 GiB unless it is set: those that were not
    used for the longest time go first.
    """
    from onnxfold.report.bundle_table import cleared_text, kernels_text
    from onnxfold.runtime.backends import kernel_cache

    folder, limit = kernel_cache.cache_folder(), kernel_cache.limit_in_bytes()
    if clear:
        removed = kernel_cache.clear()
        if as_json:
            write_json({"folder": str(folder), "removed_bytes": removed})
        else:
            write(cleared_text(folder, removed))
        return
    entries = kernel_cache.entries()
    if as_json:
        kept = [vars(entry) for entry in entries]
        write_json({"folder": str(folder), "limit_bytes": limit, "kernels": kept})
    else:
        write(kernels_text(folder, limit, entries))
