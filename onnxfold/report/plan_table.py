"""What `onnxfold optimize --plan` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfold.report.console import bytes_text

if TYPE_CHECKING:
    from onnxfold.forecast import Plan


def plan_text(plan: Plan) -> str:
    """The prediction, a line each: memory and bytes."""
    made = plan.prediction
    parts = dict(made.memory)
    last = max(("constants", "check"), key=lambda name: parts[name])
    shown = ["now", "modules", "graph", last]
    sum_ = " + ".join(f"{bytes_text(parts[name])} {name}" for name in shown)
    lines = [
        f"plan for {plan.source}: nothing was written",
        f"  nodes        {plan.nodes}, of which {plan.folded} are constant and go at once",
        f"  peak memory  at most {bytes_text(made.peak_bytes)} = {sum_}",
        f"  to write     {bytes_text(made.bytes_written)} of weights",
    ]
    return "\n".join(lines) + "\n"
