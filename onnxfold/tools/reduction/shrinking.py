"""Remove functions, nodes, inputs, outputs and weights that a failure does not require."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir
from onnx import numpy_helper
from onnx_ir.passes import common

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.ir.editing import (
    Names,
    add_initializer,
    make_input,
    remove_nodes,
    remove_unused,
    take_over,
)
from onnxfold.ir.graphs import all_graphs, nodes_within
from onnxfold.ir.onnx_ir_private import is_unused, is_used
from onnxfold.passes.cleanups import InlineFunctions
from onnxfold.passes.sweep import inline_branch
from onnxfold.tools.comparison.feeds import Feeds

Candidate = tuple[ir.Model, Feeds]
Fails = Callable[[ir.Model, Feeds], bool]
"""Returns whether a candidate shows the failure."""
Values = Callable[[ir.Model, Feeds], Feeds]
"""Runs a model and returns the outputs that can be computed, by name."""

_LARGE = 1024  # bytes above which a weight becomes an input


def shrink(model: ir.Model, feeds: Feeds, fails: Fails, values: Values) -> Candidate:
    """Return the smallest failing model that was found, with its feeds.

    First, functions are inlined and each If is replaced by a branch, so that nodes inside can be
    removed. Then slices of the main graph are removed, and each round halves their length. A
    removed result that remaining nodes read becomes a weight if it is constant, otherwise an input,
    with the value that a run computed. Finally, the changes of `_smaller` are made until none of
    them keeps the failure.

    Args:
        model: The failing model.
        feeds: The feeds of the model, which may be empty.
        fails: Returns whether a candidate shows the failure.
        values: Runs a model to compute the results of removed nodes.
    """

    def first_failing(candidates: Iterable[Candidate]) -> Candidate | None:
        swept = (_without_unused(*candidate) for candidate in candidates)
        return next((candidate for candidate in swept if fails(*candidate)), None)

    while smaller := first_failing(_inlined(model, feeds)):
        model, feeds = smaller
    size = len(model.graph)
    while size > 1:
        size = -(-size // 2)
        for start in reversed(range(0, len(model.graph), size)):
            candidates = _without_nodes(model, feeds, slice(start, start + size), values)
            model, feeds = first_failing(candidates) or (model, feeds)
        size = min(size, len(model.graph))
    while smaller := first_failing(_smaller(model, feeds, values)):
        model, feeds = smaller
    return model, feeds


def _inlined(model: ir.Model, feeds: Feeds) -> Iterator[Candidate]:
    """Yield the model with its functions inlined, then each model with a branch instead of an If.

    The first is omitted if the model has no functions. Only an If of the main graph is replaced.
    """
    changed = storage.opened(model)
    if InlineFunctions()(changed).modified:
        yield changed, feeds
    for k, node in enumerate(model.graph):
        for name in node.attributes if node.op_type == "If" else ():
            changed = storage.opened(model)
            graph = changed.graph
            names = Names(all_graphs(changed))
            branch = graph[k].attributes[name].as_graph()
            inline_branch(graph[k], branch, names, ModelFacts(changed).scopes.of(graph))
            yield changed, feeds


def _smaller(model: ir.Model, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """Yield smaller models and their feeds.

    Each model has one of several outputs, one node less, or an Identity instead of a node. Others
    have an input instead of a large weight of the main graph.
    """
    for output in model.graph.outputs if len(model.graph.outputs) > 1 else ():
        yield _with_outputs(model, [output]), feeds
    for k in reversed(range(len(model.graph))):
        yield from _without_nodes(model, feeds, slice(k, k + 1), values)
    for graph_index, graph in enumerate(all_graphs(model)):
        for k, node in reversed([*enumerate(graph)]):
            if is_unused(node):
                changed = storage.opened(model)
                remove_nodes([all_graphs(changed)[graph_index][k]])
                yield changed, feeds
            elif node.op_type != "Identity" and not any(map(is_used, node.outputs[1:])):
                for index in {v: i for i, v in enumerate(node.inputs) if v is not None}.values():
                    changed = storage.opened(model)
                    old = all_graphs(changed)[graph_index][k]
                    copy = ir.node("Identity", [old.inputs[index]], num_outputs=1)
                    old.prepend(copy)
                    take_over(old.outputs[0], copy.outputs[0])
                    remove_nodes([old])
                    yield changed, feeds
    for weight, tensor in storage.initializers_of(model.graph):
        if tensor.nbytes > _LARGE:
            name = weight.name or ""
            changed = storage.opened(model)
            array = tensor.numpy()
            if array.dtype.hasobject:
                texts = np.array([text.decode() for text in array.flat], object)
                array = texts.reshape(array.shape)
            make_input(changed.graph.initializers[name])
            yield changed, {**feeds, name: array}


def _without_nodes(
    model: ir.Model, feeds: Feeds, nodes: slice, values: Values
) -> Iterator[Candidate]:
    """Yield the model without some nodes of the main graph, and its feeds.

    ``values`` computes the results of removed nodes that other nodes read. The outputs of the
    smaller model are the remaining outputs, and one result of each node that has become unused.
    Nothing is yielded if a result cannot be computed or is not a tensor, or if no output remains.
    """
    changed = storage.opened(model)
    new_feeds = {**feeds}
    computed = {}
    graph = changed.graph
    constness = ModelFacts(changed, runtime_constants=()).constness
    removed = [*graph][nodes]
    removed_or_inside = set(nodes_within(removed))
    graph.outputs[:] = [v for v in graph.outputs if v.producer() not in {None, *removed_or_inside}]
    results = [value for node in removed for value in node.outputs]
    missing = [v for v in results if any(use.node not in removed_or_inside for use in v.uses())]
    if missing:  # run only the nodes that these values depend on
        computed = values(*_without_unused(_with_outputs(model, missing), feeds))
    for value in missing:
        name = value.name or ""
        array = computed.get(name)
        if not isinstance(array, np.ndarray):
            return
        is_variable = constness.of(value) is Constness.VARIABLE
        tensor = ir.serde.deserialize_tensor(numpy_helper.from_array(array, name))
        initializer = add_initializer(graph, tensor)
        take_over(value, initializer, declared=True)
        if is_variable:
            new_feeds[name] = array
            make_input(initializer)
    remove_nodes(removed)
    for node in graph:
        if is_unused(node):
            graph.outputs.extend([value for value in node.outputs if value.name][:1])
    if graph.outputs:
        yield changed, new_feeds


def _with_outputs(model: ir.Model, outputs: Iterable[ir.Value]) -> ir.Model:
    """Return a copy of a model whose outputs are the given values of its main graph."""
    changed = storage.opened(model)
    values = ir.convenience.create_value_mapping(changed.graph, include_subgraphs=False)
    changed.graph.outputs[:] = [values[output.name or ""] for output in outputs]
    return changed


def _without_unused(model: ir.Model, feeds: Feeds) -> Candidate:
    """Remove dead code and unused inputs, weights and functions from a model, in place.

    Returns:
        The model, and the feeds of the remaining inputs.
    """
    graph = model.graph
    remove_unused(graph)
    graph.inputs[:] = [value for value in graph.inputs if is_used(value)]
    for name, value in [*graph.initializers.items()]:
        if not is_used(value):
            del graph.initializers[name]
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    inputs = {value.name for value in graph.inputs}
    return model, {name: array for name, array in feeds.items() if name in inputs}
