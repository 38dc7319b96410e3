"""From the IR to protobuf: with what `decode` kept aside, without the bytes of large tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
from onnx_ir import _core

from onnxfold.errors import ModelError
from onnxfold.graphs import all_graphs
from onnxfold.storage.decode import (
    BARE_DOMAIN_KEY,
    HAS_UNKNOWN_KEY,
    TRAINING_KEY,
    TYPE_KEY,
    UNKNOWN_KEY,
    VALUE_INFO_KEY,
    StandIns,
    attribute_maps,
    quiet,
)
from onnxfold.storage.tensors import SparseTensor
from onnxfold.storage.varints import as_varints

_A = onnx.AttributeProto


class Slot(NamedTuple):
    """A tensor whose bytes were left out, and where it belongs."""

    tensor: ir.TensorProtocol
    is_attribute: bool


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Convert a model to protobuf, all of it in memory.

    External tensors stay references: they are valid in the folder the model came from.

    Raises:
        ModelError: The model cannot be expressed, for example a value without a name.
    """
    return encode(model, StandIns(), lambda tensor, is_attribute: False, lambda slot, proto: None)


def encode(
    model: ir.Model,
    stand_ins: StandIns,
    select: Callable[[ir.TensorProtocol, bool], bool],
    place: Callable[[Slot, onnx.TensorProto], None],
) -> onnx.ModelProto:
    """Convert a model, leaving out the bytes of some tensors. The model is unchanged afterwards.

    Args:
        model: The model.
        stand_ins: Gives the texts that take the place of the bytes left out.
        select: Given a tensor and whether it is in an attribute: shall its bytes be left out?
        place: Called for each such tensor with the proto in which ``raw_data`` is the stand-in.

    Raises:
        ModelError: See `to_proto`.
    """
    exchange = _Exchange(stand_ins, select)
    try:
        exchange.model(model)
        with quiet():
            proto = ir.serde.serialize_model(model)
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"the model cannot be serialized: {cause}") from error
    finally:
        exchange.undo()
    _Finish(stand_ins, place).model(proto)
    if model.meta.get(BARE_DOMAIN_KEY):
        for owner in (proto, *proto.functions):
            _leave_out_default_domain(owner.opset_import)
    for wire in model.meta.get(TRAINING_KEY, ()):
        proto.training_info.add().ParseFromString(wire)
    return proto


class _StandInTensor(_core.TensorBase):
    """Has the type and shape of a tensor, and a text for its bytes."""

    __slots__ = ("_dtype", "_shape", "_text")

    def __init__(self, tensor: ir.TensorProtocol, text: str) -> None:
        super().__init__(
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props) or None,
        )
        self._dtype = tensor.dtype
        self._shape = tensor.shape
        self._text = text.encode()

    @property
    def dtype(self) -> ir.DataType:  # type: ignore[override]
        return self._dtype

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return self._shape

    @property
    def raw(self) -> bytes:
        return self._text

    def numpy(self) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise NotImplementedError

    def __dlpack__(self, *, stream: Any = None) -> Any:
        raise NotImplementedError

    def __dlpack_device__(self) -> Any:
        raise NotImplementedError

    def tobytes(self) -> bytes:
        return self._text


