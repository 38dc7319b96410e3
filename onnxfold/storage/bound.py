"""How many bytes a model and its parts take in a file, told without writing it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.graphs import all_graphs
from onnxfold.onnx_ir_private import entries_of, is_a, nodes_of, noted
from onnxfold.storage.decode import BARE_DOMAIN_KEY, VALUE_INFO_KEY
from onnxfold.storage.layout import EXTERNAL_FROM, aligned, plan_external, plan_single
from onnxfold.storage.load import BYTES_KEY, EXTERNAL_KEY
from onnxfold.storage.size import data_bytes, sizes_of
from onnxfold.storage.tensors import SparseTensor
from onnxfold.storage.varints import as_varints, varint_bytes

_A = ir.AttributeType

_TAG = 1
_NUMBER = 10
"""No integer takes more; a float takes 4."""
_PLACE = 96
"""What says where in a data file a tensor is."""
_MEASURED = 4096
"""Bytes of elements up to which the protobuf library may be asked, which writes them for it."""


def most_bytes(model: ir.Model) -> int:
    """Bytes of a model without its ``value_info``: as many, or where it has functions a few more.

    Of a model with a data file, without what aligns the tensors in it. Nothing is read or computed
    but strings and small integers. Much cheaper than :func:`planned_bytes`.
    """
    total = _message(_graph_bytes(model.graph)) + _entries(model.metadata_props)
    total += _texts(model.doc_string, model.producer_name, model.producer_version, model.domain)
    for number in (model.ir_version, model.model_version):
        total += _TAG + varint_bytes(number) if number else 0
    empty = 0 if model.meta.get(BARE_DOMAIN_KEY) else 2 * _TAG
    for domain, version in model.opset_imports.items():
        total += _message((_texts(domain) or empty) + _TAG + varint_bytes(version))
    for function in model.functions.values():
        total += _texts(function.domain, function.name, function.overload) + 2 * _NUMBER
        total += sum(_message(_texts(d) + _NUMBER) for d in function.opset_imports)
        total += sum(map(_attribute_bytes, function.attributes.values()))
        total += _graph_bytes(function.graph)
    return total


def _graph_bytes(graph: ir.Graph) -> int:
    total = _texts(graph.name, graph.doc_string) + _entries(graph.metadata_props, 2 * _TAG)
    for node in nodes_of(graph):
        total += node_bytes(node, bodies=True)
    for value in graph.initializers.values():
        total += tensor_bytes(value.const_value, value.name)
        if entries_of(value) or noted(value, VALUE_INFO_KEY):
            total += entry_bytes(value, value.shape)
    return total + sum(entry_bytes(v, v.shape) for v in (*graph.inputs, *graph.outputs))


def model_bytes(model: ir.Model) -> int:
    """Return the length in bytes of the files that ``model`` was loaded from.

    Of a model that was given in memory, what it took serialized.
    """
    return int(model.meta[BYTES_KEY])


def planned_bytes(model: ir.Model) -> int:
    """Return the length in bytes of the files that saving ``model`` would write.

    Exact, from types and shapes alone: only tensors below a few KiB are read.

    Raises:
        ModelError: The model cannot be serialized.
    """
    if not model.meta.get(EXTERNAL_KEY):
        try:
            return plan_single(model).model("").size
        except UsageError:  # too large for one file
            pass
    plan = plan_external(model, lambda span: None)
    return plan.model("").size + (plan.data.size if plan.data is not None else 0)


def takes_more(model: ir.Model, size: int, bare: int) -> bool:
    """Return whether the files that saving ``model`` would write are longer than ``size`` bytes.

    Args:
        model: The model.
        size: That many bytes.
        bare: What `most_bytes` says of the model.
    """
    described = (
        entry_bytes(value, value.shape)
        for graph in all_graphs(model)
        for node in nodes_of(graph)
        for value in node.outputs
        if value.type is not None and not value.is_graph_output()  # those are counted
    )
    return bare + sum(described) > size and planned_bytes(model) > size


def node_bytes(node: ir.Node, bodies: bool = False) -> int:
    """Bytes of a node, without its subgraphs or with them."""
    names = ["" if value is None else value.name for value in (*node.inputs, *node.outputs)]
    total = 2 * _TAG * names.count("")  # what is left out has an empty name
    total += _texts(node.name, node.op_type, node.domain, node.overload, node.doc_string, *names)
    if entries := entries_of(node):
        total += _entries(entries)
    for attribute in node.attributes.data.values():
        total += _attribute_bytes(attribute, bodies)
    return _message(total)


def entry_bytes(value: ir.Value, shape: ir.Shape | None) -> int:
    """Bytes of what says the type and shape of a value."""
    total = 0
    for dim in shape or ():
        total += _message(_TAG + varint_bytes(dim) if isinstance(dim, int) else _texts(dim.value))
    total = _message(_message(total) + 2 * _TAG)
    kind = value.type
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        total, kind = _message(_message(total)), kind.elem_type
    total = _message(total)
    return _message(total + _texts(value.name, value.doc_string) + _entries(entries_of(value)))


def _attribute_bytes(attribute: ir.Attr, bodies: bool = True) -> int:
    value, kind = attribute.value, attribute.type
    total = _texts(attribute.name, attribute.doc_string) + 3 * _TAG  # its type has a longer tag
    if attribute.is_ref() or value is None:
        total += _TAG + _texts(attribute.ref_attr_name)
    elif kind is _A.INT:
        total += _TAG + varint_bytes(value)
    elif kind is _A.TENSOR:
        total += tensor_bytes(value, value.name)
    elif kind is _A.INTS:
        total += sum([_TAG + varint_bytes(v) for v in value])
    elif kind is _A.FLOAT:
        total += _TAG + 4
    elif kind is _A.STRING:
        total += _message(len(value.encode() if isinstance(value, str) else value))
    elif kind is _A.FLOATS:
        total += (_TAG + 4) * len(value)
    elif kind is _A.STRINGS:
        total += sum(_message(len(t.encode() if isinstance(t, str) else t)) for t in value)
    elif kind is _A.TENSORS:
        total += sum(tensor_bytes(tensor, tensor.name) for tensor in value)
    elif kind is _A.GRAPH or kind is _A.GRAPHS:
        graphs = (value,) if kind is _A.GRAPH else value
        total += sum(_message(_graph_bytes(graph)) for graph in graphs) if bodies else 0
    else:
        return _message(ir.serde.serialize_attribute(attribute).ByteSize())
    return _message(total)


def tensor_bytes(tensor: ir.TensorProtocol | None, name: str | None, external: bool = False) -> int:
    """Bytes of a tensor of a model; strings are read, and small integers.

    Args:
        tensor: The tensor; None takes no bytes.
        name: Of the initializer.
        external: Whether the model has a data file.
    """
    if tensor is None:
        return 0
    typed = tensor if is_a(tensor, ir.TensorProtoTensor) else as_varints(tensor)
    if typed is not None:
        proto = typed.raw
        # in a typed field each number takes another length
        if (not external and 16 * math.prod(proto.dims) <= _MEASURED) or not proto.HasField(
            "raw_data"
        ):
            return _message(int(proto.ByteSize()) - _texts(proto.name) + _texts(name))
    about = _texts(tensor.doc_string) + _entries(tensor.metadata_props, 2 * _TAG)
    if is_a(tensor, SparseTensor):
        return _message(_texts(name) + about + tensor.proto.ByteSize())
    sizes = sizes_of(tensor)
    if tensor.dtype == ir.DataType.STRING:
        return about + record_bytes(name, sizes, texts_bytes(tensor.numpy().ravel()))
    return about + record_bytes(name, sizes, data_bytes(tensor.dtype, sizes), external)


def record_bytes(name: str | None, sizes: Sequence[int], data: int, external: bool = False) -> int:
    """Bytes of a tensor that is nothing but its elements.

    Args:
        name: Its name.
        sizes: Its shape.
        data: Bytes of the elements.
        external: Whether the model has a data file.
    """
    total = 2 * _TAG + sum(_TAG + varint_bytes(d) for d in sizes) + _texts(name)
    if external and data >= EXTERNAL_FROM:
        return _message(total + _PLACE) + aligned(data, data)
    return _message(total + _message(data))


def texts_bytes(texts: Collection[str | bytes]) -> int:
    """Bytes of the elements of a tensor of strings."""
    try:  # without a line of Python for each: there may be millions
        lengths = Counter(map(bytes.__len__, texts))  # type: ignore[arg-type]
    except TypeError:
        lengths = Counter(len(t if isinstance(t, bytes) else str(t).encode()) for t in texts)
    return sum(count * _message(length) for length, count in lengths.items())


def _entries(texts: Mapping[str, str] | None, tag: int = _TAG) -> int:
    if not texts:
        return 0
    return sum([_message(_texts(key, text)) + tag - _TAG for key, text in texts.items()])


def _texts(*texts: str | None) -> int:
    total = 0
    for text in texts:
        if text:
            total += _message(len(text) if text.isascii() else len(text.encode()))
    return total


def _message(length: int) -> int:
    """With its tag and its length."""
    if length < 1 << 14:
        return length + _TAG + (1 if length < 1 << 7 else 2)
    return length + _TAG + varint_bytes(length)
