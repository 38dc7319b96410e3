"""The closing table of `onnxfold optimize`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.compare_table import check_line
from onnxfold.report.console import bytes_text, change_text, render
from onnxfold.report.summary import Kept, Report
from onnxfold.rewrite.driver import MOST_COUNTED

_GROUPS = 8  # reasons shown for which nodes stayed


def optimize_text(report: Report, *, verbose: bool = False) -> str:
    """What changed, what it cost, and what stayed and why, as text for a terminal or a file.

    Args:
        report: Of one run.
        verbose: Also show stages, the pool, rules and assumptions.
    """
    return render(*_parts(report, verbose))


def _parts(report: Report, verbose: bool) -> Iterator[RenderableType]:
    yield _counts(report)
    yield _cost_line(report, verbose)
    if verbose:
        yield _pool_line(report)
    yield from _kept_lines(report.kept)
    if verbose:
        yield from _rule_lines(report)
        if report.precision == "wide":
            yield from _rounding_lines(report)
    if report.check is not None:
        yield f"check: {check_line(report.check)}"
    if verbose and report.assumptions:
        yield "assumed of inputs, as sizes are dynamic:"
        yield from (f"  {assumption}" for assumption in report.assumptions)
    for option, nodes in report.beyond.items():
        yield f"{option} would remove {_nodes(nodes)} more"
    for warning in report.warnings:
        yield f"warning: {warning}"
    if not verbose:
        yield _hint(report)


def _hint(report: Report) -> str:
    """What to try next."""
    more = "-v shows rules, stages and what was assumed; --json all of it"
    if not report.withheld:
        return f"hint: {more}"
    places = sum(report.withheld.values())
    at_least = "at least " if max(report.withheld.values()) == MOST_COUNTED else ""
    noun = "place" if places == 1 else "places"
    return f"hint: -O2 would rewrite {at_least}{places} more {noun}; {more}"


def _counts(report: Report) -> Table:
    """Ops whose number changed, most frequent first; all ops; bytes."""
    before, after = report.nodes_before, report.nodes_after
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("op")
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right")
    changed = [op for op in {**before, **after} if before.get(op, 0) != after.get(op, 0)]
    for op in sorted(changed, key=lambda op: (-before.get(op, 0), op)):
        old, new = before.get(op, 0), after.get(op, 0)
        table.add_row(op, str(old), str(new), f"{new - old:+d}")
    table.add_section()
    old, new = sum(before.values()), sum(after.values())
    table.add_row("all ops", str(old), str(new), change_text(old, new), style="bold")
    if report.bytes_before is not None and report.bytes_after is not None:
        table.add_row(
            "stored bytes",
            bytes_text(report.bytes_before),
            bytes_text(report.bytes_after),
            change_text(report.bytes_before, report.bytes_after),
            style="bold",
        )
    return table


def _cost_line(report: Report, verbose: bool) -> str:
    peak = f"; peak memory {bytes_text(report.peak_rss_bytes)}" if report.peak_rss_bytes else ""
    line = f"folded {_nodes(report.folded)} in {report.seconds:.2f} s"
    if not verbose:
        return line + peak
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.stages.items())
    cpu = f"{report.cpu_seconds:.2f} s of CPU time"
    return f"{line}{f' ({stages})' if stages else ''}, {cpu}{peak}"


def _pool_line(report: Report) -> str:
    names = {key: key.removesuffix("_bytes").replace("_", " ") for key in report.pool}
    memory = ", ".join(
        f"{name} {bytes_text(report.pool[key])}"
        for key, name in names.items()
        if key.endswith("_bytes")
    )
    buffers = ", ".join(
        f"{name} {report.pool[key]}" for key, name in names.items() if not key.endswith("_bytes")
    )
    return f"pool memory: {memory or 'none'}; buffers: {buffers or 'none'}"


def _rule_lines(report: Report) -> Iterator[str]:
    """Which rules fired, and what the next level would do."""
    for title, counts in (
        ("rules applied", report.rewrites),
        ("of these inexact", report.inexact),
        ("-O2 would apply", report.withheld),
    ):
        if counts:
            shown = [f"{count} {rule}" for rule, count in list(counts.items())[:_GROUPS]]
            more = len(counts) - len(shown)
            yield f"{title}: {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")


def _rounding_lines(report: Report) -> Iterator[RenderableType]:
    """What differs from exact precision, most first, and where a chain had to be rounded."""
    apart = [rounding for rounding in report.roundings if rounding.differing]
    yield (
        f"wide precision: {len(apart)} of {len(report.roundings)} folded tensors differ from exact"
    )
    if apart:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("tensor")
        for title in ("differ", "max abs", "max ulp"):
            table.add_column(title, justify="right")
        for r in apart[:_GROUPS]:
            ulp = "-" if r.max_ulp is None else f"{r.max_ulp:,}"
            differ = f"{r.differing:,}/{r.elements:,}"
            table.add_row(r.tensor, differ, f"{r.max_abs_error:.3g}", ulp)
        yield table
    for value, reason in list(report.rounded.items())[:_GROUPS]:
        yield f"rounded before {value!r} ({reason})"
    for shown, what in ((apart, "tensors"), (report.rounded, "values")):
        if len(shown) > _GROUPS:
            yield f"and {len(shown) - _GROUPS} more {what}: --json lists all"


def _kept_lines(kept: list[Kept]) -> Iterator[str]:
    """Two lines for every kind of reason, the most frequent first, with an example.

    A reason may go into detail after a colon: that belongs to the example.
    """
    groups: dict[str, list[Kept]] = defaultdict(list)
    for node in kept:
        groups[node.reason.partition(": ")[0]].append(node)
    if groups:
        yield f"{_nodes(len(kept))} with constant inputs stayed:"
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for reason, nodes in ordered[:_GROUPS]:
        ops = Counter(node.op_type for node in nodes).most_common()
        yield f"  {reason}: " + ", ".join(f"{count} {op}" for op, count in ops)
        detail = nodes[0].reason.partition(": ")[2]
        yield f"    such as {nodes[0].node!r}" + (f" ({detail})" if detail else "")
    if len(ordered) > _GROUPS:
        yield f"  and {len(ordered) - _GROUPS} more reasons: --json lists all"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
