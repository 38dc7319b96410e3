"""From protobuf to the IR, with what onnx-ir itself would lose or refuse.

onnx-ir (1.1) has no place for sparse tensors, map and opaque types, training information, string
attributes that are not text, attributes without a type (IR version 1), and unknown fields. Before
the conversion each is replaced in the proto by a *stand-in* that onnx-ir carries through, an
otherwise impossible text that begins with a random token; afterwards the stand-ins are exchanged
for the real thing. `encode` goes the other way.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError, Message

from onnxfold.errors import ModelError
from onnxfold.graphs import all_graphs
from onnxfold.storage.checks import check_model, check_sparse, label
from onnxfold.storage.tensors import SparseTensor, stored_size
from onnxfold.storage.texts import mend_texts

# Keys in the ``meta`` of IR objects.
TYPE_KEY = "onnxfold.type_proto"  # of a value: serialized TypeProto that onnx-ir cannot represent
VALUE_INFO_KEY = "onnxfold.value_info"  # of an initializer's value: it had a value_info of its own
UNKNOWN_KEY = "onnxfold.unknown_fields"  # of a model, graph, node, function: their wire bytes
TRAINING_KEY = "onnxfold.training_info"  # of a model: list of serialized TrainingInfoProto
HAS_UNKNOWN_KEY = "onnxfold.has_unknown_fields"  # of a model: somewhere in it there is UNKNOWN_KEY
BARE_DOMAIN_KEY = "onnxfold.bare_domain"  # of a model: it does not write down the empty domain

_A = onnx.AttributeProto
# The field of an AttributeProto that holds the value of each type.
_VALUE_FIELDS = {
    "f": _A.FLOAT, "i": _A.INT, "s": _A.STRING, "t": _A.TENSOR, "g": _A.GRAPH,
    "sparse_tensor": _A.SPARSE_TENSOR, "tp": _A.TYPE_PROTO, "floats": _A.FLOATS, "ints": _A.INTS,
    "strings": _A.STRINGS, "tensors": _A.TENSORS, "graphs": _A.GRAPHS,
    "sparse_tensors": _A.SPARSE_TENSORS, "type_protos": _A.TYPE_PROTOS,
}  # fmt: skip


class StandIns:
    """Texts that stand for objects on their way through onnx-ir."""

    def __init__(self) -> None:
        self.token = "onnxfold:" + secrets.token_hex(12) + ":"
        self.objects: list[Any] = []
        self._prefix = self.token.encode()

    def add(self, obj: Any) -> str:
        """Return a new text for ``obj``."""
        self.objects.append(obj)
        return f"{self.token}{len(self.objects) - 1}"

    def index(self, text: bytes) -> int | None:
        """Return which object ``text`` stands for, None if it is just a text."""
        if text.startswith(self._prefix):
            number = text[len(self._prefix) :]
            if number.isdigit() and int(number) < len(self.objects):
                return int(number)
        return None

    def get(self, text: bytes) -> Any:
        """Return the object that ``text`` stands for, or None."""
        index = self.index(text)
        return None if index is None else self.objects[index]


def attribute_maps(model: ir.Model, graph: ir.Graph) -> Iterator[Any]:
    """Yield the attribute dictionaries of ``graph``; with the main graph those of functions too."""
    if graph is model.graph:
        for function in model.functions.values():
            yield function.attributes
    for node in graph:
        if node.attributes:
            yield node.attributes


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep onnx-ir from logging what is reported as an error here, or is none."""
    logger = logging.getLogger("onnx_ir.serde")

    def refuse(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)


def parse(skeleton: bytes, *, file: str | None) -> onnx.ModelProto:
    """Parse a serialized model without its large tensors.

    Raises:
        ModelError: It is not a ``ModelProto`` with a graph.
    """
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(skeleton)
    except DecodeError as error:
        raise ModelError(f"not an ONNX model ({error})", file=file) from None
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model (there is no graph in it)", file=file)
    mend_texts(proto, skeleton, file=file)
    return proto


