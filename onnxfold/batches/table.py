"""What `onnxfold batch` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfold.batches.outcome import Batch, Outcome
from onnxfold.report.console import Table, bytes_text, change_text, count_text, rendered

_MOST_WITHOUT_RESULT = 50  # rows, without --verbose


@rendered
def batch_text(result: Batch, *, verbose: bool = False) -> Iterator[str | Table]:
    """Return sums, and the models that have no result; each model if ``verbose``."""
    if verbose:
        yield _each(result.outcomes)
        yield ""
    count = result.count()
    made = [o for o in result.outcomes if o.status in ("done", "unchanged")]
    told = ", ".join(f"{count[status]} {status}" for status in sorted(count))
    yield f"{count_text(len(result.outcomes), 'model')}: {told}, in {result.seconds:.1f} s"
    if made:
        nodes = [sum(o.nodes_before or 0 for o in made), sum(o.nodes_after or 0 for o in made)]
        stored = [sum(o.bytes_before or 0 for o in made), sum(o.bytes_after or 0 for o in made)]
        yield f"nodes         {nodes[0]:,} -> {nodes[1]:,}  {change_text(*nodes)}"
        before, after = map(bytes_text, stored)
        yield f"stored bytes  {before} -> {after}  {change_text(*stored)}"
    needs = [o.memory for o in result.outcomes if o.memory is not None]
    if needs:
        yield f"memory        {bytes_text(min(needs))} to {bytes_text(max(needs))} each, predicted"
    failed = result.failed
    for outcome in failed if verbose else failed[:_MOST_WITHOUT_RESULT]:
        yield f"failed: {outcome.reason}"
    if len(failed) > _MOST_WITHOUT_RESULT and not verbose:
        yield f"... and {len(failed) - _MOST_WITHOUT_RESULT} more; -v shows all"
    if result.journal is not None:
        yield f"each model is a line of {result.journal}"


def _each(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for o in outcomes:
        nodes = ["" if n is None else f"{n:,}" for n in (o.nodes_before, o.nodes_after)]
        sizes = ["" if n is None else bytes_text(n) for n in (o.bytes_before, o.bytes_after)]
        memory = "" if o.memory is None else bytes_text(o.memory)
        rows.append((o.source, o.status, *nodes, *sizes, memory, f"{o.seconds:.2f}"))
    figures = (">nodes", ">after", ">bytes", ">after", ">memory", ">seconds")
    return Table(("model", "", *figures), rows)
