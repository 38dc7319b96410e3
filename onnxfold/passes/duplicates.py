"""Passes that remove duplicate nodes and duplicate tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.content import content_of_node, content_of_tensor
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.api.options import Options
from onnxfold.fold.pool import BufferTensor
from onnxfold.ir import storage
from onnxfold.ir.editing import can_take_name, inherit, remove_nodes, replace, take_over
from onnxfold.ir.graphs import root_graphs, subgraphs_of
from onnxfold.ir.onnx_ir_private import is_a, nodes_of, set_input, uses
from onnxfold.ir.storage import stored_tensor
from onnxfold.ops import definition_of
from onnxfold.passes.context import RunContext
from onnxfold.passes.stored import store

# Number of elements of a large tensor that are compared before all elements are compared.
_SAMPLES = 4
# Maximum bytes of a tensor in the pool whose content is cached. The cache keeps the tensor in
# memory.
_MAX_CACHED_BYTES = 1024
# Bytes compared in one step, after which mapped pages are released.
_COMPARED_BYTES = 1 << 20
_Seen = dict[Hashable, ir.Node]
"""The visited nodes. The key of the first node with an op and inputs is the op and the inputs.

The keys of all other nodes with this op and these inputs are those of `content_of_node`."""


class CommonSubexpressions(ir.passes.InPlacePass):
    """Merge nodes with the same op, inputs, attributes and omitted outputs.

    A node of a subgraph may be replaced by an earlier one of an outer graph. Nodes are not merged

    - if their results may differ: random ops, ops that ONNX does not define, and functions with
      such ops,
    - if they have subgraphs or large tensors as attributes,
    - if their attributes differ in one bit, or
    - if the option ``keep`` matches the later node.

    The later node is kept if it produces a graph output whose name the earlier result cannot get.
    For example, the earlier result may also be a graph output. Other nodes then read the earlier
    result.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._keeps = (options or Options()).keeps

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        facts = facts_of(model)
        self._facts = facts
        self._scopes = facts.scopes
        self._determinism = facts.determinism
        self._merged: list[ir.Node] = []
        self._modified = False
        for graph in root_graphs(model):
            self._visit(graph, ())
        remove_nodes(self._merged)
        return ir.passes.PassResult(model, modified=self._modified or bool(self._merged))

    def _visit(self, graph: ir.Graph, outer: Sequence[_Seen]) -> None:
        """Visit a graph and its subgraphs. All of them can read the nodes in ``outer``."""
        own: _Seen = {}
        levels = (own, *outer)
        for node in nodes_of(graph):
            if node in self._scopes.parents:
                for subgraph in subgraphs_of(node):
                    self._visit(subgraph, levels)
                continue
            # A node without inputs is usually a constant. A search in outer graphs takes more time
            # than it saves.
            searched_levels = (own,) if outer and not node.inputs else levels
            equivalent = _find_equivalent(node, searched_levels)
            if equivalent is None or any(map(self._keeps, node.outputs)):
                continue
            if self._determinism.reason_not_to_fold(node, self._scopes.of(graph).opsets) is None:
                self._merge(node, equivalent)

    def _merge(self, node: ir.Node, equivalent: ir.Node) -> None:
        """Replace the results of a node by those of an equivalent node.

        Nothing is replaced if the declared shape of a graph output may be wrong. The node is kept
        if one of its results must remain a graph output.
        """
        pairs = list(zip(node.outputs, equivalent.outputs, strict=True))
        outputs = [pair for pair in pairs if any(v.is_graph_output() for v in pair)]
        if not all(self._facts.types.may_replace(*pair) for pair in outputs):
            return
        must_keep = any(
            old.is_graph_output() and not can_take_name(old, new, self._keeps) for old, new in pairs
        )
        for old, new in pairs:
            if must_keep:
                for user, index in list(uses(old)):
                    set_input(user, index, new)
                    self._modified = True
            elif old.is_graph_output():
                take_over(old, new, declared=True)
            else:
                inherit(old, new)
                replace(old, new)
        if not must_keep:
            self._merged.append(node)


def _find_equivalent(node: ir.Node, levels: Sequence[_Seen]) -> ir.Node | None:
    """Return an earlier node that computes the same values.

    If there is no such node, the node is recorded in the first of ``levels``, and the result is
    None. A node without a key (`content_of_node`) may not be recorded.
    """
    # attributes are compared only for the few nodes with the same op and inputs
    partial_key = (node.op_type, *_operands(node))
    key = None
    for seen in levels:
        first = seen.get(partial_key)
        if first is not None:
            key = key or content_of_node(node, _operands(node))
            seen.setdefault(content_of_node(first, _operands(first)), first)
            if key is None or key in seen:
                return None if key is None else seen[key]
    own = levels[0]
    own[key if partial_key in own else partial_key] = node
    return None


def _operands(node: ir.Node) -> list[int]:
    """Return the identities of the inputs of a node, without omitted ones at the end."""
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return [*map(id, inputs)]


