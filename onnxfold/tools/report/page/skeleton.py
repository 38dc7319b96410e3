"""The graph of a model as plain data for a page, without tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.analysis.modules import module_of
from onnxfold.ir import storage
from onnxfold.ir.graphs import attribute_text, op_name, subgraphs_of, type_text
from onnxfold.ir.symbolic.fact import Texts

_MOST_NODES = 5000
_LONGEST = 300  # characters of a name; exporters write shorter ones
_READ = 1 << 20  # bytes up to which a tensor is read for its range
_MOST_READ = 64 << 20  # bytes of all tensors that are read
_FIRST = 6  # elements
_WORDS = {
    Constness.VARIABLE: "depends on the inputs",
    Constness.RUNTIME: "runtime constant",
    Constness.BROADCAST: "constant for each batch",
    Constness.COMPILE_TIME: "constant",
}


class Skeleton:
    """The nodes of a model in execution order, of a large one the first, with inputs and outputs.
    Nodes of a subgraph come before its node, those of functions last.

    Attributes:
        modules: Names of modules, from the outside in.
        values: Name, type, and "input", "weight" or "result" of each value; for a weight also its
            range and first elements.
        nodes: `op`, `name`, `constness` and `attributes` of each node, and indices: `scope`,
            `module`, of values `inputs`, `outputs` and, for results of its subgraphs, `bodies`.
            Other keys are added by a run.
        total: The number of nodes of the model.
        drawn: The nodes of the model that are in `nodes`.
    """

    def __init__(
        self, model: ir.Model, title: str, runtime_constants: Iterable[ir.Value] = ()
    ) -> None:
        self.title = title
        self.scopes: list[str] = []
        self.values: list[list[str]] = []
        self.nodes: list[dict[str, Any]] = []
        self.total = 0
        self.drawn: list[ir.Node] = []
        self._facts = ModelFacts(model, runtime_constants=runtime_constants)
        self.constness = self._facts.constness
        self._index: dict[ir.Value, int] = {}
        self._module_index: dict[tuple[str, ...], int] = {}
        self._unread = _MOST_READ
        for value in model.graph.inputs:
            self._value(value)
        self._graph(model.graph, "")
        self.outputs = [self._value(value) for value in model.graph.outputs]
        for function in model.functions.values():
            self._graph(function.graph, f"function {function.name}")
        self.modules = [[short(name) for name in module] for module in self._module_index]
        types = facts_of(model).types
        types.run()
        texts = Texts(types.algebra, ())
        for value, index in self._index.items():  # values without a declared type
            fact = types.of(value)
            entry = self.values[index]
            if not entry[1] and fact.dtype is not None:
                entry[1] = short(texts.of_fact(fact))

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary."""
        keys = ("title", "scopes", "modules", "values", "nodes", "outputs", "total")
        told = {key: getattr(self, key) for key in keys}
        return {**told, "left_out": self.total - len(self.nodes)}

    def name_of(self, node: dict[str, Any]) -> str:
        """Return the name of the first result of a node."""
        return self.values[node["outputs"][0]][0] if node["outputs"] else ""

    def forget_model(self) -> dict[int, ir.Node]:
        """Keep names and types only; return the nodes in the skeleton by their index."""
        nodes = dict(enumerate(self.drawn))
        del self.drawn, self.constness, self._facts, self._index
        return nodes

    def _graph(self, graph: ir.Graph, scope: str) -> None:
        number = len(self.scopes)
        self.scopes.append(short(scope))
        for node in graph:
            bodies = []
            for body in subgraphs_of(node):
                self._graph(body, f"{scope}{' / ' if scope else ''}{node.name or node.op_type}")
                if len(self.nodes) < _MOST_NODES:
                    bodies += [self._value(value) for value in body.outputs]
            self.total += 1
            if len(self.nodes) >= _MOST_NODES:
                continue
            made: dict[str, Any] = {
                "op": short(op_name(node)),
                "name": short(node.name or ""),
                "inputs": [self._value(value) for value in node.inputs if value is not None],
                "outputs": [self._value(value) for value in node.outputs if value.name],
                "constness": _WORDS[self._facts.level_of(node)],
            }
            if number:
                made["scope"] = number
            if bodies:
                made["bodies"] = bodies
            module = module_of(node)
            if module:
                made["module"] = self._module_index.setdefault(module, len(self._module_index))
            if node.attributes:
                made["attributes"] = {}
                for name, attribute in node.attributes.items():
                    text = attribute_text(attribute)
                    if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                        text += f": {self._content(attribute.value)}"
                    made["attributes"][short(name)] = short(text)
            self.nodes.append(made)
            self.drawn.append(node)

    def _value(self, value: ir.Value) -> int:
        index = self._index.get(value)
        if index is None:
            index = len(self.values)
            self._index[value] = index
            kind = "weight" if value.is_initializer() else "result"
            kind = "input" if value.is_graph_input() else kind
            entry = [short(value.name or ""), short(type_text(value)), kind]
            tensor = storage.stored_tensor(value) if kind == "weight" else None
            if tensor is not None:
                entry.append(self._content(tensor))
            self.values.append(entry)
        return index

    def _content(self, tensor: ir.TensorProtocol) -> str:
        """Return range and first elements as text; of large tensors only these, if stored."""
        is_plain = tensor.dtype.is_integer() or tensor.dtype.is_floating_point()
        is_small = storage.data_bytes(tensor.dtype, tensor.shape) <= min(_READ, self._unread)
        if not is_plain or not tensor.size or not (is_small or storage.span_of(tensor) is not None):
            return ""
        array = tensor.numpy().reshape(-1)[: tensor.size if is_small else _FIRST]
        self._unread -= array.nbytes
        numbers = array if tensor.dtype.is_integer() else array.astype(np.float64)
        form = "{}" if tensor.dtype.is_integer() else "{:.4g}"
        first = ", ".join(map(form.format, numbers[:_FIRST])) + ", ..." * (tensor.size > _FIRST)
        if not is_small or tensor.size == 1:
            return first
        return f"{form.format(numbers.min())} to {form.format(numbers.max())}: {first}"


def short(text: str) -> str:
    """Return a text shortened to the limit of a page."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"
