"""The inventory of a model (ops, interface and tensors), and the differences of two models."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs, count_nodes, shaped, type_text
from onnxfold.support.errors import ExternalDataError
from onnxfold.support.tables import Printable, Table, amount_text, bytes_text, ops_table

_MAX_LARGEST = 10  # tensors of an inventory
_MAX_CHANGED = 20  # printed tensors of a difference
_CHUNK = 1 << 20  # bytes that are hashed at once
# Tensors of these dtypes are sizes, indices, masks and texts instead of parameters.
_NO_PARAMETERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING)

_Tensors = Mapping[tuple[str, int], tuple["TensorEntry", ir.TensorProtocol]]


@dataclass(frozen=True)
class InterfaceValue:
    """A graph input or output: its name, and its type and shape as text."""

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
        """Return the entry of a tensor, without reading its bytes."""
        return cls(name, shaped(tensor.dtype, None), tuple(tensor.shape.numpy()), tensor.nbytes)

    @property
    def type(self) -> str:
        """The element type and shape, such as "float32[3,4]"."""
        return shaped(self.dtype, self.shape)


@dataclass(frozen=True, repr=False)
class Inventory(Printable):
    """The contents of a model.

    Attributes:
        path: The file.
        ir_version: The IR version.
        producer: Name and version of the program that wrote the model, or "" if unknown.
        opsets: Opset version by domain ("" is the default domain).
        inputs: Graph inputs. The type of an input with a default value ends in "(has a default)".
        outputs: Graph outputs.
        nodes: Number of nodes by op type, including those of subgraphs and functions.
        functions: Number of functions.
        parameters: Number of elements of stored tensors, without INT32, INT64, BOOL and STRING.
        tensors: Number of stored tensors: initializers, and tensors in attributes of nodes such as
            `Constant`.
        tensor_bytes: Bytes of the stored tensors.
        stored_bytes: Bytes of the file and its external data.
        largest: Up to ten of the largest tensors, in descending order of bytes.
        unread: The reason why external data could not be read, or None. With a reason, the sizes of
            external tensors are those that the model declares.
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

    def _text_parts(self) -> Iterator[str | Table]:
        opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in self.opsets.items())
        producer = f", written by {self.producer}" if self.producer else ""
        ops = sorted(self.nodes.items(), key=lambda item: (-item[1], item[0]))
        yield f"{self.path}: IR {self.ir_version}, opset {opsets}{producer}"
        yield (
            f"{bytes_text(self.stored_bytes)} stored, including {self.tensors} tensors with "
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
    """Return the inventory of a model file, whose external data may be missing.

    Raises:
        ModelError: The file cannot be read.
    """
    model, reason = load_to_inspect(path)
    inventory = inventory_of(model, path)
    if reason is not None:
        tensors = (tensor for _, tensor in stored_tensors(model))
        unread_bytes = sum(t.nbytes for t in tensors if isinstance(t, ir.ExternalTensor))
        stored_bytes = inventory.stored_bytes + unread_bytes
        inventory = replace(inventory, stored_bytes=stored_bytes, unread=reason)
    return inventory


def load_to_inspect(path: str | os.PathLike[str]) -> tuple[ir.Model, str | None]:
    """Load a model, without its external data if these data cannot be read.

    Returns:
        The model, and the reason why the external data cannot be read, or None.

    Raises:
        ModelError: The file cannot be read.
    """
    try:
        return storage.load(path), None
    except ExternalDataError as error:
        return storage.load(path, external_data=False), error.reason


def inventory_of(model: ir.Model, path: str | os.PathLike[str]) -> Inventory:
    """Return the inventory of a model that was loaded from ``path``."""
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
        largest=tensors[:_MAX_LARGEST],
    )


def largest_first(model: ir.Model) -> list[TensorEntry]:
    """Return the stored tensors of a model in descending order of bytes."""
    entries = (TensorEntry.of(value.name or "", tensor) for value, tensor in stored_tensors(model))
    return sorted(entries, key=lambda tensor: -tensor.bytes)


