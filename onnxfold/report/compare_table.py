"""The table of `onnxfold compare`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.console import render

if TYPE_CHECKING:
    from onnxfold.compare import Comparison, OutputResult

_MOST_NAMES = 8  # of dynamic dimensions in one line


def compare_text(comparison: Comparison) -> str:
    """Every output of every run, then the verdict, as text for a terminal or a file."""
    return render(*_parts(comparison))


def compare_line(comparison: Comparison) -> str:
    """The verdict in one line."""
    runs = len(comparison.runs)
    where = f"on {runs} run{'' if runs == 1 else 's'} ({comparison.backend})"
    if comparison.equal:
        return f"equal bit for bit {where}"
    verdict = "within tolerance" if comparison.passed else "different"
    worst = max((output.max_abs_error for output in comparison.outputs), default=0.0)
    return f"{verdict} {where}" + (f", max abs error {worst:.3g}" if worst else "")


def check_line(comparison: Comparison) -> str:
    """The verdict in one line, with the sizes of dynamic dimensions that the models ran with."""
    names = dict.fromkeys(name for sizes in comparison.sizes.values() for name in sizes)
    parts = []
    for name in names:
        sizes = dict.fromkeys(run[name] for run in comparison.sizes.values())
        parts.append(f"{name}={'/'.join(map(str, sizes))}")
    shown = parts if len(parts) <= _MOST_NAMES else [*parts[:_MOST_NAMES], "..."]
    return compare_line(comparison) + (f", sizes: {', '.join(shown)}" if shown else "")


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.outputs:
        yield _outputs(comparison.outputs)
    for output in comparison.outputs:
        if output.note is not None:
            yield f"{output.run}: {output.name}: {output.note}"
    for run, sizes in comparison.sizes.items():
        yield f"{run}: " + ", ".join(f"{name}={size}" for name, size in sizes.items())
    for problem in comparison.problems:
        yield f"problem: {problem}"
    for note in comparison.notes:
        yield f"note: {note}"
    if comparison.first_difference is not None:
        yield str(comparison.first_difference)
    yield compare_line(comparison)


def _outputs(outputs: list[OutputResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("output", overflow="fold")
    table.add_column("type", overflow="fold", min_width=20)
    for title in ("differ", "max abs", "max rel", "max ulp", "NaN/Inf"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for output in outputs:
        table.add_row(*_row(output))
    return table


def _row(output: OutputResult) -> Iterator[str]:
    yield output.run
    yield output.name
    yield f"{output.dtype}[{','.join(str(size) for size in output.shape)}]"
    if output.note is not None:
        yield from ("-", "-", "-", "-", "-", "DIFFERENT")
        return
    yield f"{output.differing}/{output.elements}"
    yield f"{output.max_abs_error:.3g}"
    yield f"{output.max_rel_error:.3g}"
    yield "-" if output.max_ulp is None else str(output.max_ulp)
    yield str(output.nonfinite_mismatch)
    yield "equal" if output.bit_equal else "within" if output.within else "DIFFERENT"
