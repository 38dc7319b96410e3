"""The sweep of constant propagation, which visits each node once in topological order.

The sweep finds the operations that could be folded, the bytes of their results, and the reasons why
other nodes are kept. The sweep does not remove nodes or store values. The only change to the model
is that an ``If`` with a constant condition is replaced by one of its branches. Nodes of this branch
may then have constant inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import onnx_ir as ir

from onnxfold.analysis.content import content_of_node
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.frontier import FORBIDDEN
from onnxfold.analysis.scopes import Scope
from onnxfold.api.options import Options
from onnxfold.fold.evaluator import Evaluator
from onnxfold.fold.inference import MAX_SIZE_ELEMENTS, may_be_constant
from onnxfold.fold.operation import Operation
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.ir import storage
from onnxfold.ir.editing import Names, constant_node, remove_nodes, take_over
from onnxfold.ir.graphs import (
    captured_values,
    has_references,
    is_constant_node,
    root_graphs,
    subgraphs_of,
)
from onnxfold.ir.onnx_ir_private import is_a, nodes_of, uses
from onnxfold.ir.storage import stored_tensor
from onnxfold.ops import Kind, Unfoldable
from onnxfold.ops.quantization import is_dequantization
from onnxfold.passes.stored import bytes_if_stored, node_bytes, stored_bytes
from onnxfold.support.errors import option

# Buffers of up to this many bytes are equivalent if their elements are equal.
_MAX_KEY_BYTES = 64


def quantized_weight_reason() -> str:
    """Return the reason why a node that dequantizes a weight is kept."""
    return f"the weight stays quantized; {option('fold_quantized')} folds it"


class Sweep:
    """One sweep over a model.

    ``uncomputable`` has the nodes whose evaluation failed before, with the reasons.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: ModelFacts,
        pool: Pool,
        evaluator: Evaluator,
        options: Options,
        uncomputable: Mapping[ir.Node, str],
    ) -> None:
        self._model = model
        self.facts = facts
        self.scopes = facts.scopes
        self._pool = pool
        self._evaluator = evaluator
        self._options = options
        self._uncomputable = uncomputable
        self._stored: set[ir.Value] = set()
        """Initializers, and results of visited Constant nodes."""
        self._remaining_uses: dict[ir.Value, int] = {}
        self._computed: dict[Hashable, ir.Node] = {}
        self.operations: dict[ir.Node, Operation] = {}
        """The nodes that could be folded, in topological order."""
        self.undecided: dict[ir.Node, Operation] = {}
        """The operations whose results take more bytes than folding saves.

        The cut decides whether their nodes are folded."""
        self.bytes_of_node: dict[ir.Node, int] = {}
        """The bytes of each node of ``operations`` in the file."""
        self.cost: dict[ir.Value, float] = {}
        """The bytes of each result of ``operations`` if the result is stored, or `FORBIDDEN`."""
        self.bytes_of_unbound: dict[ir.Value, int] = {}
        """The bytes of values whose buffers were released, for explanations."""
        self.dequantized: set[ir.Value] = set()
        """Dequantized weights, including transposed or reshaped ones. They must not be stored."""
        self.body_operands: dict[ir.Node, list[ir.Value]] = {}
        """The constants that the subgraphs of a node read if the node is kept, by node."""
        self.unfoldable: dict[ir.Node, str] = {}
        """The nodes with constant inputs that cannot be folded, with the reasons."""
        self.inlined = 0
        """The number of ``If`` nodes that were replaced by a branch."""

    def run(self) -> None:
        """Visit the main graph and all functions.

        Raises:
            ComputationFailed: A deferred value whose elements the sweep requires cannot be
                computed.
        """
        for graph in self.scopes.graphs():
            initializers = graph.initializers.data.values()
            self._stored.update([v for v in initializers if stored_tensor(v) is not None])
        for graph in root_graphs(self._model):
            self._computed.clear()
            opsets = self.scopes.of(graph).opsets
            for node in nodes_of(graph):
                self._visit(node, opsets)

    def has_buffer(self, value: ir.Value) -> bool:
        """Return whether a value is stored, or is a result of an operation that could be folded.

        A compile-time constant may have no buffer, because options or failed evaluations prevent
        its folding.
        """
        return value in self.cost or value in self._stored

    def _visit(self, node: ir.Node, opsets: Mapping[str, int]) -> None:
        subgraphs = subgraphs_of(node) if node in self.scopes.parents else ()
        branch = self._inline_if(node) if subgraphs else None
        if branch is not None:
            for inner in branch:
                self._visit(inner, opsets)
            return
        for graph in subgraphs:
            for inner in nodes_of(graph):
                self._visit(inner, opsets)
        for value in node.inputs:
            if value is not None and not self.has_buffer(value):
                return
        if is_constant_node(node):
            self._stored.update([v for v in node.outputs if stored_tensor(v) is not None])
            return
        captures = captured_values(node) if subgraphs else []
        if captures and not all(map(self.has_buffer, captures)):
            return
        reason = self._reason_to_keep(node, opsets)
        if reason is None:
            try:
                self._fold(node, opsets, captures)
                return
            except Unfoldable as error:
                reason = str(error)
        self.unfoldable[node] = reason

    def _reason_to_keep(self, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
        if node in self._uncomputable:
            return self._uncomputable[node]
        if self._options.keep and any(map(self._options.keeps, node.outputs)):
            return "kept by option"
        if has_references(node):
            return "an attribute is given by the function's caller"
        if is_dequantization(node) and self._keeps_weight_quantized(node):
            return quantized_weight_reason()
        return self.facts.determinism.reason_not_to_fold(node, opsets)

    def _keeps_weight_quantized(self, node: ir.Node) -> bool:
        """Return whether the weight that a node dequantizes must stay quantized.

        The node may be folded if an option allows this, or if a body or a node with constant
        results reads the result.
        """
        if self._options.fold_quantized or self._options.fold_all or self._options.fold:
            return False
        users = [use.node for use in uses(node.outputs[0])]
        return all(
            user.graph is node.graph
            and user not in self.scopes.parents
            and not self.facts.constness.is_constant(user.outputs[0])
            for user in users
        )

    def _fold(self, node: ir.Node, opsets: Mapping[str, int], captures: list[ir.Value]) -> None:
        operands = [None if v is None else self._pool.buffer_of(v) for v in node.inputs]
        if node in self.scopes.parents:
            self.body_operands[node] = self._find_body_operands(node)
        captured = dict(zip(captures, map(self._pool.buffer_of, captures), strict=True))
        operation = Operation(node, operands, opsets, captured)
        equivalent = self._equivalent_node(operation) if self.scopes.parents else None
        if equivalent is None:
            results = self._evaluator.apply(operation)
        else:
            bound = self._pool.is_bound
            results = [self._pool.buffer_of(v) if bound(v) else None for v in equivalent.outputs]
        added: float = 0
        for output, buffer in zip(node.outputs, results, strict=False):
            if buffer is None:
                continue
            cost = self._cost_of(operation, output, buffer)
            self.cost[output] = cost
            if uses(output) or output.is_graph_output():
                self._pool.bind(output, buffer)
                added += cost
            elif not buffer.references:
                self._pool.discard(buffer)
        self.operations[node] = operation
        self.undecided[node] = operation
        saved = node_bytes(node)
        self.bytes_of_node[node] = saved
        if added <= saved or added <= saved + self._freed_bytes(node):
            self._mark_folded(node)

    def _freed_bytes(self, node: ir.Node) -> float:
        """Return the bytes of constant operands that only this node requires in the file."""
        freed: float = 0
        for value in node.inputs:
            if value is None or len(uses(value)) > 1 or value.is_graph_output():
                continue
            if value in self.cost:
                freed += 0 if value.producer() in self.undecided else self.cost[value]
            elif is_a(stored_tensor(value), storage.ViewTensor):
                # a tensor of another class may share its bytes with another initializer
                freed += stored_bytes(value)
        return freed

    def _equivalent_node(self, operation: Operation) -> ir.Node | None:
        """Return a node with equal results that are bound, in any graph of the same root graph.

        If there is no such node, the node of the operation is recorded, and the result is None.
        """
        node = operation.node
        key = content_of_node(node, map(_content, operation.operands))
        equivalent = None if key is None else self._computed.get(key)
        pairs = zip(node.outputs, equivalent.outputs, strict=True) if equivalent else ()
        if not all(
            self._pool.is_bound(o) or not (uses(v) or v.is_graph_output()) for v, o in pairs
        ):
            equivalent = None
        if equivalent is None:
            self._computed[key] = node
        return equivalent

    def _find_body_operands(self, node: ir.Node) -> list[ir.Value]:
        operands: dict[ir.Value, None] = {}
        pending = [*subgraphs_of(node)]
        while pending:
            graph = pending.pop()
            operands.update(dict.fromkeys(v for v in graph.outputs if self.has_buffer(v)))
            for child in graph:
                if child in self.operations:
                    continue  # the cut decides whether the operands of the child are required
                operands.update(dict.fromkeys(v for v in child.inputs if v and self.has_buffer(v)))
                pending.extend(subgraphs_of(child))
        return list(operands)

    def _cost_of(self, operation: Operation, output: ir.Value, buffer: Buffer) -> float:
        elements = buffer.array() if buffer.is_known and buffer.size <= MAX_SIZE_ELEMENTS else None
        if not may_be_constant(output, buffer.dtype, elements):
            return FORBIDDEN
        if self._options.fold_all:
            return 0
        node = operation.node
        is_dequantized = is_dequantization(operation.node)
        if not self.dequantized.isdisjoint(node.inputs) and operation.kind is Kind.VIEW:
            # a view with as many elements as the weight only reorders them
            weight = operation.operands[0]
            is_dequantized |= weight is not None and buffer.size == weight.size
        if is_dequantized and not self._options.fold_quantized:
            self.dequantized.add(output)
            return FORBIDDEN  # runtimes fuse this node with the node that reads its result
        return bytes_if_stored(output, buffer, self.scopes.find(node.graph))

    def _mark_folded(self, node: ir.Node) -> None:
        """Mark a node as certain to be folded, and release operands without other users.

        The producer of a released operand is also certain to be folded if all its results are
        released.
        """
        pending = [node]
        while pending:
            node = pending.pop()
            graph = node.graph
            has_bodies = self.scopes.parents
            del self.undecided[node]
            for value in filter(None, node.inputs):
                # a value that a body captures remains bound, because the body's node may require it
                if has_bodies and value.graph is not graph:
                    continue
                if value not in self._remaining_uses:
                    self._remaining_uses[value] = len(uses(value)) + value.is_graph_output()
                self._remaining_uses[value] -= 1
                if self._remaining_uses[value]:
                    continue
                if self._options.explain:
                    self.bytes_of_unbound[value] = self._pool.buffer_of(value).nbytes
                self._pool.unbind(value)
                producer = value.producer()
                if producer in self.undecided and not any(
                    self._pool.is_bound(o) for o in producer.outputs
                ):
                    pending.append(producer)

    def _inline_if(self, node: ir.Node) -> list[ir.Node] | None:
        """Replace an If with a constant condition by the nodes of the branch that it selects.

        Returns the nodes, or None if the If is not replaced.

        Raises:
            ComputationFailed: The condition cannot be computed.
        """
        if node.op_type != "If" or node.domain != "" or node in self._uncomputable:
            return None
        condition = node.inputs[0]
        graph = node.graph
        if condition is None or not self.has_buffer(condition):
            return None
        assert isinstance(graph, ir.Graph)
        is_true = self._pool.buffer_of(condition).array().any()
        branch = node.attributes["then_branch" if is_true else "else_branch"].as_graph()
        if self._options.keep and any(map(self._options.keeps, (*node.outputs, *branch.outputs))):
            return None
        self.inlined += 1
        nodes = inline_branch(node, branch, self.facts.names, self.scopes.of(graph))
        self.scopes.forget_paths()
        return nodes


def _content(buffer: Buffer | None) -> Hashable:
    """Return a key that is equal for small buffers with the same dtype, shape and bytes.

    For large buffers and strings, the key is the buffer itself.
    """
    if buffer is None or not buffer.is_known or buffer.nbytes > _MAX_KEY_BYTES:
        return buffer
    kind = buffer.dtype, buffer.shape
    return buffer if buffer.dtype == ir.DataType.STRING else (*kind, buffer.array().tobytes())


def inline_branch(node: ir.Node, branch: ir.Graph, names: Names, scope: Scope) -> list[ir.Node]:
    """Replace the If ``node`` by a branch's nodes and initializers, and return the nodes.

    ``scope`` is the scope of the graph that contains the If. The results have the names of the If's
    outputs. Other values of the branch keep their names, unless the model uses these names
    elsewhere. For example, both branches may use the same names. Nodes keep their names unless
    another node of the graph has the same name. In a function, initializers become Constant nodes.
    """
    node_names = names.nodes_in(scope.graph)
    node_names.discard(node.name or "")
    constants = []
    if scope.in_function and scope.parent is None:
        for value, tensor in list(storage.initializers_of(branch)):
            assert value.name is not None
            del branch.initializers[value.name]
            constants.append(constant_node(tensor, node.name))
            take_over(value, constants[-1].outputs[0])
    outputs = list(branch.outputs)
    branch.outputs.clear()  # an output of a graph cannot belong to another graph
    for value in list(branch.initializers.values()):
        assert value.name is not None
        del branch.initializers[value.name]
        names.make_unique(value)
        scope.graph.initializers.add(value)
    branch.remove(nodes := list(branch))
    nodes = [*constants, *nodes]
    results_of_branch = dict.fromkeys(value for inner in nodes for value in inner.outputs)
    for value in results_of_branch:
        names.make_unique(value)
    node.append(nodes)
    last = nodes[-1] if nodes else node
    replaced_outputs: set[ir.Value] = set()
    for result, output in zip(node.outputs, outputs, strict=False):
        if not result.name:  # an omitted output
            continue
        # A value that is not computed in the branch, or is returned twice, keeps its own name. If
        # the result is a graph output, consumers of ``output`` in the branch may require a more
        # precise type than the If declares.
        is_shared = output not in results_of_branch or output in replaced_outputs
        if is_shared or (result.is_graph_output() and uses(output)):
            identity = ir.node("Identity", [output], num_outputs=1, name=node.name)
            last.append(identity)
            nodes.append(identity)
            last = identity
            output = identity.outputs[0]
        replaced_outputs.add(output)
        take_over(result, output, declared=result.is_graph_output())
    remove_nodes([node])
    for inner in nodes:
        names.make_node_unique(inner, node_names)
    return nodes
