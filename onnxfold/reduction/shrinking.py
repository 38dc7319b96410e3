"""Remove what a model does not need to show a failure: nodes, inputs, outputs and weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

Feeds = dict[str, Any]
"""The inputs of a run, by name."""
Candidate = tuple[onnx.ModelProto, Feeds]
Fails = Callable[[onnx.ModelProto, Feeds], bool]
"""Returns whether a candidate shows the failure."""
Values = Callable[[onnx.ModelProto, Feeds], dict[str, Any]]
"""Runs a model; returns its outputs by name, those it can compute."""

_LARGE = 1024  # bytes of a weight that is worth an input


def shrink(model: onnx.ModelProto, feeds: Feeds, fails: Fails, values: Values) -> Candidate:
    """Return the smallest model found that still fails, with its feeds, which may be empty.

    Functions are inlined and branches replace their If first, so that their nodes can be removed.
    Then parts of the main graph are removed, each half as long as those before it. What the rest
    reads of a part becomes an input, or a weight if it depends on no input, with the value that it
    has in the run. The remaining nodes, outputs, subgraphs and weights are tried one by one.
    """
    types = {value.name: value for value in model.graph.value_info}

    def first_of(candidates: Iterable[Candidate | None]) -> Candidate | None:
        found = (_without_unread(*candidate) for candidate in candidates if candidate is not None)
        return next((candidate for candidate in found if fails(*candidate)), None)

    if model.functions:
        inlined = inliner.inline_local_functions(model)
        model, feeds = first_of([(inlined, feeds)]) or (model, feeds)
    while found := first_of(_with_branches(model, feeds)):
        model, feeds = found
    size = len(model.graph.node)
    while size > 1:
        size = -(-size // 2)
        for start in reversed(range(0, len(model.graph.node), size)):
            kept = [*range(start), *range(start + size, len(model.graph.node))]
            rest = _part(model, feeds, kept, values, types)
            model, feeds = first_of([rest]) or (model, feeds)
        size = min(size, len(model.graph.node))
    while found := first_of(_smaller(model, feeds, values, types)):
        model, feeds = found
    return model, feeds


def _with_branches(model: onnx.ModelProto, feeds: Feeds) -> Iterator[Candidate]:
    """Yield models with the nodes of a branch instead of an If of the main graph."""
    for k, node in enumerate(model.graph.node):
        for branch in node.attribute if node.op_type == "If" else ():
            changed = copy.deepcopy(model)
            ends = zip(branch.g.output, node.output, strict=False)
            copies = [helper.make_node("Identity", [o.name], [name]) for o, name in ends if name]
            del changed.graph.node[k:]
            changed.graph.node.extend([*branch.g.node, *copies, *model.graph.node[k + 1 :]])
            changed.graph.initializer.extend(branch.g.initializer)
            yield changed, feeds


def _smaller(
    model: onnx.ModelProto, feeds: Feeds, values: Values, types: dict[str, onnx.ValueInfoProto]
) -> Iterator[Candidate | None]:
    """Yield models with one output, a node less, a copy instead of a node, and inputs instead of
    large weights.
    """
    for output in model.graph.output if len(model.graph.output) > 1 else ():
        yield _with_outputs(model, [output]), feeds
    count = len(model.graph.node)
    for k in reversed(range(count)):
        yield _part(model, feeds, [i for i in range(count) if i != k], values, types)
    for place, body in enumerate(bodies_of(model)):
        for k in reversed(range(len(body))):
            changed = copy.deepcopy(model)
            del bodies_of(changed)[place][k]
            yield changed, feeds
            for source in dict.fromkeys(body[k].input if body[k].op_type != "Identity" else ()):
                changed = copy.deepcopy(model)
                identity = helper.make_node("Identity", [source], body[k].output[:1])
                bodies_of(changed)[place][k].CopyFrom(identity)
                yield changed, feeds
    for k, weight in enumerate(model.graph.initializer):
        if weight.ByteSize() > _LARGE:
            changed, array = copy.deepcopy(model), numpy_helper.to_array(weight)
            del changed.graph.initializer[k]
            if weight.name not in {value.name for value in model.graph.input}:
                changed.graph.input.append(_info(weight.name, array))
            yield changed, {**feeds, weight.name: array}


def _part(
    model: onnx.ModelProto,
    feeds: Feeds,
    kept: Sequence[int],
    values: Values,
    types: dict[str, onnx.ValueInfoProto],
) -> Candidate | None:
    """Return a model of some nodes of the main graph; None if a value that it needs is not known.

    Its outputs are those of the model that remain, and the results of nodes that no node reads.
    ``values`` runs the nodes that are left out, ``types`` may have symbolic dimensions.
    """
    graph = model.graph
    nodes = [graph.node[k] for k in kept]
    read = {name for node in nodes for name in (*node.input, *free_names(node))}
    made = {name for node in nodes for name in node.output}
    lost = [o for node in graph.node for o in node.output if o in read - made - {""}]
    varying = {value.name for value in graph.input}  # what depends on an input
    for node in graph.node:
        if not varying.isdisjoint((*node.input, *free_names(node))):
            varying.update(node.output)
    changed, given = copy.deepcopy(model), dict(feeds)
    del changed.graph.node[:], changed.graph.output[:]
    changed.graph.node.extend(nodes)
    known = {}
    if lost:  # only the nodes that they need run
        infos = [onnx.ValueInfoProto(name=name) for name in lost]
        known = values(*_without_unread(_with_outputs(model, infos), feeds))
    for name in lost:
        array = known.get(name)
        if not isinstance(array, np.ndarray):
            return None
        if name in varying:
            changed.graph.input.append(types.get(name) or _info(name, array))
            given[name] = array
        else:
            changed.graph.initializer.append(numpy_helper.from_array(array, name))
    outputs = {value.name: value for value in graph.output if value.name in made}
    for node in nodes:
        if read.isdisjoint(node.output) and outputs.keys().isdisjoint(node.output):
            name = next(filter(None, node.output), "")
            outputs[name] = types.get(name, onnx.ValueInfoProto(name=name))
    changed.graph.output.extend(outputs.values())
    return (changed, given) if outputs else None


def _with_outputs(
    model: onnx.ModelProto, outputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    changed = copy.deepcopy(model)
    del changed.graph.output[:]
    changed.graph.output.extend(outputs)
    return changed


def with_types(model: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """Return a copy whose outputs without a type have that of their values in a run."""
    changed = copy.deepcopy(model)
    for output in changed.graph.output:
        array = values.get(output.name)
        if not output.HasField("type") and isinstance(array, np.ndarray):
            output.CopyFrom(_info(output.name, array))
    return changed


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """Return the type of an array."""
    is_text = array.dtype.hasobject
    elem = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, elem, array.shape)


def bodies_of(model: onnx.ModelProto) -> list[Any]:
    """Return the nodes of the graph, of functions, and of all graphs in them."""
    found = [model.graph.node, *(f.node for f in model.functions)]
    for body in found:
        found += [a.g.node for node in body for a in node.attribute if a.HasField("g")]
    return found


def _without_unread(model: onnx.ModelProto, feeds: Feeds) -> Candidate:
    """Remove from a model what no output needs; return it with the feeds that it reads."""
    graph = model.graph
    del graph.value_info[:]
    read = {o.name for o in graph.output}
    for k in reversed(range(len(graph.node))):
        node = graph.node[k]
        if any(o in read for o in node.output if o):
            read.update(node.input, free_names(node))
        else:
            del graph.node[k]
    for things in (graph.initializer, graph.input):
        for thing in [t for t in things if t.name not in read]:
            things.remove(thing)
    called = {(n.domain, n.op_type) for body in bodies_of(model) for n in body}
    for function in [f for f in model.functions if (f.domain, f.name) not in called]:
        model.functions.remove(function)
    return model, {name: array for name, array in feeds.items() if name in read}


def free_names(node: onnx.NodeProto) -> list[str]:
    """Return the names that the subgraphs of a node read from outside."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for graph in graphs:
            own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            own |= {o for n in graph.node for o in n.output} | {""}
            read = [name for n in graph.node for name in (*n.input, *free_names(n))]
            read += [output.name for output in graph.output]
            found.update(dict.fromkeys(name for name in read if name not in own))
    return list(found)