def decode(
    skeleton: bytes,
    stand_ins: StandIns,
    tensor_of: Callable[[Any, onnx.TensorProto], ir.TensorProtocol],
    length_of: Callable[[Any], int],
    *,
    file: str | None,
) -> ir.Model:
    """Convert a serialized model.

    Args:
        skeleton: A serialized ``ModelProto`` in which the ``raw_data`` of some tensors are texts of
            ``stand_ins``.
        stand_ins: What those texts stand for.
        tensor_of: Makes the tensor from the object stood for and the proto around it.
        length_of: The number of bytes stood for.
        file: The path of the model, for errors.

    Raises:
        ModelError: The model is not valid.
    """
    proto = parse(skeleton, file=file)
    size = proto.ByteSize()
    proto.DiscardUnknownFields()
    has_unknown = proto.ByteSize() != size
    if has_unknown:
        proto = parse(skeleton, file=file)

    def length_behind(raw: bytes) -> int | None:
        index = stand_ins.index(raw)
        if index is None:
            return None
        obj = stand_ins.objects[index]
        if isinstance(obj, onnx.SparseTensorProto):
            return stored_size(ir.DataType(obj.values.data_type), obj.dims)
        return length_of(obj)

    try:
        _Prepare(stand_ins, file, has_unknown).model(proto)
        check_model(proto, file=file, stand_in=length_behind)
        with quiet():
            model = ir.serde.deserialize_model(proto)
        if proto.training_info:
            model.meta[TRAINING_KEY] = [info.SerializeToString() for info in proto.training_info]
        if has_unknown:
            model.meta[HAS_UNKNOWN_KEY] = True
        if not all(opset.HasField("domain") for opset in proto.opset_import):
            model.meta[BARE_DOMAIN_KEY] = True
        _Restore(stand_ins, tensor_of).model(model)
    except ModelError:
        raise
    except (
        ir.serde.SerdeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        # What onnx-ir raises for models that no check above foresaw.
        raise ModelError(_root_cause(error), file=file) from error
    return model


def _root_cause(error: BaseException) -> str:
    # The context too: onnx-ir's own error reporting fails for external tensors (a TypeError).
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = str(error) or type(error).__name__
    return text if len(text) <= 400 else text[:400] + "..."


class _Prepare:
    """Puts stand-ins into a proto for everything that onnx-ir has no place for."""

    def __init__(self, stand_ins: StandIns, file: str | None, has_unknown: bool) -> None:
        self.stand_ins = stand_ins
        self.file = file
        self.has_unknown = has_unknown

    def mark(self, proto: Any, key: str, obj: Any) -> None:
        proto.metadata_props.add(key=self.stand_ins.add((key, obj)))

    def unknown(self, proto: Any) -> None:
        if self.has_unknown and (wire := unknown_bytes(proto)):
            self.mark(proto, UNKNOWN_KEY, wire)

    def model(self, proto: onnx.ModelProto) -> None:
        self.unknown(proto)
        self.graph(proto.graph)
        for function in proto.functions:
            self.unknown(function)
            self.values(function.value_info)
            for attribute in function.attribute_proto:
                self.attribute(attribute, None)
            self.nodes(function.node)

    def graph(self, graph: onnx.GraphProto) -> None:
        self.unknown(graph)
        self.values(graph.input)
        self.values(graph.output)
        self.values(graph.value_info)
        if graph.value_info and graph.initializer:
            names = {tensor.name for tensor in graph.initializer}
            for info in graph.value_info:
                if info.name in names:
                    self.mark(info, VALUE_INFO_KEY, True)
        if graph.sparse_initializer:
            for sparse in graph.sparse_initializer:
                self.sparse(sparse, graph.initializer.add(), sparse.values.name)
            del graph.sparse_initializer[:]
        self.nodes(graph.node)

    def values(self, infos: Iterable[onnx.ValueInfoProto]) -> None:
        for info in infos:
            self.unknown(info)
            if info.HasField("type") and not _is_representable(info.type):
                self.mark(info, TYPE_KEY, info.type.SerializeToString())
                info.ClearField("type")

    def nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            self.unknown(node)
            for attribute in node.attribute:
                # The most frequent types first; they need nothing.
                if attribute.type not in (_A.INT, _A.INTS, _A.FLOAT, _A.TENSOR, _A.STRING):
                    self.attribute(attribute, node)

    def attribute(self, attribute: onnx.AttributeProto, node: onnx.NodeProto | None) -> None:
        if attribute.ref_attr_name:
            return
        if attribute.type == _A.UNDEFINED:
            filled = [f.name for f, _ in attribute.ListFields() if f.name in _VALUE_FIELDS]
            if len(filled) == 1:
                attribute.type = _VALUE_FIELDS[filled[0]]
        kind = attribute.type
        owner = label(node) if node is not None else attribute.name
        if kind == _A.GRAPH:
            self.graph(attribute.g)
        elif kind == _A.GRAPHS:
            for graph in attribute.graphs:
                self.graph(graph)
        elif kind == _A.STRINGS:
            try:
                for text in attribute.strings:
                    text.decode()
            except UnicodeDecodeError:
                attribute.s = self.stand_ins.add(list(attribute.strings)).encode()
                del attribute.strings[:]
                attribute.type = _A.STRING
        elif kind == _A.SPARSE_TENSOR:
            self.sparse(attribute.sparse_tensor, attribute.t, owner)
            attribute.ClearField("sparse_tensor")
            attribute.type = _A.TENSOR
            if node is not None and node.op_type == "Constant" and not node.domain:
                attribute.name = "value"
        elif kind == _A.SPARSE_TENSORS:
            for sparse in attribute.sparse_tensors:
                self.sparse(sparse, attribute.tensors.add(), owner)
            del attribute.sparse_tensors[:]
            attribute.type = _A.TENSORS
        elif kind in (_A.TYPE_PROTO, _A.TYPE_PROTOS):
            for type_proto in [attribute.tp] if kind == _A.TYPE_PROTO else attribute.type_protos:
                if not _is_representable(type_proto):
                    raise ModelError(
                        f"attribute {attribute.name!r} holds a type that is not supported",
                        file=self.file,
                        node=owner,
                    )

    def sparse(self, sparse: onnx.SparseTensorProto, dense: onnx.TensorProto, node: str) -> None:
        """Make ``dense`` the stand-in of ``sparse``."""
        check_sparse(sparse, file=self.file, node=node)
        kept = onnx.SparseTensorProto()
        kept.CopyFrom(sparse)
        dense.name = sparse.values.name
        dense.data_type = sparse.values.data_type
        dense.dims.extend(sparse.dims)
        dense.raw_data = self.stand_ins.add(kept).encode()


class _Restore:
    """Exchanges the stand-ins in an IR model for what they stand for."""

    def __init__(
        self,
        stand_ins: StandIns,
        tensor_of: Callable[[Any, onnx.TensorProto], ir.TensorProtocol],
    ) -> None:
        self.stand_ins = stand_ins
        self.tensor_of = tensor_of
        self.marked = any(isinstance(obj, tuple) and _is_mark(obj) for obj in stand_ins.objects)

    def model(self, model: ir.Model) -> None:
        if self.marked:
            self.unmark(model)
            for function in model.functions.values():
                self.unmark(function)
        for graph in all_graphs(model):
            self.graph(graph)
            for attributes in attribute_maps(model, graph):
                for name, attribute in list(attributes.items()):
                    if (changed := self.attribute(attribute)) is not None:
                        attributes[name] = changed

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = self.tensor(value.const_value)
        if self.marked:
            self.unmark(graph)
            for values in (graph.inputs, graph.outputs, graph.initializers.values()):
                for value in values:
                    self.unmark(value)
            for node in graph:
                self.unmark(node)
                for value in node.outputs:
                    self.unmark(value)

    def unmark(self, owner: Any) -> None:
        for key in list(owner.metadata_props):
            found = self.stand_ins.get(key.encode("utf-8", "surrogatepass"))
            if found is not None:
                del owner.metadata_props[key]
                owner.meta[found[0]] = found[1]

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.TensorProtoTensor):
            if isinstance(tensor, ir.ExternalTensor):
                return self.tensor_of(tensor, onnx.TensorProto())
            return tensor
        proto = tensor.raw
        obj = self.stand_ins.get(proto.raw_data)
        if obj is None:
            return tensor
        if isinstance(obj, onnx.SparseTensorProto):
            return SparseTensor(obj)
        return self.tensor_of(obj, proto)

    def attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        if attribute.is_ref():
            return None
        if attribute.type == ir.AttributeType.TENSOR:
            if (tensor := self.tensor(attribute.value)) is not attribute.value:
                return ir.AttrTensor(attribute.name, tensor, doc_string=attribute.doc_string)
        elif attribute.type == ir.AttributeType.TENSORS:
            tensors = [self.tensor(tensor) for tensor in attribute.value]
            return ir.AttrTensors(attribute.name, tensors, doc_string=attribute.doc_string)
        elif attribute.type == ir.AttributeType.STRING and isinstance(attribute.value, str):
            texts = self.stand_ins.get(attribute.value.encode("utf-8", "surrogatepass"))
            if texts is not None:
                return ir.Attr(
                    attribute.name,
                    ir.AttributeType.STRINGS,
                    texts,
                    doc_string=attribute.doc_string,
                )
        return None


