"""An analysis of values that are constant up to a broadcast.

The sizes of such a value depend on inputs of the model, but its elements do not. An example is a
mask of ones for a batch of any size. The value is a broadcast of its base, which is a compile-time
or runtime constant. A value that is computed from such values and constants can also be constant
up to a broadcast. `Op.on_bases` decides this for each op; see `onnxfold.ops.bases`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.determinism import Determinism
from onnxfold.analysis.scopes import Scopes
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.ir.graphs import has_references
from onnxfold.ir.onnx_ir_private import nodes_of
from onnxfold.ir.symbolic.fact import Shape
from onnxfold.ops import Trait, Undecided, find, ops_with
from onnxfold.ops.application import INVALID_NODE_ERRORS, Application, python_value
from onnxfold.ops.bases import BaseOfResult, Broadcast, OperandBases, OpOnBases, ReshapedBase


class BroadcastAnalysis:
    """The values of the visited graphs that are constant up to a broadcast.

    Compile-time and runtime constants are their own bases.
    """

    def __init__(
        self,
        scopes: Scopes,
        determinism: Determinism,
        constness: ConstnessAnalysis,
        types: SymbolicAnalysis,
    ) -> None:
        self._scopes = scopes
        self._determinism = determinism
        self._constness = constness
        self._types = types
        self.broadcasts: dict[ir.Value, Broadcast] = {}
        """The shapes and uniform axes of the values. Constants are not included."""
        self.nodes: dict[ir.Node, BaseOfResult] = {}
        """The producers of the values in `broadcasts`, in topological order.

        The entry of a node describes how the bases of its results are computed."""

    def visit(self, graph: ir.Graph, accepts: Callable[[ir.Node], bool]) -> None:
        """Find the values of a graph that are constant up to a broadcast.

        The values of its subgraphs are not included. Broadcasts that it captures from an outer
        graph are recognized only if the outer graph was visited before.

        Args:
            graph: The graph. Its nodes must be sorted.
            accepts: A function that returns whether the bases of a node's results may be computed
                instead of the results. Results of other nodes are not included.
        """
        opsets = self._scopes.of(graph).opsets
        broadcasts = self.broadcasts
        repeating_ops = ops_with(Trait.REPEATS)
        for node in nodes_of(graph):
            if node.op_type not in repeating_ops and (
                not broadcasts or broadcasts.keys().isdisjoint(node.inputs)
            ):
                continue
            if node.graph is not graph or node in self._scopes.parents:
                continue
            definition = find(node.op_type, node.domain, opsets.get(node.domain))
            if self._constness.of_node(node) is not Constness.VARIABLE or has_references(node):
                continue
            if self._determinism.reason_not_to_fold(node, opsets) is not None:
                continue
            if node.op_identifier() in self._scopes.model.functions:
                continue
            try:
                base = definition.on_bases(self._operands(node, opsets))
                results = [self._result(node, value, base) for value in node.outputs]
            except (Undecided, *INVALID_NODE_ERRORS):
                continue
            if accepts(node):
                self.nodes[node] = base
                broadcasts.update(zip(node.outputs, results, strict=True))

    def of(self, value: ir.Value) -> Broadcast | None:
        """Return the shape and the uniform axes of a constant or a broadcast of a constant.

        The result is None for all other values, and for constants of unknown shape.
        """
        broadcast = self.broadcasts.get(value)
        if broadcast is not None or self._constness.of(value) is Constness.VARIABLE:
            return broadcast
        shape = self._types.of(value).shape
        if shape is None:
            return None
        return Broadcast(shape, frozenset(k for k, size in enumerate(shape) if size == 1))

    def base_shape(self, value: ir.Value) -> Shape:
        """Return the shape of the base of a value for which `of` does not return None."""
        broadcast = self.of(value)
        assert broadcast is not None
        return broadcast.base_shape

    def _operands(self, node: ir.Node, opsets: Mapping[str, int]) -> OperandBases:
        facts = [None if v is None else self._types.of(v) for v in node.inputs]
        application = Application(
            node.op_type,
            facts,
            {name: python_value(a) for name, a in node.attributes.data.items()},
            opsets.get("", 1),
            len(node.outputs),
            self._types.algebra,
        )
        operands = [None if v is None else self.of(v) for v in node.inputs]
        result = self._types.of(node.outputs[0]).shape
        if result is None:
            raise Undecided
        return OperandBases(application, operands, result)

    def _result(self, node: ir.Node, value: ir.Value, base: BaseOfResult) -> Broadcast:
        """Return the shape and the uniform axes of a result of a node.

        Raises:
            Undecided: The result has strings or an unknown shape, or an operand is not a broadcast
                of a constant. Also raised if the base is reshaped to an unknown shape.
        """
        fact = self._types.of(value)
        shape = fact.shape
        # onnxruntime copies large slices of strings differently; see `Gather`
        if shape is None or fact.dtype == ir.DataType.STRING:
            raise Undecided
        if isinstance(base, OpOnBases):
            for k, operand in enumerate(node.inputs):
                if operand is not None and k not in base.replaced and self.of(operand) is None:
                    raise Undecided
        ones = {axis for axis, size in enumerate(shape) if size == 1}
        result = Broadcast(shape, base.uniform | ones)
        if isinstance(base, ReshapedBase) and not result.has_static_base:
            raise Undecided
        return result
