"""The cut of constant propagation: the results to store, the nodes to remove, and the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.frontier import FORBIDDEN, Growth, RegionOp, choose
from onnxfold.api.options import Options
from onnxfold.fold.pool import Pool
from onnxfold.ir.graphs import op_name
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ir.storage import stored_tensor
from onnxfold.passes.stored import data_bytes, stored_bytes, view_key
from onnxfold.passes.sweep import Sweep, quantized_weight_reason
from onnxfold.support.errors import option

NEGLIGIBLE_GROWTH = 256
"""Bytes by which a result, such as a scalar or a shape vector, may be larger than its operands."""


@dataclass(frozen=True)
class Decision:
    """The decision about one node with constant inputs.

    Attributes:
        value: The name of the node's first result with a name.
        node: The name of the node, or "".
        op_type: The op type, or "domain::Op" outside the ONNX domain.
        graph: The name of the graph that contains the node, or "".
        folded: Whether the node is removed.
        bytes_if_folded: The bytes of the node's results in the file if the node is folded. 0 if
            only folded nodes read the results. None if the node cannot be folded.
        bytes_if_kept: The bytes of constant operands that only this node requires in the file. None
            if these bytes do not affect the decision.
        reason: The reason, in a few words.
    """

    value: str
    node: str
    op_type: str
    graph: str
    folded: bool
    bytes_if_folded: int | None
    bytes_if_kept: int | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as a dictionary for JSON."""
        return asdict(self)


