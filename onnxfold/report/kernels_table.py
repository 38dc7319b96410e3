"""What `onnxfold kernels` prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from onnxfold.report.console import bytes_text, render
from onnxfold.runtime.backends.kernel_cache import CachedKernel


def kernels_text(folder: Path, limit: int, entries: Sequence[CachedKernel]) -> str:
    """The kernels that are kept, as text for a terminal or a file."""
    total = bytes_text(sum(entry.nbytes for entry in entries))
    head = f"{folder}: {len(entries)} kernels, {total} of at most {bytes_text(limit)}"
    if not entries:
        return render(head)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("backend")
    table.add_column("first made for")
    table.add_column("bytes", justify="right")
    table.add_column("last used")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        table.add_row(entry.backend, ", ".join(entry.outputs), bytes_text(entry.nbytes), used)
    return render(head, "", table)


def cleared_text(folder: Path, removed: int) -> str:
    """That nothing is kept any more."""
    return render(f"{folder}: {bytes_text(removed)} removed")
