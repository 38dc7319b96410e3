"""The cut of constant propagation: which results are stored, which nodes go, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxfold.analysis.decisions import Decision
from onnxfold.analysis.frontier import FORBIDDEN, Growth, RegionOp, choose
from onnxfold.options import Options
from onnxfold.passes.folding.stored import bytes_now, data_bytes
from onnxfold.passes.folding.sweep import Sweep
from onnxfold.passes.run import Stay
from onnxfold.pool import Pool

HARDLY_MORE = 256
"""Bytes by which a scalar or a shape vector may be larger than what it is made of."""

_QUANTIZED = "the weight stays quantized (fold_quantized folds it)"


class Cut:
    """Which values to store and which nodes to remove, by bytes.

    Args:
        sweep: A sweep that has run.
        pool: Its pool.
        options: What may be folded, and what may be spent on it.
        growth: Bytes that may be stored above the minimum, one allowance after the other.
    """

    def __init__(
        self, sweep: Sweep, pool: Pool, options: Options, growth: Sequence[Growth]
    ) -> None:
        self._sweep = sweep
        self._pool = pool
        self._options = options
        self._same: dict[ir.Value, ir.Value] = {}
        demanded = [
            v
            for n in sweep.operations
            for v in n.outputs
            if v in sweep.cost and self._is_demanded(v)
        ]
        self._find_same()
        needed = [self._same.get(v, v) for v in (*demanded, *self._demanded_leaves())]
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
                    sweep.bytes_of_node[node],
                )
                for node in sweep.undecided
            ],
            needed,
            _Costs(self._cost),
            growth,
        )
        self.spent = choice.spent
        """Bytes of the growth that were spent."""
        self._needed = set(needed)
        self.stored: list[ir.Value] = []
        """Values to store, in topological order."""
        self.stays: list[Stay] = []
        """Nodes that could be folded and stay."""
        self._follow(demanded, choice.stored)
        self._staying = {stay.node for stay in self.stays}
        self.removed = [node for node in sweep.operations if node not in self._staying]
        """Nodes that go."""
        self.declined = any(
            self._cost(v) != FORBIDDEN for n in self._staying for v in self._results(n)
        )
        """True if nodes stay only because of the bytes that their results take."""
        self.left_to_onnxruntime = any(
            sweep.undecided[node].kernel is None for node in self._staying
        )
        """True if only onnxruntime knows what a node that stays gives: rules may ask."""

    # ---------------------------------------------------------------- explaining

    def explain(self, *, small: bool = False) -> list[tuple[ir.Node, Decision]]:
        """What was decided about every node that has constant inputs only.

        Args:
            small: Also about the nodes whose results are so small that they always fold.
        """
        stored = set(self.stored)
        readers = Counter(
            v for node in self._staying for v in {self._as_one(v) for v in self._operands(node)}
        )
        nodes = [
            node
            for node in self._sweep.operations
            if small or node in self._staying or self._result_bytes(node) > HARDLY_MORE
        ]
        found = [(node, self._decision(node, stored, readers)) for node in nodes]
        for stay in self._sweep.stays:
            found.append((stay.node, _describe(stay.node, False, None, None, stay.reason)))
        return found

    def _decision(
        self, node: ir.Node, stored: set[ir.Value], readers: Counter[ir.Value]
    ) -> Decision:
        operands = {self._as_one(v) for v in self._operands(node)}
        stays = node in self._staying
        alone = [v for v in operands if v not in self._needed and readers[v] == stays]
        kept = sum(self._nbytes(v) for v in alone if self._is_stored(v, stored) or not stays)
        results = self._results(node)
        if stays:
            forbidden = any(self._cost(v) == FORBIDDEN for v in results)
            folded = None if forbidden else sum(self._nbytes(v) for v in results)
            return _describe(node, False, folded, kept, self._why(node))
        in_file = [v for v in results if v in stored]
        if not in_file:
            return _describe(node, True, 0, None, "only folded nodes read its result")
        folded = sum(self._nbytes(v) for v in in_file)
        return _describe(node, True, folded, kept, self._why_folded(node, folded, kept))

    def _why_folded(self, node: ir.Node, folded: int, kept: int) -> str:
        if self._options.fold_all:
            return "everything is folded (fold_all)"
        if any(self._options.folds(v.name) for v in node.outputs):
            return "asked for (fold)"
        if folded <= kept:
            return "takes no more bytes than its operands"
        if folded <= kept + HARDLY_MORE:
            return "takes hardly more bytes than the node"
        return "with the nodes around it the model grows no more than it may"

    def _as_one(self, value: ir.Value) -> ir.Value:
        return self._same.get(value, value)

    def _is_stored(self, value: ir.Value, stored: set[ir.Value]) -> bool:
        return value in stored or value not in self._sweep.cost

    def _nbytes(self, value: ir.Value) -> int:
        if value in self._sweep.cost:
            if not self._pool.is_bound(value) or self._cost(value) == FORBIDDEN:
                return 0
            return self._pool.buffer_of(value).nbytes
        return data_bytes(value.const_value)

    # ---------------------------------------------------------------- the region

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        inside = self._sweep.read_in_bodies.get(node, ())
        return [v for v in (*node.inputs, *inside) if v is not None]

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
                    same = first.setdefault((self._store_of(value), buffer.key()), value)
                    self._same[value] = same

    def _store_of(self, value: ir.Value) -> ir.Graph | None:
        """The graph whose initializers equal values can share.

        That is the main graph for all graphs in it. What is made in a function is in a Constant
        node there, and another graph of the function does not read that.
        """
        scope = self._sweep.scopes.find(value.graph)
        return value.graph if scope is None or scope.in_function else scope.root

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
        if any(self._cost(v) == FORBIDDEN for v in self._results(node)):
            quantized = node.op_type == "DequantizeLinear" and not self._options.fold_quantized
            return _QUANTIZED if quantized else "its result is not a tensor"
        return f"the model would grow: its result takes {self._result_bytes(node):,} bytes"

    def _result_bytes(self, node: ir.Node) -> int:
        return sum(self._nbytes(v) for v in self._results(node))

    def _is_demanded(self, value: ir.Value) -> bool:
        """True if somebody reads the value who is no operation, nor inside one."""
        if value.is_graph_output() and not self._is_in_operation(value.graph):
            return True
        return any(
            use.node not in self._sweep.operations and not self._is_in_operation(use.node.graph)
            for use in value.uses()
        )

    def _is_in_operation(self, graph: ir.Graph | None) -> bool:
        """True for the body of a node that is itself an operation: what it reads that one reads."""
        scopes = self._sweep.scopes
        scope = scopes.find(graph)
        while scope is not None and scope.parent is not None:
            if scope.parent in self._sweep.operations:
                return True
            scope = scopes.find(scope.parent.graph)
        return False

    def _demanded_leaves(self) -> list[ir.Value]:
        leaves = {
            v
            for node in self._sweep.undecided
            for v in self._operands(node)
            if v not in self._sweep.cost
        }
        return [v for v in leaves if self._is_demanded(v)]

    def _cost(self, value: ir.Value) -> float:
        cost = self._sweep.cost.get(value)
        if cost is None:
            return bytes_now(value)
        if cost and self._options.folds(value.name):
            # a sequence has no stored form, whoever asks for it
            return 0 if self._pool.buffer_of(value).type_proto is None else FORBIDDEN
        return cost


def _describe(
    node: ir.Node, folded: bool, if_folded: int | None, if_kept: int | None, reason: str
) -> Decision:
    return Decision(
        value=next((v.name for v in node.outputs if v.name), ""),
        node=node.name or "",
        op_type=f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
        graph=(node.graph.name or "") if node.graph is not None else "",
        folded=folded,
        bytes_if_folded=if_folded,
        bytes_if_kept=if_kept,
        reason=reason,
    )


class _Costs(dict[ir.Value, float]):
    """Costs by value, asked for when they are first needed."""

    def __init__(self, cost: Callable[[ir.Value], float]) -> None:
        super().__init__()
        self._of = cost

    def __missing__(self, value: ir.Value) -> float:
        self[value] = result = self._of(value)
        return result
