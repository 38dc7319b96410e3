"""What `onnxfold split` and `onnxfold bench` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.console import bytes_text, render
from onnxfold.runtime.bench import BenchResult
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import Manifest, Merge
from onnxfold.runtime.sessions.folding import Placement

_MOST = 12  # rows of a table


def split_text(bundle: Bundle) -> str:
    """What a split model consists of, as text for a terminal or a file."""
    return render(*_parts(bundle))


def _parts(bundle: Bundle) -> Iterator[RenderableType]:
    manifest = bundle.manifest
    nodes = manifest.nodes
    yield (
        f"{bundle.folder}: of {nodes['original']:,} nodes, entry runs {nodes['entry']:,} each time "
        f"and runtime_fold {nodes['runtime_fold']:,} once"
    )
    names = [info.name for info in manifest.runtime_constants]
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    constants = ", ".join(names[:_MOST]) + more or "none"
    yield f"runtime constants: {constants}"
    if not manifest.cached:
        yield "nothing can be cached: entry is the whole model"
    else:
        yield (
            f"cached: {len(manifest.cached)} tensors, {bytes_text(manifest.cached_bytes)} "
            "for each setting at nominal sizes"
        )
        yield ""
        yield _cached(manifest)
    yield from _merges(manifest)
    kernels = manifest.kernels
    if kernels:
        makers = Counter(kernel.backend for kernel in kernels if kernel.reason is None)
        named = f" ({', '.join(makers)})" if makers else ""
        yield f"compiled kernels: {makers.total()} of {len(kernels)}{named}"
    yield from _kernels([(k.outputs, k.backend, k.seconds, k.onnxruntime_seconds) for k in kernels])
    slower = sum(kernel.is_slower for kernel in kernels)
    if slower:
        yield f"onnxruntime is faster than {slower} of them, and runs instead unless told otherwise"
    reasons = Counter(kernel.reason for kernel in kernels if kernel.reason)
    yield from (f"  {count} with onnxruntime: {reason}" for reason, count in reasons.items())
    stays = Counter((stay.op, stay.reason) for stay in manifest.stays)
    yield from (f"{count} {op} in entry: {reason}" for (op, reason), count in stays.items())


def _merges(manifest: Manifest) -> Iterator[str]:
    """Where runtime constants became part of other constants, and where they could have."""
    by_reason: dict[str | None, list[Merge]] = {}
    for merge in manifest.merges:
        by_reason.setdefault(merge.reason, []).append(merge)
    for reason, merges in by_reason.items():
        nodes = sum(merge.nodes for merge in merges)
        nbytes = bytes_text(max(0, sum(merge.nbytes for merge in merges)))
        if reason is None:
            yield (
                f"merged with other constants: {len(merges)}, by which entry runs {nodes:,} nodes "
                f"less and {nbytes} more are cached"
            )
        else:
            yield (
                f"not merged: {len(merges)} ({reason}), by which entry would run {nodes:,} nodes "
                f"less and {nbytes} more would be cached"
            )


def _cached(manifest: Manifest) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("cached tensor")
    table.add_column("type")
    table.add_column("bytes", justify="right")
    table.add_column("depends on")
    by_output = {name: group.constants for group in manifest.groups for name in group.outputs}
    largest = sorted(manifest.cached, key=lambda info: -(info.nominal_bytes or 0))
    for info in largest[:_MOST]:
        table.add_row(
            *(info.name, str(info), bytes_text(info.nominal_bytes)),
            ", ".join(by_output.get(info.name, [])),
        )
    if len(largest) > _MOST:
        rest = sum(info.nominal_bytes or 0 for info in largest[_MOST:])
        table.add_row(f"{len(largest) - _MOST} more", "", bytes_text(rest), "")
    return table


def _kernels(timed: Sequence[tuple[list[str], str, float | None, float | None]]) -> Iterator[Table]:
    """A table of kernels, if any were timed; those that took the same time are the same."""
    alike: dict[tuple[str, float, float], list[str]] = {}
    for outputs, backend, ours, theirs in timed:
        if ours is not None and theirs is not None:
            alike.setdefault((backend, ours, theirs), []).append(", ".join(outputs))
    if not alike:
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("kernel of", "backend"):
        table.add_column(name)
    for name in ("kernel", "onnxruntime"):
        table.add_column(name, justify="right")
    for (backend, ours, theirs), names in list(alike.items())[:_MOST]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        table.add_row(f"{names[0]}{more}", backend, _time(ours), _time(theirs))
    yield table


def bench_text(result: BenchResult) -> str:
    """What a bundle is worth, and who folds, as text."""
    sizes = ", ".join(f"{name} = {size}" for name, size in result.sizes.items())
    equal = (
        "bit-equal" if result.max_difference == 0 else f"at most {result.max_difference:.3g} apart"
    )
    even = (
        "never"
        if result.break_even_runs is None
        else f"after {result.break_even_runs:,} runs with the same constants"
    )
    lines: list[RenderableType] = [
        f"{result.baseline}: {_time(result.original_seconds)} a run",
        f"entry: {_time(result.entry_seconds)} a run, {result.speedup:.2f} times as fast "
        f"(median of {result.rounds} runs in turns)",
        f"folding: {_time(result.fold_seconds)} once; it pays {even}",
        f"cached: {bytes_text(result.cached_bytes)}",
        f"outputs: {equal}",
        *([f"sizes: {sizes}"] if sizes else []),
        *_folded_by(result.placements),
    ]
    return render(*lines)


def _folded_by(placements: Sequence[Placement]) -> Iterator[RenderableType]:
    makers = Counter((place.backend, place.reason) for place in placements)
    for (backend, reason), count in makers.items():
        yield f"folded by {backend}: {count}{f' ({reason})' if reason else ''}"
    yield from _kernels(
        [(p.outputs, p.backend, p.kernel_seconds, p.onnxruntime_seconds) for p in placements]
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
