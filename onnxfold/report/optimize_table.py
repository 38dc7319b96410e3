"""The closing table of `onnxfold optimize`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.compare_table import compare_line
from onnxfold.report.console import bytes_text, change_text, render
from onnxfold.report.summary import Kept, Report

_EXAMPLES = 3  # names shown of a group of nodes that stayed


def optimize_text(report: Report) -> str:
    """What changed, what it cost, and what stayed and why, as text for a terminal or a file."""
    return render(*_parts(report))


def _parts(report: Report) -> Iterator[RenderableType]:
    yield _counts(report)
    yield _cost_line(report)
    yield _pool_line(report)
    yield from _kept_lines(report.kept)
    if report.check is not None:
        yield f"check: {compare_line(report.check)}"
    for warning in report.warnings:
        yield f"warning: {warning}"


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


def _cost_line(report: Report) -> str:
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in report.stages.items())
    peak = f"; peak memory {bytes_text(report.peak_rss_bytes)}" if report.peak_rss_bytes else ""
    return (
        f"folded {_nodes(report.folded)} in {report.seconds:.2f} s"
        f"{f' ({stages})' if stages else ''}, {report.cpu_seconds:.2f} s of CPU time{peak}"
    )


def _pool_line(report: Report) -> str:
    return "pool: " + (", ".join(_pool_figures(report.pool)) or "not used")


def _pool_figures(pool: dict[str, int]) -> Iterator[str]:
    for key, figure in pool.items():
        name = key.removesuffix("_bytes").replace("_", " ")
        yield f"{name} {bytes_text(figure) if key.endswith('_bytes') else figure}"


def _kept_lines(kept: list[Kept]) -> Iterator[str]:
    """One line for every reason, the most frequent first, with a few names."""
    groups: dict[str, list[Kept]] = defaultdict(list)
    for node in kept:
        groups[node.reason].append(node)
    if groups:
        yield f"{_nodes(len(kept))} with constant inputs stayed:"
    for reason, nodes in sorted(groups.items(), key=lambda group: -len(group[1])):
        examples = ", ".join(f"{node.op_type} {node.node!r}" for node in islice(nodes, _EXAMPLES))
        more = ", ..." if len(nodes) > _EXAMPLES else ""
        yield f"  {len(nodes)}: {reason} ({examples}{more})"


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