def stored_tensors(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield all stored tensors of a model.

    An initializer is yielded with its value. A tensor in an attribute is yielded with the first
    output of the attribute's node.
    """
    for graph in all_graphs(model):
        yield from storage.initializers_of(graph)
        for node in graph:
            for attribute in node.attributes.data.values():
                if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                    # Attr.as_tensor() checks a protocol, which is slow for 10,000 attributes
                    tensor = attribute.value
                    # only damaged files have tensors of an undefined dtype
                    if tensor.dtype != ir.DataType.UNDEFINED:
                        yield node.outputs[0], tensor


def parameters_in(tensor: ir.TensorProtocol) -> int:
    """Return the number of elements, or 0 for a tensor whose dtype is not one of parameters."""
    return 0 if tensor.dtype in _NO_PARAMETERS else math.prod(tensor.shape.numpy())


def _value_info(value: ir.Value) -> InterfaceValue:
    default = " (has a default)" if value.is_graph_input() and value.is_initializer() else ""
    return InterfaceValue(value.name or "", f"{type_text(value) or 'unknown'}{default}")


@dataclass(frozen=True)
class FieldChange:
    """A property that differs between two models. A model without it has None instead of a text."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class TensorChange:
    """A tensor that differs between two models.

    Attributes:
        name: The name in the first model, or in the second model for an added tensor.
        kind: "removed", "added", "renamed" or "changed". For a renamed tensor, the second model has
            the same type and bytes under another name. For a changed tensor, it has another type,
            shape or content under the same name.
        before: The tensor of the first model, or None for an added tensor.
        after: The tensor of the second model, or None for a removed tensor.
    """

    name: str
    kind: str
    before: TensorEntry | None
    after: TensorEntry | None

    @property
    def bytes(self) -> int:
        """The size in bytes of ``before`` or ``after``, whichever is larger."""
        return max(t.bytes for t in (self.before, self.after) if t is not None)


@dataclass(frozen=True, repr=False)
class Difference(Printable):
    """The differences of two models: ops, interface and tensors.

    Attributes:
        before: The file of the first model.
        after: The file of the second model.
        bytes_before: Bytes of the first file and its external data.
        bytes_after: Bytes of the second file and its external data.
        ops: Numbers of nodes of both models by op type, including those of subgraphs and functions.
        header: Changes of the IR version, the opsets and the number of functions.
        inputs: Changes of graph inputs, regardless of their order.
        outputs: Changes of graph outputs, regardless of their order.
        same_tensors: Number of tensors with the same name and content in both models.
        same_bytes: Bytes of these tensors.
        tensors: Changes of all other tensors in descending order of bytes.
    """

    before: str
    after: str
    bytes_before: int
    bytes_after: int
    ops: dict[str, tuple[int, int]]
    header: list[FieldChange]
    inputs: list[FieldChange]
    outputs: list[FieldChange]
    same_tensors: int
    same_bytes: int
    tensors: list[TensorChange]

    def _text_parts(self) -> Iterator[str | Table]:
        yield f"from {self.before} to {self.after}"
        yield ""
        before = {op: counts[0] for op, counts in self.ops.items()}
        after = {op: counts[1] for op, counts in self.ops.items()}
        yield ops_table(before, after, self.bytes_before, self.bytes_after)
        properties = (("model", self.header), ("input", self.inputs), ("output", self.outputs))
        for title, changes in properties:
            if changes:
                rows = [(c.name, c.before or "none", c.after or "none") for c in changes]
                yield from ("", Table((title, "before", "after"), rows))
        counts = [f"{self.same_tensors:,} tensors are the same ({bytes_text(self.same_bytes)})"]
        for kind in ("changed", "renamed", "removed", "added"):
            sizes = [change.bytes for change in self.tensors if change.kind == kind]
            if sizes:
                counts.append(f"{len(sizes):,} {kind} ({bytes_text(sum(sizes))})")
        yield from ("", ", ".join(counts))
        tensors: list[tuple[str, ...]] = []
        for change in self.tensors[:_MAX_CHANGED]:
            entries = (change.before, change.after)
            new = f" -> {change.after.name}" if change.after and change.kind == "renamed" else ""
            types = (f"{t.type} {bytes_text(t.bytes)}" if t is not None else "" for t in entries)
            tensors.append((f"{change.name}{new}", change.kind, *types))
        if tensors:
            yield from ("", Table(("tensor", "", "before", "after"), tensors))
        if len(self.tensors) > _MAX_CHANGED:
            yield f"and {len(self.tensors) - _MAX_CHANGED} more: --json lists all"


def take_difference(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Difference:
    """Return the differences of the models in two files.

    Tensors with the same type and shape are compared by hashes of their bytes. Bytes in a file are
    read in blocks of one mebibyte.

    Raises:
        ModelError: A file or its external data cannot be read.
    """
    first = storage.load(before)
    second = storage.load(after)
    with storage.reading_from(first), storage.reading_from(second):
        a = inventory_of(first, before)
        b = inventory_of(second, after)
        same, changes = _tensors(_by_name(first), _by_name(second))
    return Difference(
        before=a.path,
        after=b.path,
        bytes_before=a.stored_bytes,
        bytes_after=b.stored_bytes,
        ops={op: (a.nodes.get(op, 0), b.nodes.get(op, 0)) for op in sorted({**a.nodes, **b.nodes})},
        header=_changes(_header(a), _header(b)),
        inputs=_changes({v.name: v.type for v in a.inputs}, {v.name: v.type for v in b.inputs}),
        outputs=_changes({v.name: v.type for v in a.outputs}, {v.name: v.type for v in b.outputs}),
        same_tensors=len(same),
        same_bytes=sum(entry.bytes for entry in same),
        tensors=sorted(changes, key=lambda change: (-change.bytes, change.name)),
    )


def _header(inventory: Inventory) -> dict[str, str]:
    return {
        "IR version": str(inventory.ir_version),
        **{f"opset {d or 'ai.onnx'}": str(v) for d, v in inventory.opsets.items()},
        **({"functions": str(inventory.functions)} if inventory.functions else {}),
    }


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[FieldChange]:
    return [
        FieldChange(name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _by_name(model: ir.Model) -> _Tensors:
    """Return the tensors by name and by index among the tensors with the same name."""
    counts: Counter[str] = Counter()
    tensors: dict[tuple[str, int], tuple[TensorEntry, ir.TensorProtocol]] = {}
    for value, tensor in stored_tensors(model):
        name = value.name or ""
        tensors[name, counts[name]] = TensorEntry.of(name, tensor), tensor
        counts[name] += 1
    return tensors


def _tensors(before: _Tensors, after: _Tensors) -> tuple[list[TensorEntry], list[TensorChange]]:
    """Return the tensors with the same name and content in both models, and all other changes."""
    same: list[TensorEntry] = []
    changes: list[TensorChange] = []
    added: dict[tuple[str, bytes], list[TensorEntry]] = defaultdict(list)
    for key, (entry, tensor) in after.items():
        if key not in before:
            added[entry.type, _digest(tensor)].append(entry)
    for key, (entry, tensor) in before.items():
        if key not in after:
            same_content = added[entry.type, _digest(tensor)]
            renamed = same_content.pop(0) if same_content else None
            kind = "renamed" if renamed else "removed"
            changes.append(TensorChange(entry.name, kind, entry, renamed))
        elif entry.type == after[key][0].type and _digest(tensor) == _digest(after[key][1]):
            same.append(entry)
        else:
            changes.append(TensorChange(entry.name, "changed", entry, after[key][0]))
    for entries in added.values():
        changes += [TensorChange(entry.name, "added", None, entry) for entry in entries]
    return same, changes


def _digest(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of a tensor's elements. Bytes in a file are read in blocks."""
    digest = hashlib.blake2b(digest_size=16)
    span = storage.span_of(tensor)
    if span is None:
        is_text = tensor.dtype == ir.DataType.STRING
        digest.update(repr(tensor.numpy().tolist()).encode() if is_text else tensor.tobytes())
        return digest.digest()
    stored = span.array()
    for start in range(0, span.length, _CHUNK):
        digest.update(stored[start : start + _CHUNK].data)
        # The pages of a mapped file occupy memory until they are released.
        span.file.release(span.offset + start, _CHUNK)
    return digest.digest()
