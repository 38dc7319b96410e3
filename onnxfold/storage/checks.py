"""What a model must fulfil before it is worth converting: names that resolve, sizes that add up.

All that is taken for granted of a model afterwards is seen to here, once: what raises an exception
of another kind later is a bug. Cheaper and more lenient than ``onnx.checker``: a model that
onnxruntime loads passes. Every failure is a `ModelError` with the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.errors import ExternalDataError, ModelError
from onnxfold.storage.calls import check_calls, opsets_of
from onnxfold.storage.signatures import objection
from onnxfold.storage.tensors import sparse_positions, stored_size

# Nothing addressable is larger; also keeps products of dims from growing without bound.
_MAX_BYTES = 1 << 62
# NumPy takes no more dimensions.
_MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
_T = onnx.TensorProto
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)

# Bits of an element that one entry of the typed field holds; (field, entries as elements * k / n).
TYPED_FIELDS: dict[int, tuple[str, int, int]] = {
    **dict.fromkeys(
        (
            _T.INT32, _T.INT16, _T.INT8, _T.UINT16, _T.UINT8, _T.BOOL, _T.FLOAT16, _T.BFLOAT16,
            _T.FLOAT8E4M3FN, _T.FLOAT8E4M3FNUZ, _T.FLOAT8E5M2, _T.FLOAT8E5M2FNUZ,
        ),
        ("int32_data", 1, 1),
    ),
    _T.INT4: ("int32_data", 1, 2),
    _T.UINT4: ("int32_data", 1, 2),
    _T.FLOAT: ("float_data", 1, 1),
    _T.COMPLEX64: ("float_data", 2, 1),
    _T.DOUBLE: ("double_data", 1, 1),
    _T.COMPLEX128: ("double_data", 2, 1),
    _T.INT64: ("int64_data", 1, 1),
    _T.UINT64: ("uint64_data", 1, 1),
    _T.UINT32: ("uint64_data", 1, 1),
    _T.STRING: ("string_data", 1, 1),
}  # fmt: skip
# Types of newer onnx releases.
for _name, _per_entry in {
    "FLOAT4E2M1": 2, "FLOAT8E8M0": 1, "INT2": 4, "UINT2": 4, "FLOAT6E2M3": 1, "FLOAT6E3M2": 1,
}.items():  # fmt: skip
    if hasattr(_T, _name):
        TYPED_FIELDS[getattr(_T, _name)] = ("int32_data", 1, _per_entry)


def check_model(
    proto: onnx.ModelProto, *, file: str | None, stand_in: Callable[[bytes], int | None]
) -> None:
    """Check names and sizes in the whole model.

    Args:
        proto: The model; sparse tensors are left to `check_sparse`.
        file: Its path, for the errors.
        stand_in: Gives the length in bytes of what a ``raw_data`` stands for, None if for itself.

    Raises:
        ModelError: Something refers to a value that does not exist, a value is defined twice, or
            the data of a tensor do not match its type and shape.
    """
    if proto.ir_version < 0:
        raise ModelError(f"there is no IR version {proto.ir_version}", file=file)
    opsets = opsets_of(proto.opset_import, file=file)
    if proto.ir_version < 3:
        opsets.setdefault("", 1)  # older than the list of imports
    check_calls(proto, file=file)
    check = _Check(file, stand_in)
    check.own = {(f.domain, f.name) for f in proto.functions}
    check.opsets = opsets
    check.graph(proto.graph, ())
    for function in proto.functions:
        own = opsets_of(function.opset_import, file=file, owner=function.name)
        check.opsets = {**opsets, **own}  # onnxruntime takes what is missing from the model
        check.function(function)


class _Scope(dict[str, int]):
    """The names of a graph, each with the place of the node that computes it; -1 for the others."""

    place = -1
    """Of the node that is looked at."""
    is_late = False
    """Whether a node reads what a later one, or it itself, computes."""

    def reads(self, name: str) -> bool:
        """Whether the name is one of this graph."""
        at = self.get(name)
        if at is None:
            return False
        if at >= self.place:
            self.is_late = True
        return True


Scopes = tuple[_Scope, ...]


def _hand_out(graph: onnx.GraphProto, output: onnx.ValueInfoProto, scopes: Scopes) -> None:
    """Put an Identity between a value of an outer graph and the subgraph's output that it is.

    Exporters write such outputs; neither onnx-ir nor onnxruntime takes them as they are.
    """
    name, count = f"{output.name}_identity", 1
    while any(name in scope for scope in scopes):
        name, count = f"{output.name}_identity_{count}", count + 1
    graph.node.add(op_type="Identity", input=[output.name], output=[name])
    output.name = name
    scopes[0][name] = -1


class _Check:
    def __init__(self, file: str | None, stand_in: Callable[[bytes], int | None]) -> None:
        self.file = file
        self.stand_in = stand_in
        self.opsets: Mapping[str, int] = {}
        self.own: set[tuple[str, str]] = set()
        """Domains and names of the model's functions, which no schema describes."""

    def error(self, reason: str, node: str | None = None) -> ModelError:
        return ModelError(reason, file=self.file, node=node)

    def graph(self, graph: onnx.GraphProto, outer: Scopes) -> None:
        names = _Scope()
        for value in graph.input:
            if value.name in names:
                raise self.error(f"input {value.name!r} is declared twice")
            names[value.name] = -1
        for tensor in graph.initializer:
            self.tensor(tensor, tensor.name, optional=False)
            names[tensor.name] = -1
        self.nodes(graph.node, names, outer)
        names.place = len(graph.node)
        for value in graph.output:
            if value.name in names:
                continue
            if any(scope.reads(value.name) for scope in outer):
                _hand_out(graph, value, (names, *outer))
                continue
            raise self.error(f"output {value.name!r} of graph {graph.name!r} is not computed")

    def function(self, function: onnx.FunctionProto) -> None:
        names = _Scope(dict.fromkeys(function.input, -1))
        for attribute in function.attribute_proto:
            self.attribute(attribute, function.name, ())
        self.nodes(function.node, names, ())
        for name in function.output:
            if name not in names:
                raise self.error(
                    f"output {name!r} of function {function.name!r} is not computed", function.name
                )

    def nodes(self, nodes: Sequence[onnx.NodeProto], names: _Scope, outer: Scopes) -> None:
        for place, node in enumerate(nodes):
            for name in node.output:
                if name:
                    if name in names:
                        raise self.error(
                            f"output {name!r} is already defined in this graph", label(node)
                        )
                    names[name] = place
        scopes = (names, *outer)
        for place, node in enumerate(nodes):
            names.place = place
            for name in node.input:
                # most names are of this very graph, and computed before
                if names.get(name, place) < place or not name:
                    continue
                if not any(scope.reads(name) for scope in scopes):
                    raise self.error(f"input {name!r} is not defined anywhere", label(node))
            if (node.domain, node.op_type) not in self.own:
                wrong = objection(node, self.opsets)
                if wrong is not None:
                    raise self.error(wrong, label(node))
            for attribute in node.attribute:
                if attribute.type != onnx.AttributeProto.INTS:
                    self.attribute(attribute, label(node), scopes)
        if names.is_late and (node_in_cycle := _cycle(nodes, names)) is not None:
            raise self.error("the node needs its own result", label(node_in_cycle))

    def attribute(self, attribute: onnx.AttributeProto, node: str, scopes: Scopes) -> None:
        if attribute.ref_attr_name:
            return
        kind = attribute.type
        if kind == onnx.AttributeProto.TENSOR:
            self.tensor(attribute.t, node, optional=True)
        elif kind == onnx.AttributeProto.GRAPH:
            self.graph(attribute.g, scopes)
        elif kind == onnx.AttributeProto.TENSORS:
            for tensor in attribute.tensors:
                self.tensor(tensor, node, optional=True)
        elif kind == onnx.AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                self.graph(graph, scopes)

    def size(self, dims: Iterable[int], dtype: ir.DataType, node: str) -> int:
        """Return the stored size in bytes of a tensor, which must be a sane number."""
        shape = list(dims)
        if len(shape) > _MAX_RANK:
            raise self.error(f"tensor of {len(shape)} dimensions, {_MAX_RANK} are possible", node)
        if any(dim < 0 for dim in shape):
            raise self.error(f"tensor has a negative dimension: {shape}", node)
        # NumPy counts so: it has no array of shape [0, 2**62, 2**62]
        if math.prod(dim for dim in shape if dim) > _MAX_BYTES:
            raise self.error(f"tensor of shape {shape} is larger than any memory", node)
        count = math.prod(shape)
        return count if dtype == ir.DataType.STRING else stored_size(dtype, shape)

    def tensor(self, tensor: onnx.TensorProto, node: str, *, optional: bool) -> None:
        if tensor.data_type == _T.UNDEFINED:
            if optional and not tensor.dims:
                return  # an attribute left empty, as custom operators do
            raise self.error("tensor without a data type", node)
        try:
            dtype = ir.DataType(tensor.data_type)
        except ValueError:
            raise self.error(f"tensor of unknown data type {tensor.data_type}", node) from None
        expected = self.size(tensor.dims, dtype, node)
        if tensor.data_location == _T.EXTERNAL:
            if dtype == ir.DataType.STRING:
                raise self.error("string tensor with external data", node)
            for entry in tensor.external_data:
                if entry.key in ("offset", "length") and not _is_size(entry.value):
                    said = f"external data {entry.key} {entry.value[:40]!r}"
                    raise ExternalDataError(
                        f"{said} is not a non-negative number", file=self.file, node=node
                    )
            return
        shape = list(tensor.dims)
        if tensor.HasField("raw_data"):
            if dtype == ir.DataType.STRING:
                raise self.error("string tensor with raw data", node)
            raw = tensor.raw_data
            length = self.stand_in(raw)
            length = len(raw) if length is None else length
            if length != expected:
                raise self.error(
                    f"tensor of type {dtype} and shape {shape} takes {expected} bytes, "
                    f"has {length}",
                    node,
                )
            return
        field, times, per_entry = TYPED_FIELDS[tensor.data_type]
        count = 0 if 0 in shape else math.prod(shape)
        entries = -(-count * times // per_entry)
        length = len(getattr(tensor, field))
        if length != entries:
            raise self.error(
                f"tensor of type {dtype} and shape {shape} takes {entries} entries in {field}, "
                f"has {length}",
                node,
            )


def _cycle(nodes: Sequence[onnx.NodeProto], names: Mapping[str, int]) -> onnx.NodeProto | None:
    """A node that needs its own result, through others or its subgraphs; None if all can run."""
    waits = [{names[name] for name in _reads(node) if names.get(name, -1) >= 0} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for place, needed in enumerate(waits):
        for other in needed:
            users[other].append(place)
    counts = [len(needed) for needed in waits]
    ready = [place for place, count in enumerate(counts) if not count]
    while ready:
        for user in users[ready.pop()]:
            counts[user] -= 1
            if not counts[user]:
                ready.append(user)
    stuck = [place for place, count in enumerate(counts) if count]
    if not stuck:
        return None
    place = stuck[0]
    passed: set[int] = set()
    while place not in passed:  # from what waits for a cycle into it
        passed.add(place)
        place = next(other for other in waits[place] if counts[other])
    return nodes[place]


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads where it stands, also those that its subgraphs capture."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
            own = {value.name for value in graph.input}
            own.update(tensor.name for tensor in graph.initializer)
            own.update(name for inner in graph.node for name in inner.output)
            inside = (name for inner in graph.node for name in _reads(inner))
            yield from (name for name in inside if name not in own)
            yield from (value.name for value in graph.output if value.name not in own)


def check_sparse(sparse: onnx.SparseTensorProto, *, file: str | None, node: str) -> None:
    """Check sizes and indices of a sparse tensor.

    Raises:
        ModelError: They do not fit together.
    """
    check = _Check(file, lambda raw: None)
    check.tensor(sparse.values, node, optional=False)
    check.tensor(sparse.indices, node, optional=False)
    if _T.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise check.error("sparse tensor with external data", node)
    if sparse.indices.data_type != _T.INT64 or len(sparse.values.dims) != 1:
        raise check.error("sparse tensor needs values of rank 1 and int64 indices", node)
    check.size(sparse.dims, ir.DataType(sparse.values.data_type), node)
    try:
        sparse_positions(sparse)
    except ValueError as error:
        raise check.error(str(error), node) from None


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40


def label(node: onnx.NodeProto) -> str:
    """Return what to call ``node`` in a message: its name, or its operator and first output."""
    if node.name:
        return node.name
    return f"{node.op_type} -> {node.output[0]}" if node.output else node.op_type
