"""Why nodes with constant inputs were folded or stay, as a table of the largest decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from onnxfold.report.console import bytes_text, render

if TYPE_CHECKING:
    from onnxfold.analysis.decisions import Decision

MOST = 20  # decisions shown


def explain_text(decisions: Sequence[Decision], most: int = MOST) -> str:
    """The decisions about the most bytes, largest first, those that were declined before others.

    Args:
        decisions: All decisions of a run.
        most: How many to show.
    """
    if not decisions:
        return "there is no node with constant inputs to speak of\n"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("value", overflow="fold")
    for title in ("op", "decision"):
        table.add_column(title)
    for title in ("if folded", "if kept"):
        table.add_column(title, justify="right")
    table.add_column("why", overflow="fold")
    ordered = sorted(decisions, key=lambda d: (d.folded, -_at_stake(d)))
    for decision in ordered[:most]:
        table.add_row(
            decision.value or decision.node,
            decision.op_type,
            "folded" if decision.folded else "stays",
            _bytes(decision.bytes_if_folded),
            _bytes(decision.bytes_if_kept),
            decision.reason,
        )
    more = len(ordered) - most
    return render(table, *([f"and {more} more: --json lists all"] if more > 0 else []))


def _at_stake(decision: Decision) -> int:
    return max(decision.bytes_if_folded or 0, decision.bytes_if_kept or 0)


def _bytes(size: int | None) -> str:
    return "" if size is None else bytes_text(size)
