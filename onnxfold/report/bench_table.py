"""The text of `onnxfold bench`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxfold.bench.models import ALL_THREADS, Benchmark, FoldBench, ModelBench
from onnxfold.report.bundle_table import kernels_table
from onnxfold.report.console import Table, bytes_text, rendered, time_text

_MOST = 10  # rows of a table


@rendered
def bench_models_text(result: Benchmark) -> Iterator[str | Table]:
    """Return the figures of each model, its fused ops, where its time goes and what folding costs,
    as text.
    """
    models = result.models
    names = [Path(each.model).name.replace(".onnx", "") for each in models]
    if len(set(names)) < len(names):
        names = [each.model for each in models]
    yield from (_figures(result, names), "")
    fused = list(dict.fromkeys(op for each in models for op in each.fused))
    if fused:
        rows = [(op, *(str(each.fused.get(op, "")) for each in models)) for op in fused]
        yield from (_by_model("fused op", names, rows), "")
    yield from (_by_model("time in", names, _profile(models)), "")
    for name, each in zip(names, models, strict=True):
        if each.folding is not None:
            yield from _folding(name, each.folding)
    sizes = "".join(f", {name} = {size}" for name, size in result.sizes.items())
    yield f"{result.rounds} runs of each in turns on {', '.join(result.providers)}{sizes}"
    yield "session: CPU time and wall time of creating one in a new process, and memory it takes"


def _figures(result: Benchmark, names: Sequence[str]) -> Table:
    threads = list(result.models[0].runs)
    columns = ["model", ">nodes", ">fused", ">session CPU", ">wall", ">memory"]
    for count in threads:
        which = "all threads" if count == ALL_THREADS else f"{count} thread{'s' * (count > 1)}"
        columns += [f">{which}", ">least", ">CPU", ">speed"]
    rows = []
    for name, each in zip(names, result.models, strict=True):
        took = each.opening
        row = [name, str(each.nodes), str(sum(each.fused.values()))]
        row += [time_text(took.cpu_seconds.median), time_text(took.wall_seconds.median)]
        row.append(bytes_text(took.peak_bytes))
        for count in threads:
            row += [time_text(each.runs[count].median), time_text(each.runs[count].least)]
            row += [time_text(each.cpu[count].median), f"{each.speedup[count]:.2f}x"]
        verdict = {True: " within", False: " DIFFERENT", None: ""}[each.within]
        rows.append((*row, f"{each.max_difference:.2g}{verdict}"))
    return Table((*columns, ">difference"), rows)


def _by_model(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table((title, *(f">{name}" for name in names)), rows)


def _profile(models: Sequence[ModelBench]) -> list[tuple[str, ...]]:
    """Return the ops that take the most time in any of the models."""
    times = [{each.op: each for each in model.profile} for model in models]
    ops = {op: max(of[op].seconds for of in times if op in of) for of in times for op in of}
    ordered = sorted(ops, key=lambda op: -ops[op])
    rows = [
        (op, *(f"{time_text(t[op].seconds)} in {t[op].calls:g}" if op in t else "" for t in times))
        for op in ordered[:_MOST]
    ]
    rest = [sum(of[op].seconds for op in ordered[_MOST:] if op in of) for of in times]
    return [*rows, ("other ops", *map(time_text, rest))] if any(rest) else rows


def _folding(name: str, folding: FoldBench) -> Iterator[str | Table]:
    runs = folding.break_even_runs
    even = "never" if runs is None else f"after {runs:,} runs with the same constants"
    makers = Counter((place.backend, place.reason) for place in folding.placements)
    by = (
        f"{count} by {maker}{f' ({why})' if why else ''}" for (maker, why), count in makers.items()
    )
    yield (
        f"{name}: folding takes {time_text(folding.seconds)} once and pays {even}; "
        f"{bytes_text(folding.nbytes)} cached, folded {', '.join(by)}"
    )
    yield from kernels_table(
        (p.outputs, p.backend, p.kernel_seconds, p.onnxruntime_seconds) for p in folding.placements
    )
