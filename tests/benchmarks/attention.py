"""``python -m tests.benchmarks attention``: what attention is fused for onnxruntime, and what not.

A block of attention is a Softmax of what comes from a product of two results, and that comes to
another product. The second of a router of experts, or of sampled values, is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

import onnxfold
from onnxfold.analysis.facts import ModelFacts, facts_of

_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "Einsum")
_FUSED = ("Attention", "MultiHeadAttention", "GroupQueryAttention")
_BETWEEN = 8
"""More ops than this are not between two products of one block."""


def attention(folder: Path, models: Sequence[str]) -> None:
    """Print for each model its blocks, what they became, and why the others are left."""
    table = Table(title="attention")
    for column in ("model", "blocks", "fused by", "left"):
        table.add_column(column, justify="right" if column == "blocks" else "left")
    total: Counter[str] = Counter()
    for model in models:
        out = folder / "out.onnx"
        onnxfold.optimize_file(model, out, level=2, target="onnxruntime")
        before, after = ir.load(model), ir.load(out)
        fused = Counter(node.op_type for node in _nodes(after) if node.op_type in _FUSED)
        left, blocks = Counter(_blocks(after)), sum(1 for _ in _blocks(before))
        folded = blocks - left.total() - fused.total()
        if folded > 0:
            left["all operands are constant: folded"] = folded
        total += Counter({"blocks": blocks}) + fused + left
        table.add_row(
            str(Path(model).parent.name if Path(model).stem == "model" else Path(model).stem),
            str(blocks),
            ", ".join(f"{count} {op}" for op, count in fused.items()) or "-",
            "\n".join(f"{count} x {reason}" for reason, count in left.items()),
        )
    Console(width=140).print(table)
    print(", ".join(f"{count} {what}" for what, count in total.items()))


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _blocks(model: ir.Model) -> Iterator[str]:
    """For each block why it is not fused: what the op cannot do, or else the ops of the block."""
    facts = facts_of(model)
    for node in _nodes(model):
        if node.op_type != "Softmax":
            continue
        before, behind = _way(node, forward=False), _way(node, forward=True)
        if before is None or behind is None or not _multiplies_results(before[-1], facts):
            continue
        nodes = [*reversed(before), node, *behind]
        yield _reason(nodes, facts)


def _multiplies_results(product: ir.Node, facts: ModelFacts) -> bool:
    """Whether it has no weight, a constant of two axes."""
    operands = [v for v in product.inputs[:2] if v is not None and facts.known.is_constant(v)]
    return not any(len(facts.types.of(v).shape or ()) == 2 for v in operands)


def _reason(nodes: Sequence[ir.Node], facts: ModelFacts) -> str:
    ops = ", ".join(node.op_type for node in nodes)
    operands = [v for product in (nodes[0], nodes[-1]) for v in product.inputs if v is not None]
    others = {facts.types.of(value).dtype for value in operands} - {ir.DataType.FLOAT}
    if others:
        names = " and ".join(sorted(str(dtype) for dtype in others))
        return f"the CPU provider has no kernel for {names}: {ops}"
    if "Tanh" in ops:
        return f"the op has no attribute for a cap of the scores: {ops}"
    return f"not recognised: {ops}"


def _way(start: ir.Node, *, forward: bool) -> list[ir.Node] | None:
    """The nodes up to the next product, that included; None if there is none near."""
    ways: list[tuple[ir.Node, list[ir.Node]]] = [(start, [])]
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
                return [*ops, other]
            ways.append((other, [*ops, other]))
    return None
