"""What `onnxfold optimize` prints: the plan, or what was done."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from onnxfold.report.compare_table import check_line
from onnxfold.report.console import Table, bytes_text, count_text, first_of, ops_table, rendered
from onnxfold.report.summary import Report
from onnxfold.rewrite.driver import MOST_COUNTED

if TYPE_CHECKING:
    from onnxfold.analysis.decisions import Decision
    from onnxfold.forecast import Plan

_GROUPS = 8  # reasons shown for which nodes stayed


@rendered
def optimize_text(report: Report, *, verbose: bool = False) -> Iterator[str | Table]:
    """Return what changed, what it cost, and what stayed and why, as text for a terminal or a file.

    Args:
        report: Of one run.
        verbose: Also show stages, the pool, rules and assumptions.
    """
    yield ops_table(
        *(report.nodes_before, report.nodes_after),
        *(report.bytes_before, report.bytes_after),
    )
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.stages.items())
    details = f"{f' ({stages})' if stages else ''}, {report.cpu_seconds:.2f} s of CPU time"
    peak = f"; peak memory {bytes_text(report.peak_rss_bytes)}" if report.peak_rss_bytes else ""
    folded = f"folded {count_text(report.folded, 'node')} in {report.seconds:.2f} s"
    yield f"{folded}{details if verbose else ''}{peak}"
    if verbose:
        yield _pool_line(report.pool)
    yield from _kept_lines(report.kept)
    if verbose:
        fired = {"rules applied": report.rewrites, "of these inexact": report.inexact}
        for title, counts in {**fired, "-O2 would apply": report.withheld}.items():
            if counts:
                named = [f"{count} {rule}" for rule, count in counts.items()]
                yield f"{title}: {first_of(named, _GROUPS)}"
        if report.precision == "wide":
            yield from _rounding_lines(report)
    if report.check is not None:
        yield f"check: {check_line(report.check)}"
    if verbose and report.assumptions:
        yield "assumed of inputs, as sizes are dynamic:"
        yield from (f"  {assumption}" for assumption in report.assumptions)
    for option, nodes in report.beyond.items():
        yield f"{option} would remove {count_text(nodes, 'node')} more"
    for warning in report.warnings:
        yield f"warning: {warning}"
    if report.withheld and not verbose:
        withheld = report.withheld.values()
        at_least = "at least " if max(withheld) == MOST_COUNTED else ""
        places = f"{at_least}{count_text(sum(withheld), 'more place')}"
        yield f"hint: -O2 would rewrite {places}; -v shows the rules"


@rendered
def plan_text(plan: Plan) -> Iterator[str]:
    """Return the prediction of `--plan`, a line each: memory and bytes."""
    made = plan.prediction
    last = max(("constants", "check"), key=lambda name: made.memory[name])
    shown = ("now", "modules", "graph", last)
    sum_ = " + ".join(f"{bytes_text(made.memory[name])} {name}" for name in shown)
    yield f"plan for {plan.source}: nothing was written"
    yield f"  nodes        {plan.nodes}, of which {plan.folded} are constant and go at once"
    yield f"  peak memory  at most {bytes_text(made.peak_bytes)} = {sum_}"
    yield f"  to write     {bytes_text(made.bytes_written)} of weights"


def _pool_line(pool: Mapping[str, int]) -> str:
    memory = [
        f"{key.removesuffix('_bytes')} {bytes_text(figure)}"
        for key, figure in pool.items()
        if key.endswith("_bytes")
    ]
    buffers = [f"{key} {figure}" for key, figure in pool.items() if not key.endswith("_bytes")]
    shown = f"pool memory: {', '.join(memory)}; buffers: {', '.join(buffers)}"
    return shown.replace("_", " ")


def _rounding_lines(report: Report) -> Iterator[str | Table]:
    """Yield what differs from exact precision, most first, and where a chain had to be rounded."""
    apart = [rounding for rounding in report.roundings if rounding.differing]
    yield (
        f"wide precision: {len(apart)} of {len(report.roundings)} folded tensors differ from exact"
    )
    if apart:
        yield Table(
            ("tensor", ">differ", ">max abs", ">max ulp"),
            [
                (
                    *(r.tensor, f"{r.differing:,}/{r.elements:,}", f"{r.max_abs_error:.3g}"),
                    "-" if r.max_ulp is None else f"{r.max_ulp:,}",
                )
                for r in apart[:_GROUPS]
            ],
        )
    for value, reason in list(report.rounded.items())[:_GROUPS]:
        yield f"rounded before {value!r} ({reason})"
    for shown, what in ((apart, "tensors"), (report.rounded, "values")):
        if len(shown) > _GROUPS:
            yield f"and {len(shown) - _GROUPS} more {what}: --json lists all"


def _kept_lines(kept: list[Decision]) -> Iterator[str]:
    """Yield two lines for every kind of reason, the most frequent first, with a value as an
    example.

    A reason may go into detail after a colon: that belongs to the example.
    """
    groups: dict[str, list[Decision]] = defaultdict(list)
    for node in kept:
        groups[node.reason.partition(": ")[0]].append(node)
    if groups:
        yield f"{count_text(len(kept), 'node')} with constant inputs stayed:"
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for reason, nodes in ordered[:_GROUPS]:
        ops = Counter(node.op_type for node in nodes).most_common()
        yield f"  {reason}: " + ", ".join(f"{count} {op}" for op, count in ops)
        detail = nodes[0].reason.partition(": ")[2]
        yield f"    such as {nodes[0].value!r}" + (f" ({detail})" if detail else "")
    if len(ordered) > _GROUPS:
        yield f"  and {len(ordered) - _GROUPS} more reasons: --json lists all"
