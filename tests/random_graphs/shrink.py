"""Makes a failing model small: whatever can go while the same failure stays, goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper

from .builder import free_names

Feeds = list[dict[str, Any]]
Fails = Callable[[onnx.ModelProto, Feeds], bool]
Values = Callable[[onnx.ModelProto, dict[str, Any], list[str]], dict[str, Any]]
Candidate = tuple[onnx.ModelProto, Feeds]


def shrink(
    model: onnx.ModelProto, feeds: Feeds, fails: Fails, values: Values, seconds: float = 40.0
) -> Candidate:
    """The smallest model found that still fails, with its feeds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for candidate in _smaller(model, feeds, values):
            _drop_unread(*candidate)
            if time.monotonic() > end:
                break
            if fails(*candidate):
                model, feeds = candidate
                break
        else:
            break
    return model, feeds


def _smaller(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """One feed, one output, results as inputs, then nodes that only copy or are gone."""
    for feed in feeds if len(feeds) > 1 else ():
        yield _copy(model), [dict(feed)]
    for output in model.graph.output if len(model.graph.output) > 1 else ():
        changed = _copy(model)
        del changed.graph.output[:]
        changed.graph.output.append(output)
        yield changed, [dict(feed) for feed in feeds]
    nodes = model.graph.node
    if len(feeds) == 1:
        known = values(model, feeds[0], [o for n in nodes for o in n.output if o])
        shown = {o.name for o in model.graph.output}
        for k in reversed(range(len(nodes))):
            made = {o: known.get(o) for o in nodes[k].output if o}
            tensors = {o: a for o, a in made.items() if isinstance(a, np.ndarray)}
            if len(tensors) < len(made) or shown & set(made):
                continue
            changed = _copy(model)
            del changed.graph.node[k]
            changed.graph.input.extend(_info(name, array) for name, array in tensors.items())
            yield changed, [{**feeds[0], **tensors}]
    for place, body in enumerate(_bodies(model)):
        for k in reversed(range(len(body))):
            changed = _copy(model)
            del _bodies(changed)[place][k]
            yield changed, [dict(feed) for feed in feeds]
            for source in dict.fromkeys(body[k].input if body[k].op_type != "Identity" else ()):
                changed = _copy(model)
                copy = helper.make_node("Identity", [source], body[k].output[:1])
                _bodies(changed)[place][k].CopyFrom(copy)
                yield changed, [dict(feed) for feed in feeds]


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    is_text = array.dtype == object
    elem = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, elem, array.shape)


def _bodies(model: onnx.ModelProto) -> list[Any]:
    """The nodes of the graph, of functions, and of all graphs in them."""
    found = [model.graph.node, *(f.node for f in model.functions)]
    for body in found:
        found += [a.g.node for node in body for a in node.attribute if a.HasField("g")]
    return found


def _drop_unread(model: onnx.ModelProto, feeds: Feeds) -> None:
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
    for feed in feeds:
        for name in [n for n in feed if n not in read]:
            del feed[name]
    called = {(n.domain, n.op_type) for body in _bodies(model) for n in body}
    for function in [f for f in model.functions if (f.domain, f.name) not in called]:
        model.functions.remove(function)


def text_of(model: onnx.ModelProto, feeds: Feeds) -> str:
    """The model as text, and what it is fed."""
    shown = onnx.printer.to_text(model)
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    fed = [f"{name} = {np.asarray(array).tolist()!r}"[:300] for name, array in feeds[0].items()]
    return "\n".join([*lines, *fed])
