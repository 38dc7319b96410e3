"""Makes a failing model small: whatever can go while the same failure stays, goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

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
    steps = (
        *(_one_feed, _one_output, _without_nodes, _inputs_for_nodes, _bypassed, _constants),
        *(_without_attributes, _inner_nodes, _functions, _no_names, _no_value_info),
    )
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for step in steps:
            again = True
            while again and time.monotonic() < end:
                again = False
                for candidate in step(model, feeds, values):
                    candidate = _tidy(candidate)
                    if time.monotonic() > end:
                        break
                    if fails(*candidate):
                        model, feeds = candidate
                        again = progress = True
                        break
    return model, feeds


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _tidy(candidate: Candidate) -> Candidate:
    """Without initializers, inputs and functions that nobody reads."""
    model, feeds = candidate
    graph = model.graph
    read = {o.name for o in graph.output}
    for node in graph.node:
        read.update(node.input)
        read.update(free_names(node))
    for tensor in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(tensor)
    for value in [v for v in graph.input if v.name not in read]:
        graph.input.remove(value)
    names = {v.name for v in graph.input}
    feeds = [{k: v for k, v in feed.items() if k in names} for feed in feeds]
    called = set()
    pending = list(graph.node)
    functions = {(f.domain, f.name): f for f in model.functions}
    while pending:
        node = pending.pop()
        for attribute in node.attribute:
            pending.extend(attribute.g.node)
        key = (node.domain, node.op_type)
        if key in functions and key not in called:
            called.add(key)
            pending.extend(functions[key].node)
    for function in [f for f in model.functions if (f.domain, f.name) not in called]:
        model.functions.remove(function)
    return model, feeds


def _one_feed(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    if len(feeds) > 1:
        for feed in feeds:
            yield _copy(model), [feed]


def _one_output(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    count = len(model.graph.output)
    if count > 1:
        for k in range(count):
            changed = _copy(model)
            kept = [model.graph.output[k]]
            del changed.graph.output[:]
            changed.graph.output.extend(kept)
            yield changed, feeds
        for k in range(count):
            changed = _copy(model)
            del changed.graph.output[k]
            yield changed, feeds


def _reached(model: onnx.ModelProto) -> set[int]:
    wanted = {o.name for o in model.graph.output}
    found = set()
    for k in reversed(range(len(model.graph.node))):
        node = model.graph.node[k]
        if any(o in wanted for o in node.output if o):
            found.add(k)
            wanted.update(node.input)
            wanted.update(free_names(node))
    return found


def _without_nodes(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """Without what leads to no output; then each node that leads to none."""
    reached = _reached(model)
    dead = [k for k in range(len(model.graph.node)) if k not in reached]
    if dead:
        for group in [dead] if len(dead) == 1 else [dead, *([k] for k in dead)]:
            changed = _copy(model)
            for k in reversed(group):
                del changed.graph.node[k]
            yield changed, feeds


def _inputs_for_nodes(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """A node's results become an initializer or an input."""
    if len(feeds) != 1:
        return
    names = [o for n in model.graph.node for o in n.output if o]
    found = values(model, feeds[0], names)
    for k in reversed(range(len(model.graph.node))):
        node = model.graph.node[k]
        outputs = [o for o in node.output if o]
        if any(not isinstance(found.get(o), np.ndarray) for o in outputs):
            continue
        if any(o.name in outputs for o in model.graph.output):
            continue
        arrays = {o: found[o] for o in outputs}
        if node.op_type != "Constant":
            changed = _copy(model)
            del changed.graph.node[k]
            for name, array in arrays.items():
                elem = _elem(array)
                changed.graph.input.append(helper.make_tensor_value_info(name, elem, array.shape))
            yield changed, [{**feeds[0], **arrays}]
        changed = _copy(model)
        del changed.graph.node[k]
        for name, array in arrays.items():
            changed.graph.initializer.append(_tensor(array, name))
        yield changed, feeds


def _elem(array: np.ndarray) -> int:
    return (
        onnx.TensorProto.STRING
        if array.dtype == object
        else (helper.np_dtype_to_tensor_dtype(array.dtype))
    )


def _tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    from .values import tensor_of

    return tensor_of(array, _elem(array), name)


