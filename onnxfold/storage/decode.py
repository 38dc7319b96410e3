"""From protobuf to the IR: one walk that checks a model and makes its values and nodes.

onnx-ir makes types, shapes and small tensors. The walk over graphs is done here: names are resolved
and checked at once (onnx-ir makes up a value for a name that nobody defines), large tensors stay
where they are, and what onnx-ir (1.1) has no place for is kept in ``meta``, from where `encode`
writes it: map and opaque types, training information, and fields that this version of onnx does not
know. Sparse tensors become `SparseTensor`, texts that are not UTF-8 stay bytes, and attributes
without a type (IR version 1) get theirs.
"""

from __future__ import annotations

import dataclasses
import graphlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf import unknown_fields
from google.protobuf.message import DecodeError, Message

from onnxfold.errors import ModelError
from onnxfold.graphs import subgraphs_of
from onnxfold.storage.calls import check_calls, opsets_of
from onnxfold.storage.checks import DTYPES, check_sparse, check_tensor, label
from onnxfold.storage.mapped import Span
from onnxfold.storage.signatures import objection
from onnxfold.storage.tensors import FileTensor, SparseTensor, ViewTensor
from onnxfold.storage.texts import mend_texts
from onnxfold.storage.wire import StandIns

# Keys in the ``meta`` of IR objects.
TYPE_KEY = "onnxfold.type_proto"  # of a value: serialized TypeProto that onnx-ir cannot represent
VALUE_INFO_KEY = "onnxfold.value_info"  # of an initializer's value: it had a value_info of its own
UNKNOWN_KEY = "onnxfold.unknown_fields"  # of all but tensors and attributes: their wire bytes
TRAINING_KEY = "onnxfold.training_info"  # of a model: list of serialized TrainingInfoProto
HAS_UNKNOWN_KEY = "onnxfold.has_unknown_fields"  # of a model: somewhere in it there is UNKNOWN_KEY
BARE_DOMAIN_KEY = "onnxfold.bare_domain"  # of a model: it does not write down the empty domain
QUANTIZATION_KEY = "quant_parameter_tensor_names"  # of a value: onnx-ir's key for its annotation

_A = onnx.AttributeProto
# Attributes that are numbers, the most frequent ones, with the field that holds them.
_NUMBERS = {
    _A.INT: ("i", ir.AttributeType.INT),
    _A.INTS: ("ints", ir.AttributeType.INTS),
    _A.FLOAT: ("f", ir.AttributeType.FLOAT),
    _A.FLOATS: ("floats", ir.AttributeType.FLOATS),
}
_TYPES = {kind.value: kind for kind in ir.AttributeType}
# The field of an AttributeProto that holds the value of each type.
_VALUE_FIELDS = {
    "f": _A.FLOAT, "i": _A.INT, "s": _A.STRING, "t": _A.TENSOR, "g": _A.GRAPH,
    "sparse_tensor": _A.SPARSE_TENSOR, "tp": _A.TYPE_PROTO, "floats": _A.FLOATS, "ints": _A.INTS,
    "strings": _A.STRINGS, "tensors": _A.TENSORS, "graphs": _A.GRAPHS,
    "sparse_tensors": _A.SPARSE_TENSORS, "type_protos": _A.TYPE_PROTOS,
}  # fmt: skip
# Until this version, the value_info of functions is in that of the main graph; the names there are
# "domain::function/value".
LAST_WITHOUT_FUNCTION_INFO = 9


def parse(skeleton: bytes) -> onnx.ModelProto:
    """Parse a serialized model without its large tensors.

    Raises:
        ModelError: It is not a ``ModelProto`` with a graph.
    """
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(skeleton)
    except DecodeError as error:
        raise ModelError(f"not an ONNX model ({error})") from None
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model (there is no graph in it)")
    mend_texts(proto, skeleton)
    return proto


