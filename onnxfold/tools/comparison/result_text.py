"""The text form of a comparison: the output of `onnxfold compare`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfold.ir.graphs import shaped
from onnxfold.support.tables import Table, count_text

if TYPE_CHECKING:
    from onnxfold.tools.comparison.result import Comparison, OutputResult


def compare_text(comparison: Comparison) -> Iterator[str | Table]:
    """Yield the parts of the text.

    These are a table of the outputs of all runs, sizes, problems, notes, the first difference, and
    the verdict of each session.
    """
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
    if comparison.default_session is not None:
        yield default_session_line(comparison.default_session)


def compare_line(comparison: Comparison) -> str:
    """Return the verdict in one line, without the default session."""
    session = f"{comparison.backend}, {comparison.session}"
    runs = f"on {count_text(len(comparison.runs), 'run')} ({session})"
    if comparison.equal:
        return f"{'equal bit for bit' if comparison.outputs else 'no output was compared'} {runs}"
    verdict = "within tolerance" if comparison.passed else "different"
    worst = max((output.max_abs_error for output in comparison.outputs), default=0.0)
    return f"{verdict} {runs}" + (f", max abs error {worst:.3g}" if worst else "")


def default_session_line(comparison: Comparison) -> str:
    """Return the verdict of onnxruntime's default session in one line."""
    line = compare_line(comparison)
    if comparison.equal or comparison.own_error is None:
        return line
    own = f"the original differs by {comparison.own_error:.3g} between the two sessions"
    return f"{line}; {own}"


def _row(output: OutputResult) -> tuple[str, ...]:
    value = (output.run, output.name, shaped(output.dtype, output.shape))
    if output.note is not None:
        return (*value, "-", "-", "-", "-", "-", "DIFFERENT")
    verdict = "DIFFERENT"
    if output.bit_equal:
        verdict = "equal"
    elif output.within:
        verdict = "within"
    return (
        *value,
        f"{output.differing}/{output.elements}",
        f"{output.max_abs_error:.3g}",
        f"{output.max_rel_error:.3g}",
        "-" if output.max_ulp is None else str(output.max_ulp),
        str(output.nonfinite_mismatch),
        verdict,
    )
