"""What `onnxfold split` and `onnxfold bench` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.console import bytes_text, render
from onnxfold.runtime.bench import BenchResult
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import Manifest, TensorInfo

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
    constants = ", ".join(info.name for info in manifest.runtime_constants) or "none"
    yield f"runtime constants: {constants}"
    if not manifest.cached:
        yield "nothing can be cached: entry is the whole model"
    else:
        yield (
            f"cached: {len(manifest.cached)} tensors, {bytes_text(manifest.cached_bytes)} "
            "at nominal sizes"
        )
        yield ""
        yield _cached(manifest)
    kernels = manifest.kernels
    if kernels:
        makers = Counter(kernel.backend for kernel in kernels if kernel.reason is None)
        named = f" ({', '.join(makers)})" if makers else ""
        yield f"compiled kernels: {makers.total()} of {len(kernels)}{named}"
    reasons = Counter(kernel.reason for kernel in kernels if kernel.reason)
    yield from (f"  {count} with onnxruntime: {reason}" for reason, count in reasons.items())
    stays = Counter((stay.op, stay.reason) for stay in manifest.stays)
    yield from (f"{count} {op} in entry: {reason}" for (op, reason), count in stays.items())


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
            *(info.name, _type(info), bytes_text(info.nominal_bytes)),
            ", ".join(by_output.get(info.name, [])),
        )
    if len(largest) > _MOST:
        rest = sum(info.nominal_bytes or 0 for info in largest[_MOST:])
        table.add_row(f"{len(largest) - _MOST} more", "", bytes_text(rest), "")
    return table


def _type(info: TensorInfo) -> str:
    if info.shape is None:
        return info.dtype
    return f"{info.dtype}[{','.join('?' if d is None else str(d) for d in info.shape)}]"


def bench_text(result: BenchResult) -> str:
    """What a bundle is worth, as text."""
    sizes = ", ".join(f"{name} = {size}" for name, size in result.sizes.items())
    equal = (
        "bit-equal" if result.max_difference == 0 else f"at most {result.max_difference:.3g} apart"
    )
    even = (
        "never"
        if result.break_even_runs is None
        else f"after {result.break_even_runs:,} runs with the same constants"
    )
    lines = [
        f"{result.baseline}: {_time(result.original_seconds)} a run",
        f"entry: {_time(result.entry_seconds)} a run, {result.speedup:.2f} times as fast "
        f"(median of {result.rounds} runs in turns)",
        f"folding: {_time(result.fold_seconds)} once; it pays {even}",
        f"cached: {bytes_text(result.cached_bytes)}",
        f"outputs: {equal}",
        *([f"sizes: {sizes}"] if sizes else []),
    ]
    return render(*lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
