"""What a model must fulfil before it is worth converting: names that resolve, sizes that add up.

Cheaper and more lenient than ``onnx.checker``: a model that onnxruntime loads passes. Every failure
is a `ModelError` with the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir

from onnxfold.errors import ExternalDataError, ModelError
from onnxfold.storage.tensors import sparse_positions, stored_size

# Nothing addressable is larger; also keeps products of dims from growing without bound.
_MAX_BYTES = 1 << 62
_T = onnx.TensorProto

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
    check = _Check(file, stand_in)
    check.graph(proto.graph, ())
    for function in proto.functions:
        check.function(function)


def _hand_out(
    graph: onnx.GraphProto, output: onnx.ValueInfoProto, scopes: tuple[set[str], ...]
) -> None:
    """Put an Identity between a value of an outer graph and the subgraph's output that it is.

    Exporters write such outputs; neither onnx-ir nor onnxruntime takes them as they are.
    """
    name, count = f"{output.name}_identity", 1
    while any(name in scope for scope in scopes):
        name, count = f"{output.name}_identity_{count}", count + 1
    graph.node.add(op_type="Identity", input=[output.name], output=[name])
    output.name = name
    scopes[0].add(name)


class _Check:
    def __init__(self, file: str | None, stand_in: Callable[[bytes], int | None]) -> None:
        self.file = file
        self.stand_in = stand_in

    def error(self, reason: str, node: str | None = None) -> ModelError:
        return ModelError(reason, file=self.file, node=node)

    def graph(self, graph: onnx.GraphProto, outer: tuple[set[str], ...]) -> None:
        names: set[str] = set()
        for value in graph.input:
            if value.name in names:
                raise self.error(f"input {value.name!r} is declared twice")
            names.add(value.name)
        for tensor in graph.initializer:
            self.tensor(tensor, tensor.name, optional=False)
            names.add(tensor.name)
        self.nodes(graph.node, names, outer)
        for value in graph.output:
            if value.name in names:
                continue
            if any(value.name in scope for scope in outer):
                _hand_out(graph, value, (names, *outer))
                continue
            raise self.error(f"output {value.name!r} of graph {graph.name!r} is not computed")

    def function(self, function: onnx.FunctionProto) -> None:
        names = set(function.input)
        for attribute in function.attribute_proto:
            self.attribute(attribute, function.name, ())
        self.nodes(function.node, names, ())
        for name in function.output:
            if name not in names:
                raise self.error(
                    f"output {name!r} of function {function.name!r} is not computed", function.name
                )

    def nodes(
        self, nodes: Iterable[onnx.NodeProto], names: set[str], outer: tuple[set[str], ...]
    ) -> None:
        for node in nodes:
            for name in node.output:
                if name:
                    if name in names:
                        raise self.error(
                            f"output {name!r} is already defined in this graph", label(node)
                        )
                    names.add(name)
        scopes = (names, *outer)
        for node in nodes:
            for name in node.input:
                if name and name not in names and not any(name in scope for scope in outer):
                    raise self.error(f"input {name!r} is not defined anywhere", label(node))
            for attribute in node.attribute:
                if attribute.type != onnx.AttributeProto.INTS:
                    self.attribute(attribute, label(node), scopes)

    def attribute(
        self, attribute: onnx.AttributeProto, node: str, scopes: tuple[set[str], ...]
    ) -> None:
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
        if any(dim < 0 for dim in shape):
            raise self.error(f"tensor has a negative dimension: {shape}", node)
        count = 0 if 0 in shape else math.prod(shape)
        if count > _MAX_BYTES:
            raise self.error(f"tensor of shape {shape} is larger than any memory", node)
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
                    raise ExternalDataError(
                        f"external data {entry.key} {entry.value!r} is not a non-negative number",
                        file=self.file,
                        node=node,
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
