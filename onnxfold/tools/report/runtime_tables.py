"""The output of `onnxfold split`, `adapters` and `bench`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.support.tables import Table, bytes_text, count_text, first_of, time_text

if TYPE_CHECKING:
    from onnxfold.runtime.adapter_matching import Fit
    from onnxfold.runtime.bundles.bundle import Bundle
    from onnxfold.runtime.bundles.manifest import Manifest
    from onnxfold.runtime.sessions.handle import Handle
    from onnxfold.runtime.sessions.session import Session
    from onnxfold.runtime.split_model import Candidates
    from onnxfold.tools.bench.side_by_side import Benchmark, ModelBench

_MOST = 12  # rows of a table

_Timed = tuple[list[str], str, str | None, float | None, float | None]
"""The outputs, backend, target CPU and seconds of a kernel, and the seconds of onnxruntime."""


def bundle_text(bundle: Bundle, *, verbose: bool = False) -> Iterator[str | Table]:
    """Yield the nodes of each part, the runtime constants and the cached bytes; if ``verbose``,
    also cached tensors, merges, kernels, and what stays in entry and why.
    """
    manifest = bundle.manifest
    nodes = bundle.manifest.nodes
    names = [info.name for info in manifest.runtime_constants]
    yield from summary_lines(bundle.name, nodes, names, len(manifest.cached), manifest.cached_bytes)
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


def session_text(session: Session) -> Iterator[str | Table]:
    """Yield what a session runs, and what it has folded, a line each."""
    yield f"session on {', '.join(session.get_providers())}"
    yield from bundle_text(session.bundle)
    folded = session.fold_statistics()
    cache = session.cache_statistics()
    runs = count_text(folded.folds, "time")
    yield f"folded {runs} in {time_text(folded.seconds)}; its cache has {bytes_text(cache.bytes)}"


def handle_text(handle: Handle) -> Iterator[str | Table]:
    """Yield the folded tensors of a handle, a line each."""
    tensors = handle.tensors()
    yield f"handle of {count_text(len(tensors), 'tensor')}, {bytes_text(handle.nbytes)} folded"
    yield first_of(list(tensors), _MOST)


def candidates_text(found: Candidates) -> Iterator[str | Table]:
    """Yield the runtime constants by which a model could be split, a row each."""
    rows = [*found.found[:_MOST], *([found.pair] if found.pair else [])]
    texts = [
        (
            ", ".join(each.names) + (" with -O2" if each.level == 2 else ""),
            f"{each.nodes} of {found.nodes}",
            "<1 %" if each.work < 0.005 else f"{100 * each.work:.0f} %",
            bytes_text(each.nbytes),
        )
        for each in rows
    ]
    if not rows:
        yield "no input lets nodes run once while the others change"
    else:
        yield Table(("constant over many runs", ">nodes once", ">of the work", ">cached"), texts)
    if len(found.found) > _MOST:
        yield f"and {len(found.found) - _MOST} more: --json lists all"
    if found.others:
        yield f"alone without effect: {first_of(found.others, _MOST)}"


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


def adapters_text(manifest: Manifest, found: Mapping[str, Sequence[Fit]]) -> Iterator[str | Table]:
    """Yield the constants that the tensors of adapters match, by file."""
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


def bench_models_text(result: Benchmark) -> Iterator[str | Table]:
    """Yield the figures of each model, with fused ops, the slowest ops and the cost of folding."""
    models = result.models
    names = [Path(each.model).name.replace(".onnx", "") for each in models]
    if len(set(names)) < len(names):
        names = [each.model for each in models]
    yield from (_figures(result, names), "")
    columns = [f">{name}" for name in names]
    fused = list(dict.fromkeys(op for each in models for op in each.fused))
    if fused:
        rows = [(op, *(str(each.fused.get(op, "")) for each in models)) for op in fused]
        yield from (Table(("fused op", *columns), rows), "")
    yield from (Table(("time in", *columns), _profile(models)), "")
    for name, each in zip(names, models, strict=True):
        folding = each.folding
        if folding is None:
            continue
        even = "never pays off"
        runs = folding.break_even_runs
        if runs is not None:
            even = f"pays off after {runs:,} runs with the same constants"
        makers = Counter((place.backend, place.reason) for place in folding.placements)
        by = (
            f"{count_text(count, 'component')} on {maker}{f' ({why})' if why else ''}"
            for (maker, why), count in makers.items()
        )
        yield (
            f"{name}: folding takes {time_text(folding.seconds)} once and {even}; "
            f"{bytes_text(folding.nbytes)} cached; {', '.join(by)}"
        )
        yield from kernels_table(
            (p.outputs, p.backend, p.target_cpu, p.kernel_seconds, p.onnxruntime_seconds)
            for p in folding.placements
        )
    sizes = "".join(f", {name} = {size}" for name, size in result.sizes.items())
    yield f"{result.rounds} interleaved runs of each on {', '.join(result.providers)}{sizes}"
    yield "nodes: after onnxruntime's own optimizations; fused: those with ops of onnxruntime only"
    yield "session: CPU time and wall time of creating one in a new process, and memory it takes"
    yield "speed: median of pairs of runs, by CPU time with 1 thread on CPUs, else by wall time"
    yield "spread: quartiles of the speed; not told apart: it differs from 1x by less"


def _figures(result: Benchmark, names: Sequence[str]) -> Table:
    threads = list(result.models[0].runs)
    columns = ["model", ">nodes", ">fused", ">session CPU", ">wall", ">memory"]
    for count in threads:
        which = count_text(count, "thread") if count else "all threads"
        is_cpu = result.uses_cpu_time(count)
        columns += [f">{which}{' CPU' if is_cpu else ''}", ">speed", ">spread"]
    rows = []
    for k, (name, each) in enumerate(zip(names, result.models, strict=True)):
        took = each.opening
        row = [name, str(each.nodes), str(sum(each.fused.values()))]
        row += [time_text(took.cpu_seconds.median), time_text(took.wall_seconds.median)]
        row.append(bytes_text(took.peak_bytes))
        for count in threads:
            times = each.cpu if result.uses_cpu_time(count) else each.runs
            low, high = each.quartiles[count]
            spread = f"{low:.2f}-{high:.2f}x" if k else ""
            is_shown = k == 0 or result.is_told_apart(each, count)
            speed = f"{each.speedup[count]:.2f}x" if is_shown else "not told apart"
            row += [time_text(times[count].median), speed, spread]
        verdict = {True: " within", False: " DIFFERENT", None: ""}[each.within]
        rows.append((*row, f"{each.max_difference:.2g}{verdict}"))
    return Table((*columns, ">difference"), rows)


def _profile(models: Sequence[ModelBench]) -> list[tuple[str, ...]]:
    """Return the ops that take most of the time in any of the models."""
    times = [{each.op: each for each in model.profile} for model in models]
    ops = {op: max(of[op].seconds for of in times if op in of) for of in times for op in of}
    ordered = sorted(ops, key=lambda op: -ops[op])
    rows = [
        (op, *(f"{time_text(t[op].seconds)} in {t[op].calls:g}" if op in t else "" for t in times))
        for op in ordered[:_MOST]
    ]
    rest = [sum(of[op].seconds for op in ordered[_MOST:] if op in of) for of in times]
    return [*rows, ("other ops", *map(time_text, rest))] if any(rest) else rows