def _bypassed(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """A node's first input in the place of its output."""
    for k, node in enumerate(model.graph.node):
        if not node.input or not node.output or node.op_type == "Identity":
            continue
        for source in dict.fromkeys(i for i in node.input if i):
            changed = _copy(model)
            new = changed.graph.node[k]
            kept = [node.output[0]]
            new.Clear()
            new.op_type = "Identity"
            new.input.append(source)
            new.output.extend(kept)
            yield changed, feeds


def _constants(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """Initializers with one element, or simpler elements; Constant nodes as initializers."""
    for k, node in enumerate(model.graph.node):
        tensors = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type == "Constant" and tensors:
            changed = _copy(model)
            del changed.graph.node[k]
            tensor = onnx.TensorProto()
            tensor.CopyFrom(tensors[0])
            tensor.name = node.output[0]
            if not any(o.name == tensor.name for o in model.graph.output):
                changed.graph.initializer.append(tensor)
                yield changed, feeds
    for k, tensor in enumerate(model.graph.initializer):
        try:
            array = numpy_helper.to_array(tensor)
        except Exception:  # onnx has no array for it: it stays as it is
            continue
        if array.dtype.kind in "OUS":
            continue
        simpler = [np.zeros_like(array), np.ones_like(array)]
        if array.size > 1:
            simpler.append(np.resize(array.reshape(-1)[:1], array.shape).astype(array.dtype))
        for other in simpler:
            content = other.tobytes()
            if content != np.ascontiguousarray(array).tobytes() and array.any():
                changed = _copy(model)
                changed.graph.initializer[k].CopyFrom(_tensor(other, tensor.name))
                yield changed, feeds
    for name, array in (feeds[0] if len(feeds) == 1 else {}).items():
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiub" and array.size:
            for other in (np.zeros_like(array), np.ones_like(array)):
                if other.tobytes() != array.tobytes() and array.any():
                    yield _copy(model), [{**feeds[0], name: other}]
            kept = [v for v in model.graph.input if v.name == name]
            if kept:
                changed = _copy(model)
                changed.graph.input.remove(kept[0])
                if not any(t.name == name for t in changed.graph.initializer):
                    changed.graph.initializer.append(_tensor(array, name))
                    yield changed, [{k: v for k, v in feeds[0].items() if k != name}]


def _without_attributes(
    model: onnx.ModelProto, feeds: Feeds, values: Values
) -> Iterator[Candidate]:
    for k, node in enumerate(model.graph.node):
        for j, attribute in enumerate(node.attribute):
            if not attribute.HasField("g"):
                changed = _copy(model)
                del changed.graph.node[k].attribute[j]
                yield changed, feeds
        for j in reversed(range(len(node.input))):
            if node.input[j]:
                changed = _copy(model)
                changed.graph.node[k].input[j] = ""
                while changed.graph.node[k].input and not changed.graph.node[k].input[-1]:
                    del changed.graph.node[k].input[-1]
                yield changed, feeds
        for j in reversed(range(1, len(node.output))):
            if node.output[j]:
                changed = _copy(model)
                changed.graph.node[k].output[j] = ""
                while changed.graph.node[k].output and not changed.graph.node[k].output[-1]:
                    del changed.graph.node[k].output[-1]
                yield changed, feeds


def _graphs(nodes: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for k, node in enumerate(nodes):
        for j, attribute in enumerate(node.attribute):
            if attribute.HasField("g"):
                yield (*path, k, j)
                yield from _graphs(attribute.g.node, (*path, k, j))


def _graph_at(model: onnx.ModelProto, path: tuple[int, ...]) -> onnx.GraphProto:
    graph = model.graph
    for k in range(0, len(path), 2):
        graph = graph.node[path[k]].attribute[path[k + 1]].g
    return graph


def _inner_nodes(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """Nodes of bodies: gone, or only copying."""
    for path in _graphs(model.graph.node):
        body = _graph_at(model, path)
        for k in reversed(range(len(body.node))):
            changed = _copy(model)
            del _graph_at(changed, path).node[k]
            yield changed, feeds
            node = body.node[k]
            if node.op_type == "Identity":
                continue
            for source in dict.fromkeys(i for i in node.input if i):
                changed = _copy(model)
                new = _graph_at(changed, path).node[k]
                kept = [node.output[0]]
                new.Clear()
                new.op_type = "Identity"
                new.input.append(source)
                new.output.extend(kept)
                yield changed, feeds


def _functions(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    """Nodes of functions: gone, or only copying."""
    for f, function in enumerate(model.functions):
        for k in reversed(range(len(function.node))):
            changed = _copy(model)
            del changed.functions[f].node[k]
            yield changed, feeds
            node = function.node[k]
            if node.op_type == "Identity" or not node.output:
                continue
            for source in dict.fromkeys(i for i in node.input if i):
                changed = _copy(model)
                new = changed.functions[f].node[k]
                kept = [node.output[0]]
                new.Clear()
                new.op_type = "Identity"
                new.input.append(source)
                new.output.extend(kept)
                yield changed, feeds


def _no_names(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    if any(node.name for node in model.graph.node):
        changed = _copy(model)
        for node in changed.graph.node:
            node.name = ""
        yield changed, feeds


def _no_value_info(model: onnx.ModelProto, feeds: Feeds, values: Values) -> Iterator[Candidate]:
    if model.graph.value_info:
        changed = _copy(model)
        del changed.graph.value_info[:]
        yield changed, feeds


def text_of(model: onnx.ModelProto, feeds: Feeds) -> str:
    """The model as text, and what it is fed."""
    shown = onnx.printer.to_text(model)
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    fed = [f"{name} = {np.asarray(array).tolist()!r}"[:300] for name, array in feeds[0].items()]
    return "\n".join([*lines, *fed])
