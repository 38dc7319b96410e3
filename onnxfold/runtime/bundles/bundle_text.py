"""The text form of a bundle, and of its kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxfold.support.tables import Table, bytes_text, count_text, first_of, time_text

if TYPE_CHECKING:
    from onnxfold.runtime.bundles.manifest import Manifest

_MOST = 12  # rows of a table

_Timed = tuple[list[str], str, str | None, float | None, float | None]
"""The outputs, backend, target CPU and seconds of a kernel, and the seconds of onnxruntime."""


def bundle_text(name: str, manifest: Manifest, *, verbose: bool = False) -> Iterator[str | Table]:
    """Yield the nodes of each part, the runtime constants and the cached bytes; if ``verbose``,
    also cached tensors, merges, kernels, and what stays in entry and why.
    """
    nodes = manifest.nodes
    names = [info.name for info in manifest.runtime_constants]
    yield from summary_lines(name, nodes, names, len(manifest.cached), manifest.cached_bytes)
    if not verbose:
        return
    if manifest.cached:
        by_output = {name: group.constants for group in manifest.groups for name in group.outputs}
        largest = sorted(manifest.cached, key=lambda info: -(info.nominal_bytes or 0))
        rows = [
            (
                info.name,
                str(info),
                bytes_text(info.nominal_bytes),
                ", ".join(by_output.get(info.name, [])),
            )
            for info in largest[:_MOST]
        ]
        if len(largest) > _MOST:
            rest = sum(info.nominal_bytes or 0 for info in largest[_MOST:])
            rows.append((f"{len(largest) - _MOST} more", "", bytes_text(rest), ""))
        yield from ("", Table(("cached tensor", "type", ">bytes", "depends on"), rows), "")
    for reason in dict.fromkeys(merge.reason for merge in manifest.merges):
        merges = [merge for merge in manifest.merges if merge.reason == reason]
        less = sum(merge.nodes for merge in merges)
        more = bytes_text(max(0, sum(merge.nbytes for merge in merges)))
        done = "merged with other constants"
        run = "run"
        kept = "are"
        if reason is not None:
            done = "not merged"
            run = "would run"
            kept = "would be"
        named = f"{done}: {len(merges)}{f' ({reason})' if reason else ''}"
        yield f"{named}; {less:,} fewer nodes {run} every time, {more} more {kept} cached"
    kernels = manifest.kernels
    if kernels:
        makers = Counter(kernel.backend for kernel in kernels if kernel.reason is None)
        cpus = dict.fromkeys(kernel.cpu for kernel in kernels if kernel.reason is None)
        targets = f" for {', '.join(cpus)}" if len(cpus) > 1 else ""
        named = f" ({', '.join(makers)}{targets})" if makers else ""
        yield f"compiled kernels: {makers.total()} of {len(kernels)}{named}"
    yield from kernels_table(
        (k.outputs, k.backend, k.cpu, k.seconds, k.onnxruntime_seconds) for k in kernels
    )
    slower = sum(kernel.is_slower for kernel in kernels)
    if slower:
        yield f"onnxruntime is faster than {slower} of them, and runs instead by default"
    reasons = Counter(kernel.reason for kernel in kernels if kernel.reason)
    yield from (f"  {count} with onnxruntime: {reason}" for reason, count in reasons.items())
    stays = Counter((stay.op, stay.reason) for stay in manifest.stays)
    yield from (f"{count} {op} in entry: {reason}" for (op, reason), count in stays.items())


def summary_lines(
    name: str, nodes: Mapping[str, int], constants: Sequence[str], cached: int, cached_bytes: int
) -> Iterator[str]:
    """Yield the nodes of each part of a bundle, the runtime constants and the cached tensors.

    Args:
        name: The name of the bundle.
        nodes: Numbers of nodes of the original, of entry and of runtime_fold.
        constants: Names of the runtime constants.
        cached: The number of cached tensors.
        cached_bytes: Their bytes at nominal sizes.
    """
    yield (
        f"{name}: of {nodes['original']:,} nodes, {nodes['entry']:,} "
        f"{'runs' if nodes['entry'] == 1 else 'run'} every time (entry), "
        f"{nodes['runtime_fold']:,} once per setting (runtime_fold)"
    )
    yield f"runtime constants: {first_of(constants, _MOST) or 'none'}"
    if not cached:
        yield "nothing can be cached: entry is the whole model"
        return
    tensors = count_text(cached, "tensor")
    yield f"cached: {tensors}, {bytes_text(cached_bytes)} for each setting at nominal sizes"


def kernels_table(timed: Iterable[_Timed]) -> Iterator[str | Table]:
    """Yield a table of the timed kernels, if any; kernels with the same time share a row.

    The target CPUs are shown if there are several.
    """
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for outputs, backend, target, ours, theirs in timed:
        if ours is not None and theirs is not None:
            key = backend, target or "", time_text(ours), time_text(theirs)
            alike.setdefault(key, []).append(", ".join(outputs))
    if not alike:
        return
    titles = ["kernel of", "backend", "target CPU", ">kernel", ">onnxruntime"]
    rows = [[first_of(names, 1), *key] for key, names in list(alike.items())[:_MOST]]
    column = titles.index("target CPU")
    if len({row[column] for row in rows}) == 1:
        for cells in (titles, *rows):
            del cells[column]
    yield from ("", Table(titles, rows), "")
