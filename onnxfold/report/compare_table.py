"""The table of `onnxfold compare`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfold.graphs import shaped
from onnxfold.report.console import Table, count_text, first_of, rendered

if TYPE_CHECKING:
    from onnxfold.comparison import Comparison, OutputResult

_MOST_NAMES = 8  # of dynamic dimensions in one line


@rendered
def compare_text(comparison: Comparison) -> Iterator[str | Table]:
    """Return every output of every run, then the verdict, as text for a terminal or a file."""
    if comparison.outputs:
        figures = (">differ", ">max abs", ">max rel", ">max ulp", ">NaN/Inf")
        yield Table(("run", "output", "type", *figures, "verdict"), map(_row, comparison.outputs))
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


def compare_line(comparison: Comparison) -> str:
    """Return the verdict in one line."""
    where = f"on {count_text(len(comparison.runs), 'run')} ({comparison.backend})"
    if comparison.equal:
        return f"equal bit for bit {where}"
    verdict = "within tolerance" if comparison.passed else "different"
    worst = max((output.max_abs_error for output in comparison.outputs), default=0.0)
    return f"{verdict} {where}" + (f", max abs error {worst:.3g}" if worst else "")


def check_line(comparison: Comparison) -> str:
    """Return the verdict in one line, with the sizes of dynamic dimensions that the models ran
    with.
    """
    names = dict.fromkeys(name for sizes in comparison.sizes.values() for name in sizes)
    parts = []
    for name in names:
        sizes = dict.fromkeys(run[name] for run in comparison.sizes.values())
        parts.append(f"{name}={'/'.join(map(str, sizes))}")
    shown = f", sizes: {first_of(parts, _MOST_NAMES)}" if parts else ""
    return compare_line(comparison) + shown


def _row(output: OutputResult) -> tuple[str, ...]:
    what = (output.run, output.name, shaped(output.dtype, output.shape))
    if output.note is not None:
        return (*what, "-", "-", "-", "-", "-", "DIFFERENT")
    return (
        *what,
        f"{output.differing}/{output.elements}",
        f"{output.max_abs_error:.3g}",
        f"{output.max_rel_error:.3g}",
        "-" if output.max_ulp is None else str(output.max_ulp),
        str(output.nonfinite_mismatch),
        "equal" if output.bit_equal else "within" if output.within else "DIFFERENT",
    )
