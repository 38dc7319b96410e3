"""The text form of a benchmark: the output of `onnxfold bench`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.runtime.bundles.bundle_text import kernels_table
from onnxfold.support.tables import Table, bytes_text, count_text, time_text

if TYPE_CHECKING:
    from onnxfold.tools.bench.measuring import OpTime
    from onnxfold.tools.bench.side_by_side import Benchmark, ModelBench

_MAX_OPS = 12  # ops with a row of their own in the profile


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
        runs = folding.break_even_runs
        benefit = "saves no time"
        if runs is not None:
            benefit = f"saves time after {runs:,} runs with the same constants"
        backends = Counter((p.backend, p.reason) for p in folding.placements)
        components = (
            f"{count_text(count, 'component')} on {backend}{f' ({reason})' if reason else ''}"
            for (backend, reason), count in backends.items()
        )
        yield (
            f"{name}: folding takes {time_text(folding.seconds)} once and {benefit}; "
            f"{bytes_text(folding.nbytes)} cached; {', '.join(components)}"
        )
        yield from kernels_table(
            (p.outputs, p.backend, p.target_cpu, p.kernel_seconds, p.onnxruntime_seconds)
            for p in folding.placements
        )
    sizes = "".join(f", {name} = {size}" for name, size in result.sizes.items())
    yield f"{result.rounds} interleaved runs of each on {', '.join(result.providers)}{sizes}"
    yield "nodes: after onnxruntime's own optimizations; fused: those with ops of onnxruntime only"
    yield "session: CPU time, wall time and memory of creating a session in a new process"
    yield "speed: median of pairs of runs, by CPU time with 1 thread on CPUs, else by wall time"
    yield "spread: quartiles of the speed; within spread: the speed differs from 1x by less"


def _figures(result: Benchmark, names: Sequence[str]) -> Table:
    """Return a table with a row for each model, and columns for each number of threads."""
    threads = list(result.models[0].runs)
    columns = ["model", ">nodes", ">fused", ">session CPU", ">wall", ">memory"]
    for count in threads:
        title = count_text(count, "thread") if count else "all threads"
        is_cpu = result.uses_cpu_time(count)
        columns += [f">{title}{' CPU' if is_cpu else ''}", ">speed", ">spread"]
    rows = []
    for k, (name, each) in enumerate(zip(names, result.models, strict=True)):
        opening = each.opening
        row = [name, str(each.nodes), str(sum(each.fused.values()))]
        row += [time_text(opening.cpu_seconds.median), time_text(opening.wall_seconds.median)]
        row.append(bytes_text(opening.peak_bytes))
        for count in threads:
            times = each.cpu if result.uses_cpu_time(count) else each.runs
            low, high = each.quartiles[count]
            spread = f"{low:.2f}-{high:.2f}x" if k else ""
            is_significant = k == 0 or result.is_significant(each, count)
            speed = f"{each.speedup[count]:.2f}x" if is_significant else "within spread"
            row += [time_text(times[count].median), speed, spread]
        verdict = {True: " within", False: " DIFFERENT", None: ""}[each.within]
        rows.append((*row, f"{each.max_difference:.2g}{verdict}"))
    return Table((*columns, ">difference"), rows)


def _profile(models: Sequence[ModelBench]) -> list[tuple[str, ...]]:
    """Return a row for each of the slowest ops in any model, and one for the other ops, if any."""
    profiles = [{each.op: each for each in model.profile} for model in models]
    longest: dict[str, float] = {}
    for profile in profiles:
        for op, time in profile.items():
            longest[op] = max(longest.get(op, 0.0), time.seconds)
    ordered = sorted(longest, key=lambda op: -longest[op])
    rows = [(op, *(_op_text(profile.get(op)) for profile in profiles)) for op in ordered[:_MAX_OPS]]
    other_ops = [sum(p[op].seconds for op in ordered[_MAX_OPS:] if op in p) for p in profiles]
    if any(other_ops):
        rows.append(("other ops", *map(time_text, other_ops)))
    return rows


def _op_text(time: OpTime | None) -> str:
    return "" if time is None else f"{time_text(time.seconds)} in {time.calls:g}"