def decode(
    skeleton: bytes,
    stand_ins: StandIns,
    external: Callable[[ir.ExternalTensor], ir.TensorProtocol],
) -> ir.Model:
    """Convert a serialized model.

    Args:
        skeleton: A serialized ``ModelProto`` in which the ``raw_data`` of some tensors are texts of
            ``stand_ins``.
        stand_ins: What those texts stand for: spans, or arrays of bytes.
        external: Gives the tensor for one whose data are in another file.

    Raises:
        ModelError: The model is not valid.
    """
    proto = parse(skeleton)
    proto.DiscardUnknownFields()
    has_unknown = False
    if proto.SerializeToString() != skeleton:  # it may just be written in another way
        known = proto.ByteSize()
        proto = parse(skeleton)
        has_unknown = proto.ByteSize() != known
    try:
        return _Reader(proto, has_unknown, stand_ins, external).model()
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
        # What onnx-ir raises for models that no check foresaw.
        raise ModelError(_root_cause(error)) from error


def _root_cause(error: BaseException) -> str:
    # The context too: onnx-ir's own error reporting fails for external tensors (a TypeError).
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    text = str(error) or type(error).__name__
    return text if len(text) <= 400 else text[:400] + "..."


class _Scope:
    """The names of one graph or function.

    Attributes:
        values: What is known by name so far: inputs, initializers, results of the nodes read.
        infos: What the graph says of values, by name.
        awaited: Names that were read before the node that computes them.
    """

    def __init__(
        self, nodes: Sequence[onnx.NodeProto], infos: Iterable[onnx.ValueInfoProto]
    ) -> None:
        self.values: dict[str, ir.Value] = {}
        self.infos = {info.name: info for info in infos}
        self.awaited: set[str] = set()
        self.is_late = False
        """Whether a node reads what a later one, or it itself, computes."""
        self._nodes = nodes
        self._computed: frozenset[str] | None = None

    def __contains__(self, name: str) -> bool:
        if self._computed is None:
            self._computed = frozenset(name for node in self._nodes for name in node.output)
        return name in self.values or name in self._computed

    def find(self, name: str) -> ir.Value | None:
        """The value of that name; None if the graph has none."""
        value = self.values.get(name)
        if value is None and name in self:
            value = self.values[name] = ir.Value(name=name)
            self.awaited.add(name)
            self.is_late = True
        return value


