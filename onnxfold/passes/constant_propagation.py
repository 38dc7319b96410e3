"""Constant propagation: compute what constants determine, store what the rest of the model uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.frontier import FORBIDDEN, RegionOp, choose
from onnxfold.analysis.order import sort_if_needed
from onnxfold.kernels.evaluator import ComputationFailed, Evaluator
from onnxfold.options import FoldOptions
from onnxfold.passes.folding.materialize import materialize, remove_nodes
from onnxfold.passes.folding.sweep import NODE_BYTES, TENSOR_BYTES, Stay, Sweep
from onnxfold.pool import Pool, Statistics


@dataclass
class Outcome:
    """What a run of the pass did."""

    folded: int = 0
    """Nodes that are gone because their results are constant."""
    stays: list[Stay] = field(default_factory=list)
    """Nodes with constant inputs that are still there, with the reason."""
    statistics: Statistics = field(default_factory=Statistics)


class ConstantPropagation(ir.passes.InPlacePass):
    """Fold every node whose inputs are constant, as far as the model does not grow by it.

    Visits the main graph, subgraphs and model-local functions. All arithmetic happens on buffers
    of a pool; initializers are made for final results only, and those are still views or postponed
    work where that is possible: saving the model computes them tile by tile.

    Nodes stay if their result would take more bytes than what it is made of, if they are random,
    if ONNX does not define their op, if nobody can compute them exactly, and (by default) if they
    dequantize a weight. ``outcome`` tells which and why.

    Args:
        options: What may be folded and at what cost.
        scratch_folder: Where buffers spill to when ``options.memory_limit`` asks for it.
    """

    def __init__(
        self, options: FoldOptions | None = None, *, scratch_folder: str | None = None
    ) -> None:
        self._options = options or FoldOptions()
        self.scratch_folder = scratch_folder
        self.outcome = Outcome()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        sort_if_needed(model)
        uncomputable: dict[ir.Node, str] = {}
        distrusted: set[ir.Node] = set()
        inlined = 0
        with np.errstate(all="ignore"):
            while True:
                pool = Pool(
                    memory_limit=self._options.memory_limit, scratch_folder=self.scratch_folder
                )
                evaluator = Evaluator(
                    pool,
                    [ir.serde.serialize_function(f) for f in model.functions.values()],
                    model.ir_version,
                    distrusted=distrusted,
                )
                known_distrusted = set(distrusted)
                sweep = Sweep(model, pool, evaluator, self._options, uncomputable)
                try:
                    sweep.run()
                    plan = _Plan(sweep, pool, self._options)
                    # what could fail is computed before anything is rewritten
                    pool.compute(evaluator.uncertain([pool.buffer_of(v) for v in plan.stored]))
                    break
                except ComputationFailed as failure:
                    inlined += sweep.inlined
                    uncomputable.update(
                        (node, reason)
                        for node, reason in failure.reasons().items()
                        if node not in distrusted or node in known_distrusted
                    )
        inlined += sweep.inlined
        self._rewrite(model, sweep, plan, pool)
        self.outcome = Outcome(
            len(plan.removed) + inlined, [*sweep.stays, *plan.stays], pool.statistics
        )
        return ir.passes.PassResult(model, modified=bool(plan.removed) or inlined > 0)

    def _rewrite(self, model: ir.Model, sweep: Sweep, plan: _Plan, pool: Pool) -> None:
        functions = {f.graph for f in model.functions.values()}
        materialize(plan.stored, pool, functions, sweep.parents)
        remove_nodes(plan.removed)
        # the tensors hold the buffers they need
        for value in [v for v, _ in pool.bound()]:
            pool.unbind(value)


class _Plan:
    """Which values to store and which nodes to remove, by bytes."""

    def __init__(self, sweep: Sweep, pool: Pool, options: FoldOptions) -> None:
        self._sweep = sweep
        self._pool = pool
        self._options = options
        self._same: dict[ir.Value, ir.Value] = {}
        demanded = [v for n in sweep.operations for v in n.outputs if self._is_demanded(v)]
        self._find_same()
        choice = choose(
            [
                RegionOp(
                    [self._same.get(v, v) for v in self._operands(node)],
                    # a view of all of a weight is the weight: it is there, whoever else makes it
                    [
                        same
                        for v in self._results(node)
                        if (same := self._same.get(v, v)) in sweep.cost
                    ],
                    NODE_BYTES,
                )
                for node in sweep.undecided
            ],
            [self._same.get(v, v) for v in (*demanded, *self._demanded_leaves())],
            _Costs(self._cost),
            options.max_growth,
        )
        self.stored: list[ir.Value] = []
        self.stays: list[Stay] = []
        self._follow(demanded, choice.stored)
        kept = {stay.node for stay in self.stays}
        self.removed = [node for node in sweep.operations if node not in kept]

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        captured = self._sweep.captures.get(node, [])
        return [v for v in (*node.inputs, *captured) if v is not None]

    def _results(self, node: ir.Node) -> list[ir.Value]:
        """Those that somebody still needs: the others have no buffer (any more)."""
        return [v for v in node.outputs if v in self._sweep.cost and self._pool.is_bound(v)]

    def _find_same(self) -> None:
        """Values that are the same view of the same bytes are stored once, so they count once."""
        first: dict[object, ir.Value] = {}
        for node in self._sweep.undecided:
            for value in (*self._operands(node), *self._results(node)):
                cost = self._cost(value) if self._sweep.is_constant(value) else 0
                if not cost or cost == FORBIDDEN or value in self._same or value.is_graph_output():
                    continue
                buffer = self._pool.buffer_of(value)
                if buffer.is_known:
                    same = first.setdefault(buffer.key(), value)
                    # a subgraph's value is not visible outside of it
                    if same.graph is value.graph:
                        self._same[value] = same

    def _follow(self, demanded: list[ir.Value], chosen: set[ir.Value]) -> None:
        """From what is demanded back to what is stored; the nodes on the way stay."""
        pending = list(demanded)
        seen: set[ir.Value] = set(pending)
        staying: dict[ir.Node, None] = {}
        stored: list[ir.Value] = []
        while pending:
            value = pending.pop()
            node = value.producer()
            if value not in self._sweep.cost or node is None:
                continue
            if node not in self._sweep.undecided or self._same.get(value, value) in chosen:
                stored.append(value)
                continue
            if node in staying:
                continue
            staying[node] = None
            for operand in self._operands(node):
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        # a result of a node that stays for another of its results is there already
        self.stored = [v for v in reversed(stored) if v.producer() not in staying]
        self.stays = [
            Stay(node, self._why(node)) for node in self._sweep.undecided if node in staying
        ]

    def _why(self, node: ir.Node) -> str:
        if node.op_type == "DequantizeLinear" and not self._options.fold_quantized:
            return "the weight stays quantized (fold_quantized folds it)"
        costs = [self._sweep.cost[v] for v in node.outputs if v in self._sweep.cost]
        if FORBIDDEN in costs:
            return "its result is not a tensor"
        size = sum(self._pool.buffer_of(v).nbytes for v in self._results(node))
        return f"the model would grow: its result takes {size:,.0f} bytes"

    def _is_demanded(self, value: ir.Value) -> bool:
        if value not in self._sweep.cost:
            return False
        operations = self._sweep.operations
        return value.is_graph_output() or any(
            use.node not in operations and not self._feeds_folded_subgraph(use.node)
            for use in value.uses()
        )

    def _feeds_folded_subgraph(self, user: ir.Node) -> bool:
        """True if the user is inside a subgraph of a node that is itself an operation."""
        parents = self._sweep.parents
        parent = parents.get(user.graph) if user.graph is not None else None
        while parent is not None:
            if parent in self._sweep.operations:
                return True  # as a captured value it is an input of that operation
            parent = parents.get(parent.graph) if parent.graph is not None else None
        return False

    def _demanded_leaves(self) -> list[ir.Value]:
        leaves = {
            v
            for node in self._sweep.undecided
            for v in self._operands(node)
            if v not in self._sweep.cost
        }
        operations = self._sweep.operations
        return [
            v
            for v in leaves
            if v.is_graph_output() or any(u.node not in operations for u in v.uses())
        ]

    def _cost(self, value: ir.Value) -> float:
        cost = self._sweep.cost.get(value)
        if cost is None:
            tensor = value.const_value
            assert tensor is not None
            cost = tensor.nbytes + TENSOR_BYTES
        elif not cost and not self._options.fold_all:
            # always worth storing, but as an operand of something larger it does take its place
            cost = self._pool.buffer_of(value).nbytes + TENSOR_BYTES
        return cost


class _Costs(dict[ir.Value, float]):
    """Costs by value, asked for when they are first needed."""

    def __init__(self, cost: Callable[[ir.Value], float]) -> None:
        super().__init__()
        self._of = cost

    def __missing__(self, value: ir.Value) -> float:
        self[value] = result = self._of(value)
        return result
