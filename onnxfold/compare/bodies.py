"""The graph that a node runs (a branch, the body of a loop, a function) as a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, inliner

from onnxfold import storage
from onnxfold.compare.random_feeds import Array, Feeds
from onnxfold.compare.runners import Output
from onnxfold.graphs import captured_values

Known = Callable[[Sequence[ir.Value]], dict[str, Output]]
"""Gives what values of the graph around the node are."""

_ANY_NUMBER = 1 << 40  # turns of a loop that only its condition ends


class Body(NamedTuple):
    """A graph that a node ran, and what it read."""

    where: str
    """Which graph of which node."""
    model: ir.Model
    feeds: Feeds


class Turns:
    """A Loop or Scan on its own, which can be ended after any number of turns.

    Attributes:
        where: Which node it is.
        source: The model of the one node, serialized.
        most_turns: After as many it has certainly ended.
    """

    def __init__(self, around: ir.Model, node: ir.Node, known: Feeds) -> None:
        self.where = f"{node.op_type} {_name(node)}"
        self._around = around
        self._proto = ir.serde.serialize_node(node)
        self._known = dict(known)
        self._body: onnx.GraphProto = helper.get_node_attr_value(self._proto, "body")
        self._proto.input[:] = [
            name or (f"{_name(node)} input {k}" if k == 0 else "")
            for k, name in enumerate(self._proto.input)
        ]
        self._proto.output[:] = [
            name or f"{_name(node)} output {k}" for k, name in enumerate(self._proto.output)
        ]
        self.most_turns = self._most_turns()
        self.source = _model(
            around, [self._proto], self.feeds(1), self._proto.output
        ).SerializeToString()

    def _most_turns(self) -> int:
        raise NotImplementedError

    def feeds(self, turns: int) -> Feeds:
        """What ends the node after so many turns."""
        raise NotImplementedError

    def _reads(self, turn: int, results: Mapping[str, Output]) -> list[Any]:
        """What the inputs of the body are in a turn, from 0, after the results of those before."""
        raise NotImplementedError

    def body(self, turn: int, results: Mapping[str, Output]) -> Body:
        """The body as it runs in a turn, counted from 0.

        Args:
            turn: The turn.
            results: What the node gives after so many turns; not looked at for turn 0.
        """
        names = [value.name for value in self._body.input]
        feeds = {**self._known, **dict(zip(names, self._reads(turn, results), strict=True))}
        model = _model_of_graph(self._around, self._body, feeds)
        return Body(f"turn {turn} of {self.where}", model, _read_by(model, feeds))


class LoopTurns(Turns):
    """A Loop."""

    def _most_turns(self) -> int:
        limit = self._known.get(self._proto.input[0])
        return _ANY_NUMBER if limit is None else int(np.asarray(limit).item())

    def feeds(self, turns: int) -> Feeds:
        """The trip count is what ends it."""
        limit = np.asarray(min(turns, self.most_turns), np.int64)
        given = self._known.get(self._proto.input[0])
        shape = () if given is None else np.shape(given)
        return {**self._known, self._proto.input[0]: limit.reshape(shape)}

    def _reads(self, turn: int, results: Mapping[str, Output]) -> list[Any]:
        carried = self._proto.input[2:]
        state: list[Any] = [self._known[name] for name in carried]
        if turn:
            state = [results[name] for name in self._proto.output[: len(carried)]]
        number, condition = (self._body.input[k].type.tensor_type for k in range(2))
        return [
            np.full([1] * len(number.shape.dim), turn, np.int64),
            np.full([1] * len(condition.shape.dim), True),
            *state,
        ]


class ScanTurns(Turns):
    """A Scan forward over first axes."""

    @property
    def _scanned(self) -> list[str]:
        count = helper.get_node_attr_value(self._proto, "num_scan_inputs")
        return list(self._proto.input[len(self._proto.input) - count :])

    def _most_turns(self) -> int:
        return len(self._array(self._scanned[0]))

    def _array(self, name: str) -> Array:
        return np.asarray(self._known[name])

    def feeds(self, turns: int) -> Feeds:
        """The length of what is scanned is what ends it."""
        return {**self._known, **{name: self._array(name)[:turns] for name in self._scanned}}

    def _reads(self, turn: int, results: Mapping[str, Output]) -> list[Any]:
        scanned = self._scanned
        carried = self._proto.input[: len(self._proto.input) - len(scanned)]
        state: list[Any] = [self._known[name] for name in carried]
        if turn:
            state = [results[name] for name in self._proto.output[: len(carried)]]
        return [*state, *(np.asarray(self._array(name)[turn]) for name in scanned)]


def body_of(model: ir.Model, node: ir.Node, known: Known) -> Body | Turns | None:
    """What a node runs, on what it is given; None if that cannot be taken out of it.

    Args:
        model: The model that the node is in.
        node: A node of its main graph.
        known: Gives values of that graph.
    """
    read = {value.name: value for value in node.inputs if value is not None and value.name}
    read.update((value.name, value) for value in captured_values(node) if value.name)
    feeds = known(list(read.values()))
    if any(not _can_be_fed(feed) for feed in feeds.values()):
        return None
    if node.op_identifier() in model.functions:
        call = ir.serde.serialize_node(node)
        call.output[:] = [name or f"{_name(node)} output {k}" for k, name in enumerate(call.output)]
        inlined = inliner.inline_local_functions(_model(model, [call], feeds, call.output))
        where = f"function {node.op_type}, called by {_name(node)}"
        return Body(where, storage.from_proto(inlined), feeds)
    if node.domain != "":
        return None
    if node.op_type == "If":
        condition = node.inputs[0]
        assert condition is not None and condition.name
        branch = "then" if np.asarray(feeds[condition.name]).item() else "else"
        graph = node.attributes[f"{branch}_branch"].as_graph()
        alone = _model_of_graph(model, ir.serde.serialize_graph(graph), feeds)
        return Body(f"{branch} branch of If {_name(node)}", alone, _read_by(alone, feeds))
    if node.op_type == "Loop":
        return LoopTurns(model, node, feeds)
    if node.op_type == "Scan" and not set(node.attributes) - {"body", "num_scan_inputs"}:
        return ScanTurns(model, node, feeds)
    return None


def _name(node: ir.Node) -> str:
    return repr(node.name or next((v.name for v in node.outputs if v.name), ""))


def _can_be_fed(feed: Output) -> bool:
    return isinstance(feed, np.ndarray) or (isinstance(feed, list) and bool(feed))


def _model(
    around: ir.Model,
    nodes: Sequence[onnx.NodeProto],
    feeds: Feeds,
    outputs: Sequence[str],
) -> onnx.ModelProto:
    """A model of a few nodes, with the opsets and functions of the one around."""
    graph = helper.make_graph(
        nodes,
        "taken out",
        [_value_info(name, feed) for name, feed in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    return _in_model(around, graph)


def _model_of_graph(around: ir.Model, graph: onnx.GraphProto, feeds: Feeds) -> ir.Model:
    """A model whose main graph is one out of a node; what it reads from around becomes inputs."""
    main = onnx.GraphProto()
    main.CopyFrom(graph)
    del main.input[:], main.value_info[:]
    main.input.extend(_value_info(name, feed) for name, feed in feeds.items())
    return storage.from_proto(_in_model(around, main))


def _in_model(around: ir.Model, graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(
        graph,
        ir_version=around.ir_version,
        opset_imports=[helper.make_opsetid(d, v) for d, v in around.opset_imports.items()],
        functions=[ir.serde.serialize_function(f) for f in around.functions.values()],
    )


def _read_by(model: ir.Model, feeds: Feeds) -> Feeds:
    names = {value.name for value in model.graph.inputs}
    return {name: feed for name, feed in feeds.items() if name in names}


def _value_info(name: str, feed: Output) -> onnx.ValueInfoProto:
    if isinstance(feed, list):
        first: Array = feed[0]
        return helper.make_tensor_sequence_value_info(name, _element_type(first), None)
    array = np.asarray(feed)
    return helper.make_tensor_value_info(name, _element_type(array), None)


def _element_type(array: Array) -> int:
    if array.dtype.kind in "OSU":
        return onnx.TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))
