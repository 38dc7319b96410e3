"""What `onnxfold inspect A B` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.console import bytes_text, change_text, render
from onnxfold.report.difference import Difference, FieldChange, TensorChange
from onnxfold.report.inventory import TensorEntry

_MOST = 20  # tensors shown


def difference_text(difference: Difference) -> str:
    """What is different in two models, as text for a terminal or a file."""
    return render(*_parts(difference))


def _parts(d: Difference) -> Iterator[RenderableType]:
    yield f"from {d.before} to {d.after}"
    yield ""
    yield _ops(d)
    for what, changes in (("model", d.header), ("input", d.inputs), ("output", d.outputs)):
        if changes:
            yield ""
            yield _changes(what, changes)
    yield ""
    yield (
        f"{d.same_tensors:,} tensors are the same ({bytes_text(d.same_bytes)})"
        + "".join(f", {text}" for text in _counts(d.tensors))
    )
    if d.tensors:
        yield ""
        yield _tensors(d.tensors[:_MOST])
    if len(d.tensors) > _MOST:
        yield f"and {len(d.tensors) - _MOST} more: --json lists all"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _ops(d: Difference) -> Table:
    """Ops whose number is not the same, then all of them, and the bytes."""
    table = _table("op")
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right")
    for op, (before, after) in sorted(d.ops.items(), key=lambda item: (-max(item[1]), item[0])):
        if before != after:
            table.add_row(op, f"{before:,}", f"{after:,}", f"{after - before:+,}")
    table.add_section()
    before, after = (
        (sum(counts) for counts in zip(*d.ops.values(), strict=True)) if d.ops else (0, 0)
    )
    table.add_row("all ops", f"{before:,}", f"{after:,}", change_text(before, after))
    table.add_row(
        "stored bytes",
        *(bytes_text(d.bytes_before), bytes_text(d.bytes_after)),
        change_text(d.bytes_before, d.bytes_after),
    )
    return table


def _changes(what: str, changes: Sequence[FieldChange]) -> Table:
    table = _table(what, "before", "after")
    for change in changes:
        table.add_row(change.name, change.before or "none", change.after or "none")
    return table


def _counts(changes: Sequence[TensorChange]) -> Iterator[str]:
    for kind in ("changed", "renamed", "removed", "added"):
        alike = [change for change in changes if change.kind == kind]
        if alike:
            yield f"{len(alike):,} {kind} ({bytes_text(sum(c.bytes for c in alike))})"


def _tensors(changes: Sequence[TensorChange]) -> Table:
    table = _table("tensor", "", "before", "after")
    for change in changes:
        renamed = change.kind == "renamed" and change.after is not None
        name = f"{change.name} -> {change.after.name}" if renamed and change.after else change.name
        table.add_row(name, change.kind, _type(change.before), _type(change.after))
    return table


def _type(tensor: TensorEntry | None) -> str:
    if tensor is None:
        return ""
    shape = ",".join(map(str, tensor.shape))
    return f"{tensor.dtype}[{shape}] {bytes_text(tensor.bytes)}"
