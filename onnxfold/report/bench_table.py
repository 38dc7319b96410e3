"""What `onnxfold bench` prints of models side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.bench.models import ALL_THREADS, Benchmark, ModelBench
from onnxfold.report.console import bytes_text, render

_MOST = 10  # rows of a table


def bench_models_text(result: Benchmark) -> str:
    """Figures of each model, its fused ops and where its time goes, as text."""
    return render(*_parts(result))


def _parts(result: Benchmark) -> Iterator[RenderableType]:
    names = _names([each.model for each in result.models])
    yield _figures(result, names)
    fused = list(dict.fromkeys(op for each in result.models for op in each.fused))
    if fused:
        yield ""
        yield _fused(result.models, names, fused)
    yield ""
    yield _profile(result.models, names)
    yield ""
    sizes = "".join(f", {name} = {size}" for name, size in result.sizes.items())
    yield f"{result.rounds} runs of each in turns on {', '.join(result.providers)}{sizes}"
    yield "session: CPU time and wall time of creating one in a new process, and memory it takes"


def _names(paths: Sequence[str]) -> list[str]:
    """The models' file names without their end, if these tell them apart."""
    stems = [Path(path).stem for path in paths]
    return stems if len(set(stems)) == len(stems) else list(paths)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", overflow="fold")
    return table


def _figures(result: Benchmark, names: Sequence[str]) -> Table:
    threads = list(result.models[0].runs)
    columns = ["model", "nodes", "fused", "session CPU", "wall", "memory"]
    for count in threads:
        which = "all threads" if count == ALL_THREADS else f"{count} thread{'s' * (count > 1)}"
        columns += [which, "least", "CPU", "speed"]
    table = _table(*columns, "difference")
    for name, each in zip(names, result.models, strict=True):
        row = [name, str(each.nodes), str(sum(each.fused.values()))]
        row += [_time(each.opening.cpu_seconds.median), _time(each.opening.wall_seconds.median)]
        row.append(bytes_text(each.opening.peak_bytes))
        for count in threads:
            row += [_time(each.runs[count].median), _time(each.runs[count].least)]
            row.append(_time(each.cpu[count].median))
            row.append(f"{each.speedup[count]:.2f}x")
        verdict = {True: " within", False: " DIFFERENT", None: ""}[each.within]
        table.add_row(*row, f"{each.max_difference:.2g}{verdict}")
    return table


def _fused(models: Sequence[ModelBench], names: Sequence[str], ops: Sequence[str]) -> Table:
    table = _table("fused op", *names)
    for op in ops:
        table.add_row(op, *(str(each.fused.get(op, "")) for each in models))
    return table


def _profile(models: Sequence[ModelBench], names: Sequence[str]) -> Table:
    """The ops that take the most time in any of the models."""
    times = [{each.op: each for each in model.profile} for model in models]
    ops = {op: max(of[op].seconds for of in times if op in of) for of in times for op in of}
    ordered = sorted(ops, key=lambda op: -ops[op])
    table = _table("time in", *names)
    for op in ordered[:_MOST]:
        table.add_row(
            op,
            *(f"{_time(of[op].seconds)} in {of[op].calls:g}" if op in of else "" for of in times),
        )
    rest = [sum(of[op].seconds for op in ordered[_MOST:] if op in of) for of in times]
    if any(rest):
        table.add_row("other ops", *map(_time, rest))
    return table


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
