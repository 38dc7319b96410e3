"""The inventory of a model: ops, interface and tensors. Tensor bytes are not read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxfold import storage
from onnxfold.errors import ExternalDataError
from onnxfold.graphs import all_graphs, count_nodes, shaped, type_text
from onnxfold.report.console import Table, amount_text, bytes_text
from onnxfold.table_repr import Shown

_MOST_SHOWN = 10  # tensors
_NO_PARAMETERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING)


@dataclass(frozen=True)
class InterfaceValue:
    """An input or output: its name, and its type and shape as text."""

    name: str
    type: str


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor: its name, element type, shape, and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @classmethod
    def of(cls, name: str, tensor: ir.TensorProtocol) -> TensorEntry:
        """Return the entry of a tensor; its bytes are not read."""
        return cls(name, shaped(tensor.dtype, None), tuple(tensor.shape.numpy()), tensor.nbytes)

    @property
    def type(self) -> str:
        """The element type and shape: "float32[3,4]"."""
        return shaped(self.dtype, self.shape)


@dataclass(frozen=True, repr=False)
class Inventory(Shown, text="onnxfold.report.inventory:Inventory.lines"):
    """The contents of a model.

    Attributes:
        path: The file.
        ir_version: ONNX IR version.
        producer: The tool that wrote the model, or "".
        opsets: Opset version by domain ("" is the default domain).
        inputs: Graph inputs; those with a default value say so.
        outputs: Graph outputs.
        nodes: Nodes by op type, subgraphs and functions included.
        functions: Number of model-local functions.
        parameters: Elements of stored tensors, except INT32, INT64, BOOL and STRING.
        tensors: Number of stored tensors: initializers and values of `Constant` nodes.
        tensor_bytes: Their bytes.
        stored_bytes: Bytes of the file and of the external data it refers to.
        largest: The largest tensors, largest first.
        unread: Why external data was not read, and its declared sizes are used; or None.
    """

    path: str
    ir_version: int
    producer: str
    opsets: dict[str, int]
    inputs: list[InterfaceValue]
    outputs: list[InterfaceValue]
    nodes: dict[str, int]
    functions: int
    parameters: int
    tensors: int
    tensor_bytes: int
    stored_bytes: int
    largest: list[TensorEntry]
    unread: str | None = None

    def lines(self) -> Iterator[str | Table]:
        """Yield the same as lines and tables."""
        opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in self.opsets.items())
        producer = f", written by {self.producer}" if self.producer else ""
        ops = sorted(self.nodes.items(), key=lambda item: (-item[1], item[0]))
        yield f"{self.path}: IR {self.ir_version}, opset {opsets}{producer}"
        yield (
            f"{bytes_text(self.stored_bytes)} stored, of which {self.tensors} tensors are "
            f"{bytes_text(self.tensor_bytes)}; {amount_text(self.parameters)} parameters, "
            f"{sum(self.nodes.values())} nodes, {self.functions} functions"
        )
        if self.unread is not None:
            yield f"external data could not be read: {self.unread}"
        for title, values in (("input", self.inputs), ("output", self.outputs)):
            yield from ("", Table((title, "type"), [(v.name, v.type) for v in values]))
        yield from ("", Table(("op", ">nodes"), [(op, str(count)) for op, count in ops]))
        if self.largest:
            largest = [(t.name, t.type, bytes_text(t.bytes)) for t in self.largest]
            yield from ("", Table(("largest tensors", "type", ">bytes"), largest))


def take_inventory(path: str | os.PathLike[str]) -> Inventory:
    """Read a model and return its inventory. External data may be missing.

    Raises:
        ModelError: The file cannot be read as a model.
    """
    model, reason = load_to_inspect(path)
    found = inventory_of(model, path)
    if reason is not None:
        tensors = (tensor for _, tensor in stored_tensors(model))
        unread = sum(t.nbytes for t in tensors if isinstance(t, ir.ExternalTensor))
        found = replace(found, stored_bytes=found.stored_bytes + unread, unread=reason)
    return found


def load_to_inspect(path: str | os.PathLike[str]) -> tuple[ir.Model, str | None]:
    """Load a model, without external data if that cannot be read; also return the reason."""
    try:
        return storage.load(path), None
    except ExternalDataError as error:
        return storage.load(path, external_data=False), error.reason


def inventory_of(model: ir.Model, path: str | os.PathLike[str]) -> Inventory:
    """Return the inventory of a model that was loaded from a path."""
    tensors = largest_first(model)
    return Inventory(
        path=os.fspath(path),
        ir_version=model.ir_version,
        producer=" ".join(filter(None, [model.producer_name, model.producer_version])),
        opsets=dict(sorted(model.opset_imports.items())),
        inputs=[_value_info(value) for value in model.graph.inputs],
        outputs=[_value_info(value) for value in model.graph.outputs],
        nodes=count_nodes(model),
        functions=len(model.functions),
        parameters=sum(parameters_in(tensor) for _, tensor in stored_tensors(model)),
        tensors=len(tensors),
        tensor_bytes=sum(tensor.bytes for tensor in tensors),
        stored_bytes=storage.model_bytes(model),
        largest=tensors[:_MOST_SHOWN],
    )


def largest_first(model: ir.Model) -> list[TensorEntry]:
    """Return the stored tensors of a model, the largest first."""
    found = (TensorEntry.of(value.name or "", tensor) for value, tensor in stored_tensors(model))
    return sorted(found, key=lambda tensor: -tensor.bytes)


def stored_tensors(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the initializers of all graphs, and tensors in attributes with the first output of
    their node.
    """
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value
        for node in graph:
            for attribute in node.attributes.data.values():
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    # Attr.as_tensor() checks a protocol at run time, slow for 10,000 attributes
                    tensor = attribute.value
                    if tensor.dtype != ir.DataType.UNDEFINED:  # damaged files have such attributes
                        yield node.outputs[0], tensor


def parameters_in(tensor: ir.TensorProtocol) -> int:
    """Return the number of elements; 0 for dtypes of sizes, indices, masks and strings."""
    return 0 if tensor.dtype in _NO_PARAMETERS else math.prod(tensor.shape.numpy())


def _value_info(value: ir.Value) -> InterfaceValue:
    has_default = value.is_graph_input() and value.is_initializer()
    type_ = type_text(value) or "unknown"
    return InterfaceValue(value.name or "", f"{type_}{' (has a default)' if has_default else ''}")
