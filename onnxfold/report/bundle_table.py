"""What `onnxfold split` and `adapters` print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnxfold.report.console import Table, bytes_text, first_of, rendered, time_text
from onnxfold.runtime.adapters import Fit
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import Manifest

_MOST = 12  # rows of a table

_Timed = tuple[list[str], str, float | None, float | None]
"""What a kernel makes, its backend, and the seconds of it and of onnxruntime."""


@rendered
def split_text(bundle: Bundle) -> Iterator[str | Table]:
    """Return what a split model consists of, as text for a terminal or a file."""
    manifest, nodes = bundle.manifest, bundle.manifest.nodes
    yield (
        f"{bundle.folder}: of {nodes['original']:,} nodes, entry runs {nodes['entry']:,} each time "
        f"and runtime_fold {nodes['runtime_fold']:,} once"
    )
    names = [info.name for info in manifest.runtime_constants]
    yield f"runtime constants: {first_of(names, _MOST) or 'none'}"
    if not manifest.cached:
        yield "nothing can be cached: entry is the whole model"
    else:
        yield (
            f"cached: {len(manifest.cached)} tensors, {bytes_text(manifest.cached_bytes)} "
            "for each setting at nominal sizes"
        )
        yield from ("", _cached(manifest), "")
    for reason in dict.fromkeys(merge.reason for merge in manifest.merges):
        merges = [merge for merge in manifest.merges if merge.reason == reason]
        less = sum(merge.nodes for merge in merges)
        more = bytes_text(max(0, sum(merge.nbytes for merge in merges)))
        if reason is None:
            done = f"merged with other constants: {len(merges)}, by which entry runs"
            yield f"{done} {less:,} nodes less and {more} more are cached"
        else:
            left = f"not merged: {len(merges)} ({reason}), by which entry would run"
            yield f"{left} {less:,} nodes less and {more} more would be cached"
    kernels = manifest.kernels
    if kernels:
        makers = Counter(kernel.backend for kernel in kernels if kernel.reason is None)
        named = f" ({', '.join(makers)})" if makers else ""
        yield f"compiled kernels: {makers.total()} of {len(kernels)}{named}"
    yield from kernels_table(
        (k.outputs, k.backend, k.seconds, k.onnxruntime_seconds) for k in kernels
    )
    slower = sum(kernel.is_slower for kernel in kernels)
    if slower:
        yield f"onnxruntime is faster than {slower} of them, and runs instead unless told otherwise"
    reasons = Counter(kernel.reason for kernel in kernels if kernel.reason)
    yield from (f"  {count} with onnxruntime: {reason}" for reason, count in reasons.items())
    stays = Counter((stay.op, stay.reason) for stay in manifest.stays)
    yield from (f"{count} {op} in entry: {reason}" for (op, reason), count in stays.items())


def _cached(manifest: Manifest) -> Table:
    by_output = {name: group.constants for group in manifest.groups for name in group.outputs}
    largest = sorted(manifest.cached, key=lambda info: -(info.nominal_bytes or 0))
    rows = []
    for info in largest[:_MOST]:
        depends_on = ", ".join(by_output.get(info.name, []))
        rows.append((info.name, str(info), bytes_text(info.nominal_bytes), depends_on))
    if len(largest) > _MOST:
        rest = sum(info.nominal_bytes or 0 for info in largest[_MOST:])
        rows.append((f"{len(largest) - _MOST} more", "", bytes_text(rest), ""))
    return Table(("cached tensor", "type", ">bytes", "depends on"), rows)


def kernels_table(timed: Iterable[_Timed]) -> Iterator[str | Table]:
    """Yield a table of kernels, if any were timed; those that took the same time are the same."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for outputs, backend, ours, theirs in timed:
        if ours is not None and theirs is not None:
            key = backend, time_text(ours), time_text(theirs)
            alike.setdefault(key, []).append(", ".join(outputs))
    if alike:
        titles = ("kernel of", "backend", ">kernel", ">onnxruntime")
        rows = [(first_of(names, 1), *key) for key, names in list(alike.items())[:_MOST]]
        yield from ("", Table(titles, rows), "")


@rendered
def adapters_text(manifest: Manifest, found: Mapping[str, Sequence[Fit]]) -> Iterator[str | Table]:
    """Return which constants the tensors of adapters are, by file, as text."""
    infos = {info.name: info for info in manifest.runtime_constants}
    for file, fits in found.items():
        rows = []
        for fit in fits:
            name = fit.constant
            changes = ("transposed" * fit.transposed, f"times {fit.factor:g}" * (fit.factor != 1))
            note = fit.problem or ", ".join(filter(None, changes))
            what = (name, str(infos[name])) if name is not None else ("", "")
            rows.append((fit.tensor, f"[{','.join(map(str, fit.shape))}]", *what, note))
        yield from (Table(("tensor", "shape", "runtime constant", "type", ""), rows), "")
        given = {fit.constant for fit in fits if fit.problem is None}
        rest = len(infos.keys() - given)
        left = f"; {rest} of {len(infos)} constants keep what the model has" if rest else ""
        yield f"{file}: {len(given)} of {len(fits)} tensors fit{left}"
        if manifest.cached:
            yield f"each adapter takes {bytes_text(manifest.cached_bytes)} when it is folded"
