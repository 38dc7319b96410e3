"""Remove what a model does not need to show a failure: nodes, inputs, outputs and weights."""

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
"""Runs a model; returns its outputs by name, those it can compute."""

_LARGE = 1024  # bytes of a weight that is worth an input


def shrink(model: ir.Model, feeds: Feeds, fails: Fails, values: Values) -> Candidate:
    """Return the smallest model found that still fails, with its feeds, which may be empty.

    Functions are inlined and branches replace their If first, so that their nodes can be removed.
    Then parts of the main graph are removed, each half as long as those before it. What the rest
    reads of a part becomes an input, or a weight if it is constant, with the value that it has in
    the run. The remaining nodes, outputs, subgraphs and weights are tried one by one.
    """

    def first_of(candidates: Iterable[Candidate]) -> Candidate | None:
        found = (_without_unread(*candidate) for candidate in candidates)
        return next((candidate for candidate in found if fails(*candidate)), None)

    while found := first_of(_inlined(model, feeds)):
        model, feeds = found
    size = len(model.graph)
    while size > 1:
        size = -(-size // 2)
        for start in reversed(range(0, len(model.graph), size)):
            rest = _without(model, feeds, slice(start, start + size), values)
            model, feeds = first_of(rest) or (model, feeds)
        size = min(size, len(model.graph))
    while found := first_of(_smaller(model, feeds, values)):
        model, feeds = found
    return model, feeds


def _inlined(model: ir.Model, feeds: Feeds) -> Iterator[Candidate]:
    """Yield models with the nodes of functions instead of their calls, and with those of a branch
    instead of an If of the main graph.
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
    """Yield models with one output, a node less, a copy instead of a node, and inputs instead of
    large weights.
    """
    for output in model.graph.outputs if len(model.graph.outputs) > 1 else ():
        yield _with_outputs(model, [output]), feeds
    for k in reversed(range(len(model.graph))):
        yield from _without(model, feeds, slice(k, k + 1), values)
    for place, graph in enumerate(all_graphs(model)):
        for k, node in reversed([*enumerate(graph)]):
            if is_unused(node):
                changed = storage.opened(model)
                remove_nodes([all_graphs(changed)[place][k]])
                yield changed, feeds
            elif node.op_type != "Identity" and not any(map(is_used, node.outputs[1:])):
                for index in {v: i for i, v in enumerate(node.inputs) if v is not None}.values():
                    changed = storage.opened(model)
                    old = all_graphs(changed)[place][k]
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
                array = np.array([text.decode() for text in array.flat], object).reshape(
                    array.shape
                )
            make_input(changed.graph.initializers[name])
            yield changed, {**feeds, name: array}


def _without(model: ir.Model, feeds: Feeds, chosen: slice, values: Values) -> Iterator[Candidate]:
    """Yield the model without some nodes of the main graph, if the values that others read of them
    are known: ``values`` runs the nodes that are left out.

    Its outputs are those of the model that remain, and the results of nodes that no node reads.
    """
    changed = storage.opened(model)
    given = {**feeds}
    known = {}
    graph = changed.graph
    constness = ModelFacts(changed, runtime_constants=()).constness
    removed = [*graph][chosen]
    inside = set(nodes_within(removed))
    graph.outputs[:] = [v for v in graph.outputs if v.producer() not in {None, *inside}]
    made = [value for node in removed for value in node.outputs]
    lost = [v for v in made if any(use.node not in inside for use in v.uses())]
    if lost:  # only the nodes that they need run
        known = values(*_without_unread(_with_outputs(model, lost), feeds))
    for value in lost:
        name = value.name or ""
        array = known.get(value.name or "")
        if not isinstance(array, np.ndarray):
            return
        is_variable = constness.of(value) is Constness.VARIABLE
        new = add_initializer(
            graph, ir.serde.deserialize_tensor(numpy_helper.from_array(array, name))
        )
        take_over(value, new, declared=True)
        if is_variable:
            given[name] = array
            make_input(new)
    remove_nodes(removed)
    for node in graph:
        if is_unused(node):
            graph.outputs.extend([value for value in node.outputs if value.name][:1])
    if graph.outputs:
        yield changed, given


def _with_outputs(model: ir.Model, outputs: Iterable[ir.Value]) -> ir.Model:
    """Return a copy of a model with other values of the main graph as outputs."""
    changed = storage.opened(model)
    values = ir.convenience.create_value_mapping(changed.graph, include_subgraphs=False)
    changed.graph.outputs[:] = [values[output.name or ""] for output in outputs]
    return changed


def _without_unread(model: ir.Model, feeds: Feeds) -> Candidate:
    """Remove from a model what no output needs; return it with the feeds that it reads."""
    graph = model.graph
    remove_unused(graph)
    graph.inputs[:] = [value for value in graph.inputs if is_used(value)]
    for name, value in [*graph.initializers.items()]:
        if not is_used(value):
            del graph.initializers[name]
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    read = {value.name for value in graph.inputs}
    return model, {name: array for name, array in feeds.items() if name in read}