def _is_mark(obj: tuple[Any, ...]) -> bool:
    return len(obj) == 2 and obj[0] in (TYPE_KEY, VALUE_INFO_KEY, UNKNOWN_KEY)


def _is_representable(proto: onnx.TypeProto) -> bool:
    """Whether onnx-ir carries the type through."""
    kind = proto.WhichOneof("value")
    if kind is None:
        return not proto.denotation
    if kind in ("tensor_type", "sparse_tensor_type"):
        try:
            ir.DataType(getattr(proto, kind).elem_type)
        except ValueError:
            return False
        return bool(getattr(proto, kind).HasField("elem_type"))
    if kind in ("sequence_type", "optional_type"):
        inner = getattr(proto, kind)
        return inner.HasField("elem_type") and (
            inner.elem_type.WhichOneof("value") is not None and _is_representable(inner.elem_type)
        )
    return False


def unknown_bytes(proto: Message) -> bytes:
    """Return the wire bytes of the fields of ``proto`` that this version of onnx does not know."""
    if not len(unknown_fields.UnknownFieldSet(proto)):
        return b""
    rest = type(proto)()
    rest.CopyFrom(proto)
    for field, _ in rest.ListFields():
        rest.ClearField(field.name)
    wire: bytes = rest.SerializeToString()
    return wire
