"""The text form of a bundle, such as the output of `onnxfold split`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxfold.support.tables import Table, bytes_text, count_text, first_of, time_text

if TYPE_CHECKING:
    from onnxfold.runtime.bundles.manifest import Manifest

_MAX_ROWS = 12
"""Maximum number of rows of a table, and of names in a list."""

_Timed = tuple[list[str], str, str | None, float | None, float | None]
"""The outputs, backend, target CPU and seconds of a kernel, and the seconds of onnxruntime.

Seconds are None if the kernel was not measured.
"""


def bundle_text(name: str, manifest: Manifest, *, verbose: bool = False) -> Iterator[str | Table]:
    """Yield lines and tables that describe a bundle.

    The lines name the number of nodes of each part, the runtime constants and the cached bytes.

    Args:
        name: The name of the bundle.
        manifest: The manifest of the bundle.
        verbose: Whether to also yield cached tensors, merges, kernels, and the reasons why nodes
            remain in entry.
    """
    nodes = manifest.nodes
    names = [info.name for info in manifest.runtime_constants]
    yield from summary_lines(name, nodes, names, len(manifest.cached), manifest.cached_bytes)
    if not verbose:
        return
    if manifest.cached:
        yield from ("", _cached_table(manifest), "")
    yield from _merge_lines(manifest)
    yield from _kernel_lines(manifest)
    stays = Counter((stay.op, stay.reason) for stay in manifest.stays)
    yield from (f"{count} {op} in entry: {reason}" for (op, reason), count in stays.items())


def _cached_table(manifest: Manifest) -> Table:
    constants = {name: group.constants for group in manifest.groups for name in group.outputs}
    largest = sorted(manifest.cached, key=lambda info: -(info.nominal_bytes or 0))
    rows = [
        (
            info.name,
            str(info),
            bytes_text(info.nominal_bytes),
            ", ".join(constants.get(info.name, [])),
        )
        for info in largest[:_MAX_ROWS]
    ]
    if len(largest) > _MAX_ROWS:
        others = sum(info.nominal_bytes or 0 for info in largest[_MAX_ROWS:])
        rows.append((f"{len(largest) - _MAX_ROWS} more", "", bytes_text(others), ""))
    return Table(("cached tensor", "type", ">bytes", "depends on"), rows)


def _merge_lines(manifest: Manifest) -> Iterator[str]:
    for reason in dict.fromkeys(merge.reason for merge in manifest.merges):
        merges = [merge for merge in manifest.merges if merge.reason == reason]
        nodes = f"{sum(merge.nodes for merge in merges):,} fewer nodes"
        size = f"{bytes_text(max(0, sum(merge.nbytes for merge in merges)))} more"
        if reason is None:
            yield (
                f"merged with other constants: {len(merges)}; "
                f"{nodes} run every time, {size} are cached"
            )
        else:
            explained = f" ({reason})" if reason else ""
            yield (
                f"not merged: {len(merges)}{explained}; "
                f"{nodes} would run every time, {size} would be cached"
            )


def _kernel_lines(manifest: Manifest) -> Iterator[str | Table]:
    kernels = manifest.kernels
    if kernels:
        backends = Counter(kernel.backend for kernel in kernels if kernel.reason is None)
        cpus = dict.fromkeys(kernel.cpu for kernel in kernels if kernel.reason is None)
        targets = f" for {', '.join(cpus)}" if len(cpus) > 1 else ""
        names = f" ({', '.join(backends)}{targets})" if backends else ""
        yield f"compiled kernels: {backends.total()} of {len(kernels)}{names}"
    yield from kernels_table(
        (k.outputs, k.backend, k.cpu, k.seconds, k.onnxruntime_seconds) for k in kernels
    )
    slower = sum(kernel.is_slower for kernel in kernels)
    if slower:
        yield f"onnxruntime is faster than {slower} of these kernels and replaces them by default"
    reasons = Counter(kernel.reason for kernel in kernels if kernel.reason)
    yield from (f"  {count} with onnxruntime: {reason}" for reason, count in reasons.items())


def summary_lines(
    name: str, nodes: Mapping[str, int], constants: Sequence[str], cached: int, cached_bytes: int
) -> Iterator[str]:
    """Yield lines with the number of nodes of each part, the runtime constants and cached bytes.

    Args:
        name: The name of the bundle.
        nodes: Numbers of nodes of the original model, of entry and of runtime_fold.
        constants: Names of the runtime constants.
        cached: The number of cached tensors.
        cached_bytes: Size of the cached tensors in bytes, at nominal sizes.
    """
    yield (
        f"{name}: of {nodes['original']:,} nodes, {nodes['entry']:,} "
        f"{'runs' if nodes['entry'] == 1 else 'run'} every time (entry), "
        f"{nodes['runtime_fold']:,} once per setting (runtime_fold)"
    )
    yield f"runtime constants: {first_of(constants, _MAX_ROWS) or 'none'}"
    if not cached:
        yield "nothing can be cached: entry is the whole model"
        return
    tensors = count_text(cached, "tensor")
    yield f"cached: {tensors}, {bytes_text(cached_bytes)} for each setting at nominal sizes"


def kernels_table(timed: Iterable[_Timed]) -> Iterator[str | Table]:
    """Yield a table of the measured kernels, or nothing if no kernel was measured.

    Kernels with the same backend, target CPU and times share a row. The table has at most
    `_MAX_ROWS` rows. The column of target CPUs is omitted if all rows have the same target CPU.
    """
    names_by_columns: dict[tuple[str, str, str, str], list[str]] = {}
    for outputs, backend, target, kernel_seconds, onnxruntime_seconds in timed:
        if kernel_seconds is not None and onnxruntime_seconds is not None:
            times = time_text(kernel_seconds), time_text(onnxruntime_seconds)
            columns = (backend, target or "", *times)
            names_by_columns.setdefault(columns, []).append(", ".join(outputs))
    if not names_by_columns:
        return
    titles = ["kernel of", "backend", "target CPU", ">kernel", ">onnxruntime"]
    merged = list(names_by_columns.items())
    rows = [[first_of(names, 1), *columns] for columns, names in merged[:_MAX_ROWS]]
    column = titles.index("target CPU")
    if len({row[column] for row in rows}) == 1:
        for cells in (titles, *rows):
            del cells[column]
    yield from ("", Table(titles, rows), "")
    if len(merged) > _MAX_ROWS:
        yield from (f"{len(merged) - _MAX_ROWS} more rows are not shown", "")