class Cut:
    """The values of a sweep to store and the nodes to remove, selected by bytes.

    ``growth`` has the bytes that may be stored above the minimum. The allowances are spent in this
    order.
    """

    def __init__(
        self, sweep: Sweep, pool: Pool, options: Options, growth: Sequence[Growth]
    ) -> None:
        self._sweep = sweep
        self._pool = pool
        self._options = options
        self._cost: dict[ir.Value, float] = {}
        self._representatives: dict[ir.Value, ir.Value] = {}
        self._views: dict[object, ir.Value] = {}
        ops = [self._op(node) for node in sweep.undecided]
        demanded = self._demanded(dict.fromkeys((*sweep.cost, *self._cost)))
        choice = choose(
            ops, {self._representatives.get(v, v) for v in demanded}, self._cost, growth
        )
        self.spent = choice.spent
        """The bytes of the allowed growth that the selection uses."""
        self.stored: dict[ir.Value, None] = {}
        """The values to store, in topological order."""
        self._kept: dict[ir.Node, None] = {}
        self._select(demanded, choice.stored)
        self.removed = [node for node in sweep.operations if node not in self._kept]
        """The nodes to remove."""
        self.declined = any(
            self._cost[v] != FORBIDDEN for node in self._kept for v in self._results(node)
        )
        """Whether nodes are kept only because of the bytes of their results."""

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        captured = self._sweep.body_operands.get(node, ())
        return [v for v in (*node.inputs, *captured) if v is not None]

    def _results(self, node: ir.Node) -> list[ir.Value]:
        """Return the results of a node that have a cost and a buffer. Unused results have none."""
        return [v for v in node.outputs if v in self._sweep.cost and self._pool.is_bound(v)]

    def _op(self, node: ir.Node) -> RegionOp[ir.Value]:
        """Return a node with its operands and results as an op for the minimum cut.

        One value represents all equal views of the same bytes.
        """
        operands = self._operands(node)
        results = self._results(node)
        for value in (*operands, *results):
            if value not in self._cost:
                self._cost[value] = self._cost_of(value)
                self._representatives[value] = value
                if self._cost[value] not in (0, FORBIDDEN):
                    key = view_key(value, self._pool.buffer_of(value), self._sweep.scopes)
                    self._representatives[value] = self._views.setdefault(key, value)
        # A weight represents equal views of its bytes. The weight is already stored, so it cannot
        # be an output of an op.
        outputs = [
            representative
            for v in results
            if (representative := self._representatives[v]) in self._sweep.cost
        ]
        inputs = [self._representatives[v] for v in operands]
        return RegionOp(inputs, outputs, self._sweep.bytes_of_node[node])

    def _cost_of(self, value: ir.Value) -> float:
        cost = self._sweep.cost.get(value)
        if cost is None:
            return stored_bytes(value)
        return 0 if self._options.folds(value) else cost

    def _demanded(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        """Return the values that are graph outputs, or that nodes read which cannot be folded."""
        operations = self._sweep.operations
        scopes = self._sweep.scopes
        bodies: set[ir.Graph] = set()  # bodies of operations; values that they read are operands
        for graph in scopes.graphs() if scopes.parents else ():
            parent = scopes.of(graph).parent
            if parent is not None and (parent in operations or parent.graph in bodies):
                bodies.add(graph)
        demanded = []
        for value in values:
            if value.is_graph_output() and value.graph not in bodies:
                demanded.append(value)
                continue
            for use in uses(value):
                if use.node not in operations and use.node.graph not in bodies:
                    demanded.append(value)
                    break
        return demanded

    def _select(self, demanded: list[ir.Value], chosen: set[ir.Value]) -> None:
        """Find the values to store and the nodes to keep.

        The traversal goes from demanded values through kept nodes to stored values.
        """
        pending = list(demanded)
        seen: set[ir.Value] = set(pending)
        stored: list[ir.Value] = []
        while pending:
            value = pending.pop()
            node = value.producer()
            if value not in self._sweep.cost or node is None:
                continue
            if (
                node not in self._sweep.undecided
                or self._representatives.get(value, value) in chosen
            ):
                stored.append(value)
            elif node not in self._kept:
                self._kept[node] = None
                unseen = dict.fromkeys(v for v in self._operands(node) if v not in seen)
                seen.update(unseen)
                pending.extend(unseen)
        # a node that is kept for one of its results also computes the other results
        self.stored = {v: None for v in reversed(stored) if v.producer() not in self._kept}

    def explain(self, *, folded: bool) -> list[tuple[ir.Node, Decision]]:
        """Return the decisions about kept nodes with constant inputs, with these nodes.

        If ``folded``, decisions about folded nodes are included.
        """
        operations = self._sweep.operations if folded or self._kept else {}
        use_counts = Counter(
            self._demanded({*chain.from_iterable(map(self._operands, operations))})
        )
        for node in self._kept:
            use_counts.update({*self._operands(node)})
        decisions = []
        for node in operations:
            if folded or node in self._kept:
                decisions.append((node, self._decision(node, use_counts)))
        for node, reason in self._sweep.unfoldable.items():
            decisions.append((node, _describe(node, folded=False, reason=reason)))
        return decisions

    def _decision(self, node: ir.Node, use_counts: Counter[ir.Value]) -> Decision:
        is_kept = node in self._kept
        bytes_if_kept = 0
        for value in {*self._operands(node)}:
            if use_counts[value] != is_kept:
                continue  # other nodes also require the value in the file
            if not is_kept or value in self.stored or value not in self._sweep.cost:
                bytes_if_kept += self._nbytes(value)
        results = self._results(node)
        if is_kept and all(self._cost[v] != FORBIDDEN for v in results):
            bytes_if_folded = sum(map(self._nbytes, results))
            reason = f"the model would grow: its result takes {bytes_if_folded:,} bytes"
            return _describe(
                node,
                folded=False,
                bytes_if_folded=bytes_if_folded,
                bytes_if_kept=bytes_if_kept,
                reason=reason,
            )
        if is_kept:
            reason = "an op that reads its result does not accept a constant"
            if not self._sweep.dequantized.isdisjoint(results):
                reason = quantized_weight_reason()
            return _describe(node, folded=False, bytes_if_kept=bytes_if_kept, reason=reason)
        in_file = [v for v in results if v in self.stored]
        if not in_file:
            reason = "only folded nodes read its result"
            return _describe(node, folded=True, bytes_if_folded=0, reason=reason)
        bytes_if_folded = sum(map(self._nbytes, in_file))
        reason = self._folding_reason(node, bytes_if_folded, bytes_if_kept)
        return _describe(
            node,
            folded=True,
            bytes_if_folded=bytes_if_folded,
            bytes_if_kept=bytes_if_kept,
            reason=reason,
        )

    def _folding_reason(self, node: ir.Node, bytes_if_folded: int, bytes_if_kept: int) -> str:
        if self._options.fold_all:
            return f"{option('fold_all')} folds all constants"
        if any(map(self._options.folds, node.outputs)):
            return f"{option('fold')} matches the node or its result"
        if bytes_if_folded <= bytes_if_kept:
            return "takes no more bytes than its operands"
        if bytes_if_folded <= bytes_if_kept + NEGLIGIBLE_GROWTH:
            return f"takes at most {NEGLIGIBLE_GROWTH} bytes more than its operands"
        return "folded with the nodes around it, the model stays within the limit of growth"

    def _nbytes(self, value: ir.Value) -> int:
        if value not in self._sweep.cost:
            return data_bytes(stored_tensor(value))
        if self._cost_of(value) == FORBIDDEN:
            return 0
        unbound = self._sweep.bytes_of_unbound.get(value)
        return self._pool.buffer_of(value).nbytes if unbound is None else unbound


def _describe(
    node: ir.Node,
    *,
    folded: bool,
    reason: str,
    bytes_if_folded: int | None = None,
    bytes_if_kept: int | None = None,
) -> Decision:
    return Decision(
        value=next((v.name for v in node.outputs if v.name), ""),
        node=node.name or "",
        op_type=op_name(node),
        graph=(node.graph.name or "") if node.graph is not None else "",
        folded=folded,
        bytes_if_folded=bytes_if_folded,
        bytes_if_kept=bytes_if_kept,
        reason=reason,
    )