class DeduplicateInitializers(ir.passes.InPlacePass):
    """Merge initializers with the same dtype, shape and bytes.

    Bytes are compared instead of values, because 0.0 and -0.0 differ. An initializer is replaced by
    an equal one of its graph or of an outer graph. Equal initializers of two branches move to the
    innermost graph that contains both. Large tensors are compared only if dtype, shape and a few
    sampled elements are equal. A tensor without such a candidate is not read completely.

    Initializers that are graph inputs can be overridden and are not merged. Vectors that
    onnxruntime overwrites are not merged either. Initializers that are graph outputs do not move to
    another graph. The passes of a run read each small tensor only once.
    """

    def __init__(self, *, run: RunContext | None = None) -> None:
        self._run = run
        self._seen: dict[ir.Graph, set[str]] = {}
        self._contents: dict[ir.TensorProtocol, Hashable | None] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        # without a run, the cache would keep tensors of an earlier model in memory
        if self._run is None:
            self._contents.clear()
            self._seen.clear()
        facts = facts_of(model)
        graphs = facts.scopes.graphs()
        new = set[ir.Value]()
        for graph in graphs:
            initializers = graph.initializers.data
            new.update(
                map(initializers.__getitem__, initializers.keys() - self._seen.get(graph, set()))
            )
            self._seen[graph] = {*initializers}
        if not new:
            return ir.passes.PassResult(model, modified=False)
        candidates: dict[tuple[Hashable, Hashable], list[ir.Value]] = {}
        for graph in graphs:  # outer graphs come first
            values: Iterable[ir.Value] = graph.initializers.data.values()
            if not set(graph.outputs).isdisjoint(values):
                # a graph output cannot be replaced, so it comes first and replaces the others
                values = sorted(values, key=ir.Value.is_graph_output, reverse=True)
            for value in values:
                tensor = stored_tensor(value)
                if tensor is None:
                    continue
                if tensor in self._contents:
                    content = self._contents[tensor]
                else:
                    content = content_of_tensor(tensor)
                    if not is_a(tensor, BufferTensor) or tensor.nbytes <= _MAX_CACHED_BYTES:
                        self._contents[tensor] = content
                kind = None if content else (tensor.dtype, storage.sizes_of(tensor))
                candidates.setdefault((content, kind), []).append(value)
        removed = 0
        for (content, _), group in candidates.items():
            if len(group) > 1 and not new.isdisjoint(group):
                removed += self._merge(group, content, facts)
        return ir.passes.PassResult(model, modified=removed > 0)

    def _merge(self, values: Sequence[ir.Value], content: Hashable, facts: ModelFacts) -> int:
        """Merge initializers with the same key, and return the number of removed initializers.

        If ``content`` is not None, all tensors have equal contents. Otherwise, they are compared.
        """
        kept: dict[tuple[ir.Graph, Hashable], list[ir.Value]] = {}
        removed = 0
        for value in values:
            graph = value.graph
            tensor = stored_tensor(value)
            assert graph is not None and tensor is not None and value.name is not None
            if len(storage.sizes_of(tensor)) == 1 and _is_overwritten(value):
                continue
            path = facts.scopes.path(graph)
            key = path[-1], content or _sample(tensor)
            equivalent = None
            if not value.is_graph_output():
                seen = (v for v in kept.get(key, ()) if v.graph in path or not v.is_graph_output())
                equivalent = next(
                    (v for v in seen if content or _equal(stored_tensor(v), tensor)), None
                )
            if equivalent is None:
                kept.setdefault(key, []).append(value)
                continue
            removed += 1
            if equivalent.graph in path:
                replace(value, equivalent)
                del graph.initializers[value.name]
            else:
                kept[key].remove(equivalent)
                kept[key].append(store((equivalent, value), tensor, facts))
        return removed


def _sample(tensor: ir.TensorProtocol) -> Hashable:
    """Return the bytes of a few evenly spaced elements of a tensor."""
    array = np.asarray(tensor.numpy())
    indices = [k * (array.size - 1) // (_SAMPLES - 1) for k in range(_SAMPLES)]
    sample = array.flat[indices].tobytes()
    _release(tensor)
    return sample


def _release(tensor: ir.TensorProtocol) -> None:
    """Release the mapped pages of a large tensor after a part of it was read.

    Some systems map 2 MiB at once, even if only a small part is read.
    """
    if storage.data_bytes(tensor.dtype, storage.sizes_of(tensor)) < _COMPARED_BYTES:
        return
    if is_a(tensor, BufferTensor):
        tensor.release()
    elif (span := storage.span_of(tensor)) is not None:
        span.file.release(span.offset, span.length)


def _equal(a: ir.TensorProtocol | None, b: ir.TensorProtocol) -> bool:
    """Return whether two tensors with the same dtype and shape have the same bytes."""
    assert a is not None
    if a is b:
        return True
    if storage.span_of(a) is not None and storage.span_of(a) == storage.span_of(b):
        return True
    if is_a(a, BufferTensor) and is_a(b, BufferTensor) and a.buffer.key() == b.buffer.key():
        return True
    array_a = a.numpy()
    array_b = b.numpy()
    bits = np.dtype(f"u{array_a.itemsize}" if array_a.itemsize <= 8 else f"V{array_a.itemsize}")
    pairs = np.nditer(
        [array_a.view(bits), array_b.view(bits)],
        ["external_loop", "buffered", "zerosize_ok"],
        buffersize=_COMPARED_BYTES,
    )
    for x, y in pairs:
        equal = np.array_equal(x, y)
        _release(a)
        _release(b)
        if not equal:
            return False
    return True


def _is_overwritten(value: ir.Value) -> bool:
    """Return whether onnxruntime writes a result of a consumer into the memory of a value."""
    for use in uses(value):
        definition = definition_of(use.node)
        if use.idx in definition.overwritten and definition.overwrites(use.node):
            return True
    return False
