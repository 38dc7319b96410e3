"""The tables of `onnxfold inspect`."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.console import bytes_text, render
from onnxfold.report.inventory import InterfaceValue, Inventory


def inspect_text(inventory: Inventory) -> str:
    """What a model holds, as text for a terminal or a file."""
    return render(*_parts(inventory))


def _parts(inventory: Inventory) -> Iterator[RenderableType]:
    opsets = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in inventory.opsets.items()
    )
    producer = f", written by {inventory.producer}" if inventory.producer else ""
    yield f"{inventory.path}: IR {inventory.ir_version}, opset {opsets}{producer}"
    yield (
        f"{bytes_text(inventory.stored_bytes)} stored, of which {inventory.tensors} tensors are "
        f"{bytes_text(inventory.tensor_bytes)}; {sum(inventory.nodes.values())} nodes, "
        f"{inventory.functions} functions"
    )
    yield ""
    yield _interface("input", inventory.inputs)
    yield ""
    yield _interface("output", inventory.outputs)
    yield ""
    yield _ops(inventory.nodes)
    if inventory.largest:
        yield ""
        yield _largest(inventory)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _interface(kind: str, values: list[InterfaceValue]) -> Table:
    table = _table(kind, "type")
    for value in values:
        table.add_row(value.name, value.type)
    return table


def _ops(nodes: dict[str, int]) -> Table:
    table = _table("op")
    table.add_column("nodes", justify="right")
    for op, count in sorted(nodes.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(op, str(count))
    return table


def _largest(inventory: Inventory) -> Table:
    table = _table("largest tensors", "type")
    table.add_column("bytes", justify="right")
    for tensor in inventory.largest:
        shape = ",".join(str(size) for size in tensor.shape)
        table.add_row(tensor.name, f"{tensor.dtype}[{shape}]", bytes_text(tensor.bytes))
    return table