class _Reader:
    """Makes the IR of a model.

    Args:
        proto: The model; types and attributes in it are changed.
        has_unknown: Whether it has fields that this version of onnx does not know.
        stand_ins: As for `decode`, and so is the other.
        external: As there.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        has_unknown: bool,
        stand_ins: StandIns,
        external: Callable[[ir.ExternalTensor], ir.TensorProtocol],
    ) -> None:
        self.proto = proto
        self.has_unknown = has_unknown
        self.stand_ins = stand_ins
        self.external = external
        self.opsets: Mapping[str, int] = {}
        """Of the graph that is being read."""
        self.own = {(function.domain, function.name) for function in proto.functions}
        """Domains and names of the model's functions, which no schema describes."""
        self.devices = {
            entry.name: ir.serde.deserialize_model_configuration(entry)
            for entry in proto.configuration
        }

    def model(self) -> ir.Model:
        proto = self.proto
        if proto.ir_version < 0:
            raise ModelError(f"there is no IR version {proto.ir_version}")
        self.opsets = opsets = opsets_of(proto.opset_import)
        if proto.ir_version < 3:
            opsets.setdefault("", 1)  # older than the list of imports
        check_calls(proto)
        graph = self.graph(proto.graph, ())
        graph.opset_imports.update(ir.serde.deserialize_opset_import(proto.opset_import))
        functions = []
        infos = self.infos_of_functions()
        for function in proto.functions:
            own = opsets_of(function.opset_import, owner=function.name)
            self.opsets = {**opsets, **own}  # onnxruntime takes what is missing from the model
            key = f"{function.domain}::{function.name}"
            functions.append(self.function(function, infos.get(key, ())))
        model = ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=_text(proto, "producer_name"),
            producer_version=_text(proto, "producer_version"),
            domain=_text(proto, "domain"),
            model_version=proto.model_version if proto.HasField("model_version") else None,
            doc_string=_text(proto, "doc_string"),
            functions=functions,
            metadata_props=_entries(proto.metadata_props),
            device_configurations=tuple(self.devices.values()),
        )
        self.keep_unknown(model, proto)
        model.meta[HAS_UNKNOWN_KEY] = self.has_unknown
        model.meta[TRAINING_KEY] = [info.SerializeToString() for info in proto.training_info]
        bare = not all(opset.HasField("domain") for opset in proto.opset_import)
        model.meta[BARE_DOMAIN_KEY] = bare
        return model

    def infos_of_functions(self) -> dict[str, list[onnx.ValueInfoProto]]:
        """What old models say of values in functions: by domain and name of the function."""
        found: dict[str, list[onnx.ValueInfoProto]] = {}
        if self.proto.functions and self.proto.ir_version <= LAST_WITHOUT_FUNCTION_INFO:
            for info in self.proto.graph.value_info:
                function, slash, name = info.name.partition("/")
                if slash:
                    found.setdefault(function, []).append(info)
                    info.name = name
        return found

    def graph(self, proto: onnx.GraphProto, outer: tuple[_Scope, ...]) -> ir.Graph:
        scope = _Scope(proto.node, proto.value_info)
        scopes = (scope, *outer)
        inputs = []
        for info in proto.input:
            if info.name in scope.values:
                raise ModelError(f"input {info.name!r} is declared twice")
            value = scope.values[info.name] = ir.Value(name=info.name)
            inputs.append(self.describe(value, info))
        initializers = self.initializers(proto, scope)
        nodes = self.nodes(proto.node, scopes)
        outputs = []
        for info in proto.output:
            result = scope.find(info.name)
            if result is None:
                captured = next((v for s in outer if (v := s.find(info.name)) is not None), None)
                if captured is None:
                    raise ModelError(
                        f"output {info.name!r} of graph {proto.name!r} is not computed"
                    )
                nodes.append(_hand_out(captured, info.name, scopes))
                result = nodes[-1].outputs[0]
            outputs.append(self.describe(result, info))
        for annotation in proto.quantization_annotation:
            if (annotated := scope.values.get(annotation.tensor_name)) is not None:
                entries = _entries(annotation.quant_parameter_tensor_names)
                annotated.meta[QUANTIZATION_KEY] = entries
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=_text(proto, "doc_string"),
            name=_text(proto, "name"),
            metadata_props=_entries(proto.metadata_props),
        )
        self.keep_unknown(graph, proto)
        if scope.is_late:
            _sort(graph)
        return graph

    def initializers(self, proto: onnx.GraphProto, scope: _Scope) -> list[ir.Value]:
        tensors = [self.tensor(tensor, tensor) for tensor in proto.initializer]
        tensors += [self.sparse(sparse, sparse.values) for sparse in proto.sparse_initializer]
        found: dict[str, ir.Value] = {}
        for tensor in tensors:
            name = tensor.name
            if not name:
                continue
            value = scope.values.get(name)
            if value is None:
                type_, shape = ir.TensorType(tensor.dtype), tensor.shape
                value = ir.Value(name=name, type=type_, shape=shape)  # type: ignore[arg-type]
                scope.values[name] = value
                if name in scope.infos:
                    self.describe(value, scope.infos[name])
                    value.meta[VALUE_INFO_KEY] = True
            value.const_value = tensor  # of an input, it is the default
            found[name] = value
        return list(found.values())

    def function(
        self, proto: onnx.FunctionProto, infos: Iterable[onnx.ValueInfoProto]
    ) -> ir.Function:
        attributes = [self.attribute(attribute, proto, ()) for attribute in proto.attribute_proto]
        undefined = ir.AttributeType.UNDEFINED
        attributes += [ir.Attr(name, undefined, None) for name in proto.attribute]  # no defaults
        scope = _Scope(proto.node, [*proto.value_info, *infos])
        inputs = []
        for name in proto.input:
            value = scope.values[name] = ir.Value(name=name)
            if name in scope.infos:
                self.describe(value, scope.infos[name])
            inputs.append(value)
        nodes = self.nodes(proto.node, (scope,))
        outputs = []
        for name in proto.output:
            result = scope.find(name)
            if result is None:
                reason = f"output {name!r} of function {proto.name!r} is not computed"
                raise ModelError(reason, node=proto.name)
            outputs.append(result)
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            doc_string=_text(proto, "doc_string"),
            opset_imports=ir.serde.deserialize_opset_import(proto.opset_import),
            name="",
            metadata_props=_entries(proto.metadata_props),
        )
        self.keep_unknown(graph, proto)  # a function has the ``meta`` of its graph
        if scope.is_late:
            _sort(graph)
        return ir.Function(
            proto.domain, proto.name, proto.overload, graph=graph, attributes=attributes
        )

    def nodes(self, protos: Iterable[onnx.NodeProto], scopes: tuple[_Scope, ...]) -> list[ir.Node]:
        scope = scopes[0]
        values = scope.values
        nodes = []
        for proto in protos:
            inputs = []
            for name in proto.input:
                value = values.get(name) if name else None
                if value is None and name:
                    value = next((v for s in scopes if (v := s.find(name)) is not None), None)
                    if value is None:
                        reason = f"input {name!r} is not defined anywhere"
                        raise ModelError(reason, node=label(proto))
                inputs.append(value)
            attributes = [self.attribute(entry, proto, scopes) for entry in proto.attribute]
            node = ir.Node(
                proto.domain,
                proto.op_type,
                inputs,
                attributes,
                overload=proto.overload,
                outputs=[self.result(name, scope, proto) for name in proto.output],
                name=proto.name,
                doc_string=proto.doc_string or None,
                metadata_props=_entries(proto.metadata_props),
            )
            if not self.own or (proto.domain, proto.op_type) not in self.own:
                wrong = objection(node, attributes, self.opsets)
                if wrong is not None:
                    raise ModelError(wrong, node=label(proto))
            if proto.device_configurations:
                self.configure(node, proto, scopes)
            if self.has_unknown:
                self.keep_unknown(node, proto)
            nodes.append(node)
        return nodes

    def result(self, name: str, scope: _Scope, node: onnx.NodeProto) -> ir.Value:
        """The value of a node's output."""
        if not name:
            return ir.Value(name="")
        value = scope.values.get(name)
        if value is None:
            value = scope.values[name] = ir.Value(name=name)
        elif name in scope.awaited:
            scope.awaited.remove(name)
        else:
            reason = f"output {name!r} is already defined in this graph"
            raise ModelError(reason, node=label(node))
        info = scope.infos.get(name)
        return value if info is None else self.describe(value, info)

    def describe(self, value: ir.Value, info: onnx.ValueInfoProto) -> ir.Value:
        """Give a value the type, the shape, and what else a ``value_info`` says."""
        self.keep_unknown(value, info)
        if info.HasField("type") and not _is_representable(info.type):
            value.meta[TYPE_KEY] = info.type.SerializeToString()
            info.ClearField("type")
        return ir.serde.deserialize_value_info_proto(info, value)

    def configure(self, node: ir.Node, proto: onnx.NodeProto, scopes: tuple[_Scope, ...]) -> None:
        """Give a node what it says of the devices that it runs on."""
        values = ChainMap(*(scope.values for scope in scopes))
        found = []
        for entry in proto.device_configurations:
            made = ir.serde.deserialize_node_device_configuration(entry, values)
            known = self.devices.get(entry.configuration_id, made.configuration)
            found.append(dataclasses.replace(made, configuration=known))
        node.device_configurations = tuple(found)

    def attribute(
        self,
        proto: onnx.AttributeProto,
        owner: onnx.NodeProto | onnx.FunctionProto,
        scopes: tuple[_Scope, ...],
    ) -> ir.Attr:
        if proto.ref_attr_name:
            return ir.serde.deserialize_attribute(proto)
        if (number := _NUMBERS.get(proto.type)) is not None:
            field, type_ = number
            return ir.Attr(
                proto.name, type_, getattr(proto, field), doc_string=proto.doc_string or None
            )
        if proto.type == _A.UNDEFINED:
            filled = [f.name for f, _ in proto.ListFields() if f.name in _VALUE_FIELDS]
            if len(filled) != 1:
                reason = f"attribute {proto.name!r} has no type that is known"
                raise ModelError(reason, node=label(owner))
            proto.type = _VALUE_FIELDS[filled[0]]
            return self.attribute(proto, owner, scopes)
        kind, name = proto.type, proto.name
        value: Any
        if kind == _A.TENSOR:
            value = self.tensor(proto.t, owner)
        elif kind == _A.STRING:
            value = _decoded([proto.s])[0]
        elif kind == _A.STRINGS:
            value = _decoded(proto.strings)
        elif kind == _A.GRAPH:
            if not proto.HasField("g"):
                raise ModelError(f"attribute {name!r} has no graph", node=label(owner))
            value = self.graph(proto.g, scopes)
        elif kind == _A.TENSORS:
            value = [self.tensor(tensor, owner) for tensor in proto.tensors]
        elif kind == _A.GRAPHS:
            value = [self.graph(graph, scopes) for graph in proto.graphs]
        elif kind == _A.SPARSE_TENSOR:
            value, kind = self.sparse(proto.sparse_tensor, owner), _A.TENSOR
            if isinstance(owner, onnx.NodeProto) and owner.op_type == "Constant":
                name = "value"
        elif kind == _A.SPARSE_TENSORS:
            value = [self.sparse(sparse, owner) for sparse in proto.sparse_tensors]
            kind = _A.TENSORS
        else:
            if not all(map(_is_representable, [proto.tp, *proto.type_protos])):
                reason = f"attribute {name!r} holds a type that is not supported"
                raise ModelError(reason, node=label(owner))
            return ir.serde.deserialize_attribute(proto)
        return ir.Attr(name, _TYPES[kind], value, doc_string=proto.doc_string or None)

    def tensor(self, proto: onnx.TensorProto, owner: Any) -> ir.TensorProtocol:
        """The tensor of an attribute of ``owner``, or an initializer, which is its own."""
        raw = proto.raw_data if proto.HasField("raw_data") else None
        stored: Any = None if raw is None else self.stand_ins.get(raw)
        if stored is None:
            check_tensor(proto, None if raw is None else len(raw), owner)
            if raw is None or self.has_unknown or proto.data_location or not proto.data_type:
                tensor = ir.serde.deserialize_tensor(proto)
                return self.external(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor
            stored = np.frombuffer(raw, dtype=np.uint8)
        else:
            check_tensor(proto, stored.length if isinstance(stored, Span) else len(stored), owner)
        make = FileTensor if isinstance(stored, Span) else ViewTensor
        return make(
            stored,
            DTYPES[proto.data_type],
            ir.Shape(proto.dims),
            name=_text(proto, "name"),
            doc_string=_text(proto, "doc_string"),
            metadata_props=_entries(proto.metadata_props),
        )

    def sparse(self, proto: onnx.SparseTensorProto, owner: Any) -> SparseTensor:
        check_sparse(proto, owner)
        kept = onnx.SparseTensorProto()
        kept.CopyFrom(proto)
        return SparseTensor(kept)

    def keep_unknown(self, owner: Any, proto: Message) -> None:
        """Keep the fields of ``proto`` that this version of onnx does not know."""
        if not self.has_unknown or not len(unknown_fields.UnknownFieldSet(proto)):
            return
        rest = type(proto)()
        rest.CopyFrom(proto)
        for field, _ in rest.ListFields():
            rest.ClearField(field.name)
        owner.meta[UNKNOWN_KEY] = rest.SerializeToString()


def _text(proto: Any, field: str) -> str | None:
    return getattr(proto, field) if proto.HasField(field) else None


def _entries(proto: Sequence[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    return {entry.key: entry.value for entry in proto} if proto else None


def _decoded(texts: Iterable[bytes]) -> list[str] | list[bytes]:
    """The texts, or their bytes where one is not UTF-8."""
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError:
        return list(texts)


def _hand_out(value: ir.Value, name: str, scopes: tuple[_Scope, ...]) -> ir.Node:
    """An Identity between a value of an outer graph and the subgraph's output that it is.

    Exporters write such outputs; neither onnx-ir nor onnxruntime takes them as they are.
    """
    new, count = f"{name}_identity", 1
    while any(new in scope for scope in scopes):
        new, count = f"{name}_identity_{count}", count + 1
    result = scopes[0].values[new] = ir.Value(name=new)
    return ir.Node("", "Identity", [value], outputs=[result], name="")


def _sort(graph: ir.Graph) -> None:
    """Put the nodes in an order in which they can run.

    Raises:
        ModelError: A node needs its own result, through others or its subgraphs.
    """
    waits = {
        node: {other for value in _read_by(node) if (other := value.producer()) is not None}
        for node in graph
    }
    try:
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        node = error.args[1][0]
        name = node.name or f"{node.op_type} -> {node.outputs[0].name}"
        raise ModelError("the node needs its own result", node=name) from None
    graph.sort()


def _read_by(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads where it stands, and those that its subgraphs read."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs_of(node):
        for inner in graph:
            yield from _read_by(inner)


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
