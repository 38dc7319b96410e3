"""Half precision that a runtime carries in float32: which values are loose, and what must stay.

ONNX rounds to float16 or bfloat16 after every op. A runtime without kernels for them computes in
float32 and rounds where a half value is stored, and whether one is stored between two ops depends
on what stands there: two ops that only move elements may, one between two additions need not. So
the bits of its results depend on the graph around, and stay the same only where the graph does.

A value is *loose* if such a runtime may hold other elements for it than ONNX says: what arithmetic
gives in half precision, and all that depends on it. Graph inputs and weights are settled, and so is
what only moves them or can be shown to need no rounding. What reads or makes a loose half value is
left as it is.

A *joint* is an op that the runtime may run either way: it moves loose elements, it is arithmetic
that has a half kernel, or a Cast reads it. What is read by it or reads it decides, so that stays,
too. Only where an op moves bytes and is next to another such op, or makes an output of the model,
is the answer known: its result is stored, and settled from there on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxfold.analysis.constants import captured_values, is_constant_node
from onnxfold.analysis.half_kernels import has_half_kernel
from onnxfold.analysis.rounding import HALF, STORING, is_exactly_known, moves
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.registry import Array, Kind, find

REASON = "a runtime may carry its float16/bfloat16 values in float32 (half=carried)"


class Carried:
    """What must stay for the rounding points of half values to be where they are.

    Answers hold while the model is changed as they allow: what is loose is left alone.

    Args:
        analysis: What is known of the model.
    """

    def __init__(self, analysis: SymbolicAnalysis) -> None:
        self._analysis = analysis
        self._functions = analysis.model.functions
        self._loose: dict[ir.Value, bool] = {}
        self._joints: dict[ir.Node, bool] = {}
        self._open: set[ir.Node] = set()
        self._anchors: dict[ir.Node, ir.Node] = {}

    # ---------------------------------------------------------------- values

    def may_be_half(self, value: ir.Value) -> bool:
        """True unless the dtype is known and another one."""
        dtype = self._dtype(value)
        return dtype in HALF if dtype is not None else self._analysis.of(value).other is None

    def _dtype(self, value: ir.Value) -> ir.DataType | None:
        return self._analysis.of(value).dtype or value.dtype

    def is_loose(self, value: ir.Value) -> bool:
        """True if a runtime may hold other elements than ONNX says."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._loose:
                pending.pop()
                continue
            missing = [v for v in self._depends_on(current) if v not in self._loose]
            if missing:
                pending.extend(missing)
                continue
            self._loose[current] = self._decide(current)
            pending.pop()
        return self._loose[value]

    def _depends_on(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or is_constant_node(node) or self._kind(node) is Kind.SHAPE:
            return []
        values = [v for v in node.inputs if v is not None]
        for graph in subgraphs_of(node):
            values += (v for v in graph.outputs if v is not None)
        if subgraphs_of(node):
            values += captured_values(node)
        return values

    def _decide(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None:
            scope = self._analysis.scopes.find(value.graph)
            if scope is None:
                return self.may_be_half(value)
            is_given = value.is_graph_input() and (scope.in_function or scope.parent is not None)
            return is_given and self.may_be_half(value)  # whatever a caller or a loop hands in
        if is_constant_node(node) or self._kind(node) is Kind.SHAPE:
            return False
        loose = [v for v in self._depends_on(value) if self._loose[v]]
        if loose:
            is_stored = all(self._dtype(v) in HALF for v in loose) and self._is_anchored(node)
            return not is_stored
        if not self.may_be_half(value):
            return False
        if subgraphs_of(node) or node.op_identifier() in self._functions:
            return True
        return not (
            moves(node.op_type, node.domain, self._opset(node)) or self._is_exact(node, value)
        )

    def _is_exact(self, node: ir.Node, value: ir.Value) -> bool:
        """True if the elements are known and needed no rounding."""
        dtype = self._analysis.of(value).dtype
        if dtype is None or self._analysis.of(value).known is None:
            return False
        operands = [None if v is None else self._elements(v) for v in node.inputs]
        if any(v is not None and a is None for v, a in zip(node.inputs, operands, strict=True)):
            return False
        return is_exactly_known(node, self._opset(node), operands, dtype.numpy())

    def _elements(self, value: ir.Value) -> Array | None:
        known = self._analysis.of(value).known
        return self._analysis.known.array(value) if known is None else known

    # ---------------------------------------------------------------- nodes

    def _opset(self, node: ir.Node) -> int:
        scope = self._analysis.scopes.find(node.graph)
        return 1 if scope is None else scope.opsets.get(node.domain, 1)

    def _kind(self, node: ir.Node) -> Kind | None:
        kernel = find(node.op_type, self._opset(node)) if node.domain == "" else None
        return None if kernel is None else kernel.kind

    def _is_loose_half(self, value: ir.Value | None) -> bool:
        return value is not None and self.may_be_half(value) and self.is_loose(value)

    def is_joint(self, node: ir.Node) -> bool:
        """True for a node that a runtime may run in half precision or not, by what is around."""
        known = self._joints.get(node)
        if known is None:
            self._joints[node] = known = self._decide_joint(node)
        return known

    def _decide_joint(self, node: ir.Node) -> bool:
        opset = self._opset(node)
        if moves(node.op_type, node.domain, opset):
            if any(self._is_loose_half(v) for v in node.inputs):
                return True
        elif (
            any(v is not None and self.may_be_half(v) for v in node.inputs)
            and any(self.may_be_half(v) for v in node.outputs)
            and not subgraphs_of(node)
            and has_half_kernel(node.op_type, node.domain, opset)
        ):
            return True
        # a runtime joins its own conversions and those of the model, where nobody else reads
        return any(
            use.node.op_type == "Cast" and self._is_loose_half(value)
            for value in node.outputs
            for use in value._uses
        )

    def _is_anchored(self, node: ir.Node, without: Collection[ir.Node] = ()) -> bool:
        """True for a node that moves half values in the format in which they are stored.

        Every runtime moves bytes of any type. It widens a half value for such an op only where
        that saves it a conversion: not between two of them, and not for a result of the model.
        """
        if self._kind(node) not in STORING or node in self._open:
            return False
        scope = self._analysis.scopes.find(node.graph)
        is_inlined = scope is None or (scope.in_function and scope.parent is None)
        if not is_inlined and any(value.is_graph_output() for value in node.outputs):
            return True
        anchor = self._anchors.get(node)
        if anchor is None or anchor in without or not any(v in anchor.inputs for v in node.outputs):
            anchor = self._find_anchor(node, without)
            if anchor is None:
                if not without or self._find_anchor(node, ()) is None:
                    self._open.add(node)  # and who reads it stays, so it remains so
                return False
            self._anchors[node] = anchor
        return True

    def _find_anchor(self, node: ir.Node, without: Collection[ir.Node]) -> ir.Node | None:
        for value in node.outputs:
            for use in value._uses:
                if use.node not in without and self._kind(use.node) in STORING:
                    return use.node
        return None

    def stays(self, node: ir.Node) -> bool:
        """True for a node that must not be replaced by others."""
        if is_constant_node(node) or self._kind(node) is Kind.SHAPE:
            return False
        if any(self._is_loose_half(v) for v in (*node.inputs, *node.outputs)):
            return True
        if any(self._is_loose_half(v) for v in captured_values(node) if subgraphs_of(node)):
            return True
        return any(self.feeds_joint(value) for value in node.outputs)

    def feeds_joint(self, value: ir.Value) -> bool:
        """True for a half value that a joint reads: who makes it may decide how the joint runs."""
        return self.may_be_half(value) and any(self.is_open(use.node) for use in value._uses)

    def is_open(self, node: ir.Node) -> bool:
        """True for a joint that another reader, a Shape too, may make run in half precision."""
        return self.is_joint(node) and not self._is_anchored(node)

    def may_go(
        self,
        nodes: Collection[ir.Node],
        needed: Collection[ir.Value] = (),
        readers: Collection[ir.Node] = (),
    ) -> bool:
        """True if nodes are free to be replaced, with those before them that are then unused.

        Args:
            nodes: What is not read any more.
            needed: Values that are read whatever goes.
            readers: Nodes that are going to read one of those.
        """
        if any(self.stays(node) for node in nodes):
            return False
        return self.may_be_unread(nodes, needed, readers)

    def may_be_unread(
        self,
        nodes: Iterable[ir.Node],
        needed: Collection[ir.Value] = (),
        readers: Collection[ir.Node] = (),
    ) -> bool:
        """True if joints run as they did when nodes are gone that nobody reads any more.

        Args:
            nodes: These, and those before them that only they read.
            needed: As for :meth:`may_go`.
            readers: Likewise.
        """
        going = set(nodes)
        pending = list(going)
        bounds: dict[ir.Value, None] = {}
        while pending:
            node = pending.pop()
            read = [v for v in node.inputs if v is not None]
            if subgraphs_of(node):
                read += captured_values(node)
            for value in read:
                bounds[value] = None
                producer = value.producer()
                if (
                    producer is not None
                    and producer not in going
                    and all(
                        v not in needed
                        and not v.is_graph_output()
                        and all(use.node in going for use in v._uses)
                        for v in producer.outputs
                    )
                ):
                    going.add(producer)
                    pending.append(producer)
        anchors = any(self._kind(node) in STORING for node in readers)
        return all(
            producer is None
            or producer in going
            or not self.is_joint(producer)
            or self._is_anchored(producer, going)
            or (anchors and value in needed and self._kind(producer) in STORING)
            for value in bounds
            for producer in (value.producer(),)
        )
