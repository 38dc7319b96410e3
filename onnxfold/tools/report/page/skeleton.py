"""The graph of a model as JSON-ready data for a page, with only the first elements of tensors."""

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

_MAX_NODES = 5000
_MAX_TEXT = 300  # characters; names written by exporters are shorter
_MAX_TENSOR_BYTES = 1 << 20  # of a tensor that is read to compute its range
_MAX_READ_BYTES = 64 << 20  # of all tensors that are read to compute their ranges
_SHOWN_ELEMENTS = 6  # of a tensor
_CONSTNESS_TEXTS = {
    Constness.VARIABLE: "depends on the inputs",
    Constness.RUNTIME: "runtime constant",
    Constness.BROADCAST: "constant for each batch",
    Constness.COMPILE_TIME: "constant",
}


class Skeleton:
    """The first `_MAX_NODES` nodes of a model in execution order, with their inputs and outputs.

    The nodes of a subgraph precede the node with the subgraph. The nodes of functions are last.

    Attributes:
        title: The title of the graph.
        scopes: Names of the main graph (""), of subgraphs and of functions.
        modules: Paths of modules, each a list of names from the outermost module to the innermost.
        values: Name, type, and "input", "weight" or "result" of each value. A weight also has its
            range and first elements.
        nodes: For each node, `op`, `name`, `constness` and `attributes`, the indices `scope` and
            `module`, and lists of indices of values: `inputs`, `outputs` and `bodies` (the results
            of its subgraphs). Apart from `inputs` and `outputs`, empty keys are omitted, as is
            `scope` for the main graph. Pages add further keys.
        outputs: Indices of the graph outputs in `values`.
        total: The number of nodes of the model, including the nodes that are not in `nodes`.
        drawn: The nodes of the model that are in `nodes`.
        constness: The constness of the model's values with ``runtime_constants``.
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
        self._readable_bytes = _MAX_READ_BYTES
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
        for value, index in self._index.items():
            fact = types.of(value)
            entry = self.values[index]
            has_declared_type = bool(entry[1])
            if not has_declared_type and fact.dtype is not None:
                entry[1] = short(texts.of_fact(fact))

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as a JSON-ready dictionary."""
        keys = ("title", "scopes", "modules", "values", "nodes", "outputs", "total")
        document = {key: getattr(self, key) for key in keys}
        return {**document, "left_out": self.total - len(self.nodes)}

    def name_of(self, node: dict[str, Any]) -> str:
        """Return the name of the first result of a node in `nodes`; "" without a named result."""
        return self.values[node["outputs"][0]][0] if node["outputs"] else ""

    def forget_model(self) -> dict[int, ir.Node]:
        """Drop the references to the model, and return the drawn nodes by index.

        The names and types of the model remain.
        """
        nodes = dict(enumerate(self.drawn))
        del self.drawn, self.constness, self._facts, self._index
        return nodes

    def _graph(self, graph: ir.Graph, scope: str) -> None:
        scope_index = len(self.scopes)
        self.scopes.append(short(scope))
        for node in graph:
            bodies = []
            for body in subgraphs_of(node):
                self._graph(body, f"{scope}{' / ' if scope else ''}{node.name or node.op_type}")
                if len(self.nodes) < _MAX_NODES:
                    bodies += [self._value(value) for value in body.outputs]
            self.total += 1
            if len(self.nodes) >= _MAX_NODES:
                continue
            entry: dict[str, Any] = {
                "op": short(op_name(node)),
                "name": short(node.name or ""),
                "inputs": [self._value(value) for value in node.inputs if value is not None],
                "outputs": [self._value(value) for value in node.outputs if value.name],
                "constness": _CONSTNESS_TEXTS[self._facts.level_of(node)],
            }
            if scope_index:
                entry["scope"] = scope_index
            if bodies:
                entry["bodies"] = bodies
            module = module_of(node)
            if module:
                entry["module"] = self._module_index.setdefault(module, len(self._module_index))
            if node.attributes:
                entry["attributes"] = {}
                for name, attribute in node.attributes.items():
                    text = attribute_text(attribute)
                    if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                        text += f": {self._content(attribute.value)}"
                    entry["attributes"][short(name)] = short(text)
            self.nodes.append(entry)
            self.drawn.append(node)

    def _value(self, value: ir.Value) -> int:
        """Return the index of a value in `values`. Add the value if it is new."""
        index = self._index.get(value)
        if index is not None:
            return index
        index = len(self.values)
        self._index[value] = index
        if value.is_graph_input():
            kind = "input"
        elif value.is_initializer():
            kind = "weight"
        else:
            kind = "result"
        entry = [short(value.name or ""), short(type_text(value)), kind]
        tensor = storage.stored_tensor(value) if kind == "weight" else None
        if tensor is not None:
            entry.append(self._content(tensor))
        self.values.append(entry)
        return index

    def _content(self, tensor: ir.TensorProtocol) -> str:
        """Return the range and the first elements of a tensor as text.

        A tensor is large if it exceeds `_MAX_TENSOR_BYTES` or the bytes that may still be read. The
        range is omitted for large tensors and for a single element. The text is empty for a large
        tensor that is not mapped from a file, for an empty tensor, and for dtypes other than
        numbers.
        """
        is_integer = tensor.dtype.is_integer()
        is_number = is_integer or tensor.dtype.is_floating_point()
        limit = min(_MAX_TENSOR_BYTES, self._readable_bytes)
        is_small = storage.data_bytes(tensor.dtype, tensor.shape) <= limit
        is_readable = is_small or storage.span_of(tensor) is not None
        if not is_number or not tensor.size or not is_readable:
            return ""
        array = tensor.numpy().reshape(-1)[: tensor.size if is_small else _SHOWN_ELEMENTS]
        self._readable_bytes -= array.nbytes
        numbers = array if is_integer else array.astype(np.float64)
        number_format = "{}" if is_integer else "{:.4g}"
        first = ", ".join(map(number_format.format, numbers[:_SHOWN_ELEMENTS]))
        if tensor.size > _SHOWN_ELEMENTS:
            first += ", ..."
        if not is_small or tensor.size == 1:
            return first
        low, high = map(number_format.format, (numbers.min(), numbers.max()))
        return f"{low} to {high}: {first}"


def short(text: str) -> str:
    """Return a text without its middle if it is too long for a page."""
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT // 2]}…{text[-_MAX_TEXT // 2 :]}"
