"""What it saves each run if inputs are runtime constants, by the cut that `split` makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.dependence import Dependence
from onnxfold.options import Options
from onnxfold.runtime.splitting.sizes import NOMINAL
from onnxfold.runtime.splitting.split_model import cut_prepared, prepare
from onnxfold.runtime.splitting.work import work_of


@dataclass(frozen=True)
class Gain:
    """What inputs as runtime constants are good for.

    Attributes:
        runtime_constants: Their names: those that the node depends on by its values. What it
            needs of the shapes of others does not count.
        runs_once: Whether the node then runs once, too; otherwise it stays in entry. None for a
            node of a function, whose calls may be replaced by what it holds.
        reason: Why it stays, or None.
        nodes: Nodes of the main graph that run once.
        all_nodes: Nodes of the main graph when its constants are folded.
        work: The share of a run's work that these nodes are, from 0 to 1: estimated from the
            elements that ops make, read and sum up, at nominal sizes.
        cached_bytes: What is kept from run to run, at nominal sizes.
        nominal: The size that was assumed for each dynamic dimension.
    """

    runtime_constants: list[str]
    runs_once: bool | None
    reason: str | None
    nodes: int
    all_nodes: int
    work: float
    cached_bytes: int
    nominal: int = NOMINAL

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary."""
        return asdict(self)


def gain_of(model: ir.Model, options: Options, names: Sequence[str], value: str) -> Gain | None:
    """What it saves if a node runs once.

    Args:
        model: The model; it is changed on the way.
        options: Of the optimization at compile time.
        names: The inputs of the graph that the node depends on.
        value: A result of the node, which is one of the main graph or of a function.

    Returns:
        None if the node is gone when constants and shapes are folded, or runs each time even so.
    """
    chosen = [v for v in model.graph.inputs if v.name in names]
    in_main_graph = any(v.name == value for node in model.graph for v in node.outputs)
    model = prepare(model, chosen, "compile", options)
    made = {v.name: node for node in model.graph for v in node.outputs}
    node = made.get(value)
    needed = set(names)
    if node is not None:
        needed = {v.name or "" for v in Dependence(model).sources(node).inputs}
    elif in_main_graph:
        return None
    chosen = [v for v in model.graph.inputs if v.name in needed]
    if node is not None and ConstnessAnalysis(model, chosen).of_node(node) is not Constness.RUNTIME:
        return None
    region, cut = cut_prepared(model, chosen)
    work = {node: work_of(node, region.sizes) for node in model.graph}
    once = [n for n in region.operands if n not in cut.stays]
    stay = None if node is None else cut.stays.get(node)
    total = sum(work.values())
    return Gain(
        [v.name or "" for v in chosen],
        None if node is None else stay is None,
        None if stay is None else stay.reason,
        len(once),
        len(work),
        sum(work[node] for node in once) / total if total else 0.0,
        cut.nbytes,
    )