class _Exchange:
    """Puts stand-ins into an IR model, and takes them out again."""

    def __init__(
        self, stand_ins: StandIns, select: Callable[[ir.TensorProtocol, bool], bool]
    ) -> None:
        self.stand_ins = stand_ins
        self.select = select
        self.undos: list[Callable[[], None]] = []

    def undo(self) -> None:
        while self.undos:
            self.undos.pop()()

    def set(self, owner: Any, name: str, value: Any) -> None:
        old = getattr(owner, name)
        self.undos.append(lambda: setattr(owner, name, old))
        setattr(owner, name, value)

    def mark(self, owner: Any, key: str, obj: Any) -> None:
        text = self.stand_ins.add((key, obj))
        self.undos.append(lambda: owner.metadata_props.pop(text, None))
        owner.metadata_props[text] = ""

    def model(self, model: ir.Model) -> None:
        has_unknown = bool(model.meta.get(HAS_UNKNOWN_KEY))
        if has_unknown:
            self.unknown(model)
        for graph in all_graphs(model):
            self.graph(graph)
            if has_unknown:
                self.unknown(graph)  # the graph of a function has the properties of the function
                for node in graph:
                    self.unknown(node)
            for attributes in attribute_maps(model, graph):
                for name, attribute in list(attributes.items()):
                    if (changed := self.attribute(attribute)) is not None:
                        self.undos.append(
                            lambda owner=attributes, name=name, old=attribute: (  # type: ignore[misc]
                                owner.__setitem__(name, old)
                            )
                        )
                        attributes[name] = changed

    def unknown(self, owner: Any) -> None:
        if wire := owner.meta.get(UNKNOWN_KEY):
            self.mark(owner, UNKNOWN_KEY, wire)

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None:
                continue
            self.initializer(value, tensor)
        for values in (graph.inputs, graph.outputs):
            for value in values:
                if value.type is None:
                    self.foreign_type(value)
        for node in graph:
            for value in node.outputs:
                if value.type is None:
                    self.foreign_type(value)

    def foreign_type(self, value: ir.Value) -> None:
        if (wire := value.meta.get(TYPE_KEY)) is not None:
            self.mark(value, TYPE_KEY, wire)

    def initializer(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        # onnx-ir writes a value_info for every initializer; it says nothing that the tensor does
        # not say, unless the file had one or somebody wrote something into it.
        if (
            not value.meta.get(VALUE_INFO_KEY)
            and not value.is_graph_input()
            and not value.is_graph_output()
            and not value.metadata_props
            and not value.doc_string
            and (value.type is None or value.type == ir.TensorType(tensor.dtype))
            and (value.shape is None or tuple(value.shape) == tuple(tensor.shape))
        ):
            self.set(value, "type", None)
            self.set(value, "shape", None)
        stand_in = self.tensor(tensor, is_attribute=False)
        if stand_in is not None:
            self.set(value, "const_value", stand_in)
        elif tensor.name != value.name:
            self.set(tensor, "name", value.name)

    def tensor(
        self, tensor: ir.TensorProtocol, *, is_attribute: bool
    ) -> _StandInTensor | ir.TensorProtoTensor | None:
        if isinstance(tensor, SparseTensor):
            return _StandInTensor(tensor, self.stand_ins.add(tensor.proto))
        if (short := as_varints(tensor)) is not None:
            return short
        if self.select(tensor, is_attribute):
            return _StandInTensor(tensor, self.stand_ins.add(Slot(tensor, is_attribute)))
        return None

    def attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        if attribute.value is None or attribute.is_ref():
            return None
        name, doc_string = attribute.name, attribute.doc_string
        if attribute.type == ir.AttributeType.TENSOR:
            if (stand_in := self.tensor(attribute.value, is_attribute=True)) is not None:
                return ir.AttrTensor(name, stand_in, doc_string=doc_string)
        elif attribute.type == ir.AttributeType.TENSORS:
            sparse = [isinstance(tensor, SparseTensor) for tensor in attribute.value]
            if any(sparse) and not all(sparse):
                return None  # a mixture can only be written dense
            stand_ins = [self.tensor(tensor, is_attribute=True) for tensor in attribute.value]
            tensors = [new or old for new, old in zip(stand_ins, attribute.value, strict=True)]
            return ir.AttrTensors(name, tensors, doc_string=doc_string)
        elif attribute.type == ir.AttributeType.STRINGS and any(
            isinstance(text, bytes) for text in attribute.value
        ):
            texts = [t if isinstance(t, bytes) else t.encode() for t in attribute.value]
            return ir.AttrString(name, self.stand_ins.add(texts), doc_string=doc_string)
        return None


class _Finish:
    """Exchanges the stand-ins in a proto for what they stand for, but for the bytes left out."""

    def __init__(
        self, stand_ins: StandIns, place: Callable[[Slot, onnx.TensorProto], None]
    ) -> None:
        self.stand_ins = stand_ins
        self.place = place
        self.marked = any(
            isinstance(obj, tuple) and not isinstance(obj, Slot) for obj in stand_ins.objects
        )

    def model(self, proto: onnx.ModelProto) -> None:
        self.graph(proto.graph)
        for function in proto.functions:
            self.values(function.value_info)
            self.unmark(function)
            self.attributes(function.attribute_proto, None)
            self.nodes(function.node)
        self.unmark(proto)

    def graph(self, graph: onnx.GraphProto) -> None:
        sparse = []
        for index, tensor in enumerate(graph.initializer):
            if (found := self.tensor(tensor)) is not None:
                new = graph.sparse_initializer.add()
                new.CopyFrom(found)
                new.values.name = tensor.name
                sparse.append(index)
        for index in reversed(sparse):
            del graph.initializer[index]
        self.values(graph.input)
        self.values(graph.output)
        self.values(graph.value_info)
        # onnx-ir writes one for initializers that are outputs; outputs say it themselves.
        outputs = {info.name for info in graph.output}
        for index in reversed(range(len(graph.value_info))):
            if graph.value_info[index].name in outputs:
                del graph.value_info[index]
        self.unmark(graph)
        self.annotations(graph)
        self.nodes(graph.node)

    def annotations(self, graph: onnx.GraphProto) -> None:
        """Remove annotations that onnx-ir wrote twice (of values that are input and output)."""
        seen: set[str] = set()
        for index in reversed(range(len(graph.quantization_annotation))):
            name = graph.quantization_annotation[index].tensor_name
            if name in seen:
                del graph.quantization_annotation[index]
            seen.add(name)

    def nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            if self.marked:
                self.unmark(node)
            if node.attribute:
                self.attributes(node.attribute, node)

    def attributes(
        self, attributes: Iterable[onnx.AttributeProto], node: onnx.NodeProto | None
    ) -> None:
        for attribute in attributes:
            kind = attribute.type
            if kind in (_A.INT, _A.INTS, _A.FLOAT) or attribute.ref_attr_name:
                continue
            if kind == _A.TENSOR:
                if (found := self.tensor(attribute.t)) is not None:
                    attribute.ClearField("t")
                    attribute.sparse_tensor.CopyFrom(found)
                    attribute.type = _A.SPARSE_TENSOR
                    if node is not None and node.op_type == "Constant" and not node.domain:
                        attribute.name = "sparse_value"
            elif kind == _A.TENSORS:
                sparse = [found for t in attribute.tensors if (found := self.tensor(t)) is not None]
                if sparse:
                    del attribute.tensors[:]
                    attribute.sparse_tensors.extend(sparse)
                    attribute.type = _A.SPARSE_TENSORS
            elif kind == _A.GRAPH:
                self.graph(attribute.g)
            elif kind == _A.GRAPHS:
                for graph in attribute.graphs:
                    self.graph(graph)
            elif kind == _A.STRING and (texts := self.stand_ins.get(attribute.s)) is not None:
                attribute.ClearField("s")
                attribute.strings.extend(texts)
                attribute.type = _A.STRINGS

    def values(self, infos: Iterable[onnx.ValueInfoProto]) -> None:
        if self.marked:
            for info in infos:
                self.unmark(info)

    def unmark(self, proto: Any) -> None:
        if not self.marked:
            return
        for index in reversed(range(len(proto.metadata_props))):
            found = self.stand_ins.get(proto.metadata_props[index].key.encode())
            if found is None:
                continue
            del proto.metadata_props[index]
            key, wire = found
            if key == TYPE_KEY:
                proto.type.ParseFromString(wire)
            elif key == UNKNOWN_KEY:
                proto.MergeFromString(wire)

    def tensor(self, tensor: onnx.TensorProto) -> onnx.SparseTensorProto | None:
        """Place a tensor; return the sparse one if it stands for such."""
        if len(tensor.metadata_props) > 1:
            self.unrepeat(tensor)
        found = self.stand_ins.get(tensor.raw_data)
        if isinstance(found, Slot):
            self.place(found, tensor)
        elif found is not None:
            sparse: onnx.SparseTensorProto = found
            return sparse
        return None

    def unrepeat(self, tensor: onnx.TensorProto) -> None:
        """Remove entries that onnx-ir writes twice for the tensors it did not convert."""
        entries = {entry.key: entry.value for entry in tensor.metadata_props}
        if len(entries) != len(tensor.metadata_props):
            del tensor.metadata_props[:]
            for key, value in entries.items():
                tensor.metadata_props.add(key=key, value=value)


def _leave_out_default_domain(opsets: Iterable[onnx.OperatorSetIdProto]) -> None:
    """An empty domain is the default. onnx-ir writes it down: the file would grow by two bytes."""
    for opset in opsets:
        if not opset.domain:
            opset.ClearField("domain")
