"""``python -m tests.benchmarks attention``: what attention is fused for onnxruntime, and what not.

A block of attention is a Softmax whose result comes to a product of matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

import onnxfold

_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "Einsum")
_FUSED = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_BETWEEN = 8
"""More ops than this are not between two products of one block."""


def attention(folder: Path, models: Sequence[str]) -> None:
    """Print for each model its blocks, what they became, and the ops of those that are left."""
    table = Table(title="attention")
    for column in ("model", "blocks", "fused by", "left: from the scores to the values"):
        table.add_column(column, justify="right" if column == "blocks" else "left")
    for model in models:
        out = folder / "out.onnx"
        onnxfold.optimize_file(model, out, level=2, target="onnxruntime")
        before, after = ir.load(model), ir.load(out)
        fused = Counter(node.op_type for node in _nodes(after) if node.op_type in _FUSED)
        table.add_row(
            str(Path(model).parent.name if Path(model).stem == "model" else Path(model).stem),
            str(sum(1 for _ in _blocks(before))),
            ", ".join(f"{count} {op}" for op, count in fused.items()) or "-",
            "\n".join(f"{count} x {ops}" for ops, count in Counter(_blocks(after)).items()),
        )
    Console(width=140).print(table)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _blocks(model: ir.Model) -> Iterator[str]:
    """For each block the ops from one product to the other, and the dtype if it is not float32."""
    for node in _nodes(model):
        if node.op_type != "Softmax":
            continue
        behind = _way(node, forward=True)
        if behind is None:
            continue
        before = _way(node, forward=False) or []
        dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
        kind = f" in {dtype.name}" if dtype not in (None, ir.DataType.FLOAT) else ""
        yield ", ".join([*reversed(before), node.op_type, *behind]) + kind


def _way(start: ir.Node, *, forward: bool) -> list[str] | None:
    """The ops up to the next product, that included; None if there is none near."""
    ways: list[tuple[ir.Node, list[str]]] = [(start, [])]
    seen = {start}
    for node, ops in ways:
        near = (
            [use.node for v in node.outputs for use in v.uses()]
            if forward
            else [
                producer
                for v in node.inputs
                if v is not None and (producer := v.producer()) is not None
            ]
        )
        for other in near:
            if other in seen or len(ops) == _BETWEEN:
                continue
            seen.add(other)
            if other.op_type in _PRODUCTS:
                return [*ops, other.op_type]
            ways.append((other, [*ops, other.op_type]))
    return None
