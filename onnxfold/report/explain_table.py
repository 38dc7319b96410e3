"""What `onnxfold explain` prints: a table of the largest decisions, or why one node runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onnxfold.report.console import Table, bytes_text, first_of, render

if TYPE_CHECKING:
    from onnxfold.analysis.decisions import Decision
    from onnxfold.report.explain import Gain, PathStep, Why

_MOST = 20  # decisions shown
_MOST_STEPS = 12  # of a path; the middle of a longer one is left out
_MOST_NAMES = 8


def explain_text(decisions: Sequence[Decision]) -> str:
    """Return the decisions about the most bytes, largest first, those that were declined before
    others.
    """
    if not decisions:
        return "there is no node with constant inputs to speak of\n"
    ordered = sorted(decisions, key=lambda d: (d.folded, -_at_stake(d)))
    rows = [
        (
            *(decision.value or decision.node, decision.op_type),
            "folded" if decision.folded else "stays",
            _bytes(decision.bytes_if_folded),
            _bytes(decision.bytes_if_kept),
            decision.reason,
        )
        for decision in ordered[:_MOST]
    ]
    more = len(ordered) - _MOST
    return render(
        Table(("value", "op", "decision", ">if folded", ">if kept", "why"), rows),
        *([f"and {more} more: --json lists all"] if more > 0 else []),
    )


def _at_stake(decision: Decision) -> int:
    return max(decision.bytes_if_folded or 0, decision.bytes_if_kept or 0)


def _bytes(size: int | None) -> str:
    return "" if size is None else bytes_text(size)


def why_text(why: Why) -> str:
    """Return the explanation of one node as text for a terminal or a file."""
    text = render(*_lines(why))
    return text if why.decision is None else f"{text}\n{explain_text([why.decision])}"


def _lines(why: Why) -> Iterator[str | Table]:
    name = f", node {why.node}" if why.node and why.node != why.value else ""
    what = "depends on the inputs" if why.is_variable else "constant"
    if why.is_variable and why.op_after is None:
        what += " in this model; not in the optimized model"
    yield f"{why.value or why.op_type} = {why.op_type}{name}: {what}"
    if why.is_variable and why.holder:
        yield f"in a subgraph of {why.holder}, which runs it"
    if why.operands:
        yield f"operands that depend on the inputs: {first_of(why.operands, _MOST_NAMES)}"
    if why.inputs:
        yield f"inputs it depends on: {first_of(why.inputs, _MOST_NAMES)}"
    for node, reason in list(why.blockers.items())[:_MOST_NAMES]:
        yield f"{node} runs in every run: {reason}"
    if why.path:
        yield from ("", _way(why.path))
    if why.gain is not None:
        yield from ("", *_saved(why.gain))
    if why.op_after is None and (why.decision is None or not why.decision.folded):
        yield "removed: known from shapes, replaced by a rule, or unused"
    elif why.op_after is not None and why.op_after != why.op_type:
        yield f"in the optimized model: {why.op_after}"


def _way(steps: Sequence[PathStep]) -> Table:
    rows = [(step.value, step.made_by) for step in steps]
    gap = len(rows) - _MOST_STEPS
    if gap > 1:
        half = _MOST_STEPS // 2
        rows[half:-half] = [(f"... {gap} more ...", "")]
    return Table(("path to an input", "made by"), rows)


def _saved(gain: Gain) -> Iterator[str]:
    fate = "runs once" if gain.runs_once else f"could run once, but stays: {gain.reason}"
    if gain.runs_once is None:
        fate = "runs once in calls whose other operands are constant"
    asked = " ".join(f"--runtime-const {shlex.quote(n)}" for n in gain.runtime_constants)
    yield f"split {asked}: {fate}"
    yield (
        f"each run saves {gain.nodes:,} of {gain.all_nodes:,} nodes, about "
        f"{100 * gain.work:.0f} % of the work, and caches {bytes_text(gain.cached_bytes)} "
        f"(dynamic dimensions taken as {gain.nominal})"
    )
