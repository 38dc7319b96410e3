"""From protobuf to the IR: one walk that checks a model and makes its values and nodes.

onnx-ir makes types, shapes and small tensors. Graphs are walked here, because they have to
be checked: onnx-ir makes up a value for an undefined name. Building the IR in the same
walk takes three quarters of the time that checks and ``ir.serde.deserialize_model`` take.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.ir.graphs import tensor_of
from onnxfold.ir.onnx_ir_private import is_a, root_cause
from onnxfold.ir.storage.checks import (
    BODIES,
    DTYPES,
    all_nodes,
    check_bodies,
    check_calls,
    check_tensor,
    label,
    opsets_of,
    parse,
)
from onnxfold.ir.storage.encode import (
    QUANTIZATION_KEY,
    describe,
    entries_of,
    is_representable,
    shape_of,
    static_shape,
)
from onnxfold.ir.storage.opsets import ONNX_DOMAINS, import_onnx_opset
from onnxfold.ir.storage.tensors import Span, ViewTensor
from onnxfold.ir.storage.wire import Placeholders
from onnxfold.support.errors import ModelError

logger = logging.getLogger("onnxfold")

LIFTED_KEY = "onnxfold.lifted"  # in the ``meta`` of a model: Constant nodes made initializers

_A = onnx.AttributeProto
# Attributes that are numbers, the most frequent ones, with the field that holds them.
_NUMBERS = {
    _A.INT: ("i", ir.AttributeType.INT),
    _A.INTS: ("ints", ir.AttributeType.INTS),
    _A.FLOAT: ("f", ir.AttributeType.FLOAT),
    _A.FLOATS: ("floats", ir.AttributeType.FLOATS),
}
_TYPES = {kind.value: kind for kind in ir.AttributeType}
_CONSTANTS = {
    "value": ir.AttributeType.TENSOR,
    **{f"value_{kind.name.lower()}": kind for _, kind in _NUMBERS.values()},
    "value_string": ir.AttributeType.STRING,
    "value_strings": ir.AttributeType.STRINGS,
}
"""The attributes of Constant; a sparse value is read as a dense one."""
_FIRST_WITH_OPSETS = 3  # IR version
_MOST_DENSE = 1 << 16  # bytes by which a model with sparse tensors may become larger

_warns_of_losses = ContextVar("warns_of_losses", default=True)


@contextlib.contextmanager
def losses_allowed() -> Iterator[None]:
    """Do not warn of parts of a message that are left out: the caller keeps the message."""
    token = _warns_of_losses.set(False)
    try:
        yield
    finally:
        _warns_of_losses.reset(token)


def decode(
    skeleton: bytes,
    stand_ins: Placeholders,
    external: Callable[[ir.ExternalTensor, str], ir.TensorProtocol],
    *,
    lift_constants: bool = False,
) -> ir.Model:
    """Convert a serialized model.

    Training information, device configurations and fields that this version of onnx does not define
    are left out, with a warning, see `losses_allowed`.

    Args:
        skeleton: A serialized ``ModelProto`` in which the ``raw_data`` of some tensors are texts.
        stand_ins: What those texts stand for: spans, or arrays of bytes.
        external: Gives the tensor for one whose data are in another file, and what errors name.
        lift_constants: Make initializers of Constant nodes, equal ones of a graph the same, before
            they cost anything; ``LIFTED_KEY`` tells how many.
    """
    proto = parse(skeleton)
    proto.DiscardUnknownFields()
    if _warns_of_losses.get():
        _warn_of_losses(proto, skeleton)
    shape_of.cache_clear()  # denotations of a shape can be changed
    static_shape.cache_clear()
    try:
        reader = _Reader(stand_ins, external, lift_constants)
        model = reader.model(proto)
        if lift_constants:
            model.meta[LIFTED_KEY] = reader.lifted
        return model
    except (
        ir.serde.SerdeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        # What onnx-ir raises for models that no check foresaw.
        raise ModelError(root_cause(error)) from error


def _warn_of_losses(proto: onnx.ModelProto, skeleton: bytes) -> None:
    """Warn of parts of a message that an ``ir.Model`` does not have."""
    # another size than before may also come from numbers that were written with too many bytes
    if len(skeleton) != proto.ByteSize() != parse(skeleton).ByteSize():
        logger.warning("fields that onnx %s does not define are left out", onnx.__version__)
    if proto.training_info:
        logger.warning("training information is left out")
    if proto.configuration:
        logger.warning("device configurations are left out")


class _FieldTensor(ir.TensorProtoTensor):
    """A tensor of numbers in a typed field. onnx-ir makes dtype and shape anew at each access."""

    __slots__ = ("dtype", "shape")

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(proto)
        self.dtype = DTYPES[proto.data_type]  # type: ignore[misc]
        self.shape = static_shape(tuple(proto.dims[:]))  # type: ignore[misc]


class _Scope:
    """The names of one graph or function.

    Attributes:
        values: What is known by name so far: inputs, initializers, results of the nodes read.
        infos: What the graph says of values, by name.
        awaited: Names that were read before the node that computes them.
        is_late: Whether a node reads what a later one, or it itself, computes.
        lifted: Values of Constant nodes that became initializers, by their serialized attribute.
    """

    def __init__(
        self, nodes: Sequence[onnx.NodeProto], infos: Iterable[onnx.ValueInfoProto]
    ) -> None:
        self.values: dict[str, ir.Value] = {}
        self.infos = {info.name: info for info in infos}
        self.awaited: set[str] = set()
        self.is_late = False
        self.lifted: dict[object, ir.Value] = {}
        self._nodes = nodes
        self._computed: frozenset[str] | None = None

    def find(self, name: str) -> ir.Value | None:
        """Return the value of that name; None if the graph has none."""
        value = self.values.get(name)
        if value is not None:
            return value
        if self._computed is None:
            self._computed = frozenset(name for node in self._nodes for name in node.output)
        if name not in self._computed:
            return None
        self.awaited.add(name)
        self.is_late = True
        return self.values.setdefault(name, ir.Value(name=name))


def _found(name: str, scopes: Iterable[_Scope]) -> ir.Value | None:
    """Return the value that a name means in nested graphs, the innermost first."""
    return next((value for scope in scopes if (value := scope.find(name)) is not None), None)


def _last_constants(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes with the last of several Constants of one name, which onnxruntime takes."""
    last = {name: node for node in nodes if node.op_type == "Constant" for name in node.output}
    return [
        node
        for node in nodes
        if node.op_type != "Constant" or all(last[name] is node for name in node.output)
    ]


@dataclass(eq=False)
class _Reader:
    stand_ins: Placeholders
    external: Callable[[ir.ExternalTensor, str], ir.TensorProtocol]
    lift_constants: bool
    lifted: int = 0
    grown: int = 0

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        if proto.ir_version < 0:
            raise ModelError(f"there is no IR version {proto.ir_version}")
        opsets = opsets_of(proto.opset_import)
        if (
            not opsets
            and proto.ir_version >= _FIRST_WITH_OPSETS
            and any(node.domain in ONNX_DOMAINS for node in all_nodes(proto.graph.node))
        ):
            raise ModelError("no opset is imported")
        check_calls(proto)
        graph = self.graph(proto.graph, ())
        graph.opset_imports.update(opsets)
        model = ir.Model(
            graph,
            ir_version=proto.ir_version,
            producer_name=proto.producer_name or None,
            producer_version=proto.producer_version or None,
            domain=proto.domain or None,
            model_version=proto.model_version if proto.HasField("model_version") else None,
            doc_string=proto.doc_string or None,
            functions=[*map(self.function, proto.functions)],
            metadata_props=entries_of(proto.metadata_props),
        )
        import_onnx_opset(model)
        return model

    def graph(self, proto: onnx.GraphProto, outer: tuple[_Scope, ...]) -> ir.Graph:
        protos = proto.node[:]
        scope = _Scope(protos, proto.value_info)
        scopes = (scope, *outer)
        inputs = []
        for info in proto.input:
            if info.name in scope.values:
                raise ModelError(f"input {info.name!r} is declared twice")
            value = ir.Value(name=info.name)
            scope.values[info.name] = value
            inputs.append(describe(value, info))
        declared = set(inputs)
        initializers = self.initializers(proto, scope)
        # the value of an output must be made by a node
        stay = frozenset(["", *[v.name for v in proto.output]]) if self.lift_constants else None
        nodes = self.nodes(protos, scopes, stay)
        outputs = []
        for info in proto.output:
            result = scope.find(info.name)
            if result is None:
                captured = _found(info.name, outer)
                if captured is None:
                    raise ModelError(
                        f"output {info.name!r} of graph {proto.name!r} is not computed"
                    )
                # neither onnx-ir nor onnxruntime takes an outer value as an output of a subgraph
                name = f"{captured.name}_identity"
                count = 1
                while _found(name, scopes) is not None:
                    name, count = f"{captured.name}_identity_{count}", count + 1
                result = ir.Value(name=name)
                scope.values[name] = result
                nodes.append(ir.Node("", "Identity", [captured], outputs=[result], name=""))
            outputs.append(result if result in declared else describe(result, info))
        for annotation in proto.quantization_annotation:
            annotated = scope.values.get(annotation.tensor_name)
            if annotated is not None and annotated.name == annotation.tensor_name:
                entries = entries_of(annotation.quant_parameter_tensor_names)
                annotated.meta[QUANTIZATION_KEY] = entries
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=[*initializers, *scope.lifted.values()],
            doc_string=proto.doc_string or None,
            name=proto.name or None,
            metadata_props=entries_of(proto.metadata_props),
        )
        if scope.is_late:
            _sort(graph)
        return graph

    def initializers(self, proto: onnx.GraphProto, scope: _Scope) -> list[ir.Value]:
        tensors = [self.tensor(tensor, tensor) for tensor in proto.initializer]
        tensors += [self.dense(sparse, sparse.values) for sparse in proto.sparse_initializer]
        found: dict[str, ir.Value] = {}
        for tensor in tensors:
            if not (name := tensor.name):
                continue
            value = scope.values.get(name)
            if value is None:
                type_ = ir.TensorType(tensor.dtype)
                shape = tensor.shape
                value = ir.Value(name=name, type=type_, shape=shape)  # type: ignore[arg-type]
                scope.values[name] = value
                if name in scope.infos:
                    describe(value, scope.infos[name])
            value.const_value = tensor  # of an input, it is the default
            found[name] = value
        return list(found.values())

    def function(self, proto: onnx.FunctionProto) -> ir.Function:
        opsets = opsets_of(proto.opset_import, owner=proto.name)
        attributes = [self.attribute(attribute, proto, ()) for attribute in proto.attribute_proto]
        undefined = ir.AttributeType.UNDEFINED
        attributes += [ir.Attr(name, undefined, None) for name in proto.attribute]  # no defaults
        scope = _Scope(proto.node, proto.value_info)
        inputs = []
        for name in proto.input:
            value = scope.values.setdefault(name, ir.Value(name=name))
            inputs.append(describe(value, scope.infos[name]) if name in scope.infos else value)
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
            doc_string=proto.doc_string or None,
            opset_imports=opsets,
            name="",
            metadata_props=entries_of(proto.metadata_props),
        )
        if scope.is_late:
            _sort(graph)
        return ir.Function(
            proto.domain, proto.name, proto.overload, graph=graph, attributes=attributes
        )

    def nodes(
        self,
        protos: Iterable[onnx.NodeProto],
        scopes: tuple[_Scope, ...],
        stay: frozenset[str] | None = None,
    ) -> list[ir.Node]:
        """Return the nodes of a graph; Constants of results not in ``stay`` become initializers."""
        scope = scopes[0]
        values = scope.values
        infos = scope.infos
        nodes = []
        made = [name for p in protos if p.op_type == "Constant" for name in p.output]
        if len(made) > len(set(made)):
            protos = _last_constants(protos)
        for proto in protos:
            # a slice is a list: iterating over a field of protobuf takes twice as long
            op_type = proto.op_type
            domain = proto.domain
            entries = proto.attribute[:]
            inputs = [values.get(name) if name else None for name in proto.input[:]]
            if None in inputs:  # omitted, or a value of an outer graph
                inputs = [_found(name, scopes) if name else None for name in proto.input]
                for name, value in zip(proto.input, inputs, strict=True):
                    if name and value is None:
                        reason = f"input {name!r} is not defined anywhere"
                        raise ModelError(reason, node=label(proto))
            names = proto.output[:]
            is_constant = op_type == "Constant" and domain in ("", "ai.onnx")
            lifts = is_constant and stay is not None and stay.isdisjoint(names)
            content = entries[0].SerializeToString() if lifts and entries else b""
            twin = scope.lifted.get(content) if lifts else None
            if twin and len(entries) == 1 and values.keys().isdisjoint(names):
                values[names[0]] = twin
                self.lifted += 1
                continue
            attributes = [self.attribute(entry, proto, scopes) for entry in entries]
            outputs = []
            for name in names:
                value = values.get(name)
                if value is None:
                    value = ir.Value(name=name)
                elif name in scope.awaited:
                    scope.awaited.remove(name)
                else:
                    reason = f"output {name!r} is already defined in this graph"
                    raise ModelError(reason, node=label(proto))
                if name:
                    values[name] = value
                    if name in infos:
                        describe(value, infos[name])
                outputs.append(value)
            if is_constant:
                if len(attributes) != 1:
                    reason = f"a Constant has one value, this one has {len(attributes)}"
                    raise ModelError(reason, node=label(proto))
                kind = attributes[0].name
                of_type = attributes[0].type
                if _CONSTANTS.get(kind) != of_type:
                    reason = f"a Constant has no attribute {kind!r} of type {of_type.name}"
                    raise ModelError(reason, node=label(proto))
                if lifts and len(outputs) == 1 and not attributes[0].is_ref():
                    # nodes that were read before have the value itself, not an equal one
                    key = content if twin is None else (content, outputs[0].name)
                    value = outputs[0]
                    scope.lifted[key] = value
                    tensor = tensor_of(attributes[0], value.name)
                    value.const_value = tensor
                    assert tensor is not None
                    tensor.name = value.name
                    value.type = ir.TensorType(tensor.dtype)
                    value.shape = tensor.shape  # type: ignore[assignment]  # it is an ir.Shape
                    self.lifted += 1
                    continue
            node = ir.Node(
                domain,
                op_type,
                inputs,
                attributes,
                overload=proto.overload,
                outputs=outputs,
                name=proto.name,
                doc_string=proto.doc_string or None,
                metadata_props=entries_of(proto.metadata_props),
            )
            if op_type in BODIES:
                check_bodies(node)
            nodes.append(node)
        return nodes

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
        kind = proto.type
        name = proto.name
        value: Any
        if kind == _A.TENSOR:
            value = self.tensor(proto.t, owner)
        elif kind == _A.STRING:
            value = _decoded([proto.s])[0]
        elif kind == _A.STRINGS:
            value = _decoded(proto.strings)
        elif kind == _A.GRAPH and proto.HasField("g"):
            value = self.graph(proto.g, scopes)
        elif kind == _A.TYPE_PROTO and is_representable(proto.tp):
            return ir.serde.deserialize_attribute(proto)
        elif kind == _A.SPARSE_TENSOR and getattr(owner, "op_type", "Constant") == "Constant":
            value = self.dense(proto.sparse_tensor, owner)
            kind = _A.TENSOR
            if isinstance(owner, onnx.NodeProto):
                name = "value"
        else:
            reason = f"attribute {name!r} has no value, or one of a type that is not supported"
            raise ModelError(reason, node=label(owner))
        return ir.Attr(name, _TYPES[kind], value, doc_string=proto.doc_string or None)

    def tensor(self, proto: onnx.TensorProto, owner: Any) -> ir.TensorProtocol:
        """Return the tensor of an attribute of ``owner``, or an initializer, which is its own."""
        raw = proto.raw_data if proto.HasField("raw_data") else None
        stored: Any = None if raw is None else self.stand_ins.get(raw)
        if stored is None:
            check_tensor(proto, None if raw is None else len(raw), owner)
            if raw is None or proto.data_location or not proto.data_type:
                tensor = ir.serde.deserialize_tensor(proto)
                if is_a(tensor, ir.ExternalTensor):
                    return self.external(tensor, label(owner))
                return _FieldTensor(proto) if type(tensor) is ir.TensorProtoTensor else tensor
            stored = np.frombuffer(raw, dtype=np.uint8)
        else:
            check_tensor(proto, stored.length if isinstance(stored, Span) else len(stored), owner)
        return ViewTensor(
            stored,
            DTYPES[proto.data_type],
            static_shape(tuple(proto.dims[:])),
            name=proto.name or None,
            doc_string=proto.doc_string or None,
            metadata_props=entries_of(proto.metadata_props),
        )

    def dense(self, proto: onnx.SparseTensorProto, owner: Any) -> ir.Tensor[Any]:
        """Return a sparse tensor as a dense one, unless these take too many bytes more."""
        shape = tuple(proto.dims)
        values = proto.values
        for part in (values, proto.indices):
            check_tensor(part, None, owner)
        try:
            dtype = ir.DataType(values.data_type)
            self.grown += max(0, math.ceil(math.prod(shape) * dtype.itemsize) - proto.ByteSize())
            if self.grown > _MOST_DENSE:
                raise ValueError("the model grows by more than 64 KiB; store a dense tensor")
            if values.data_location or proto.indices.data_location:
                raise ValueError("its elements are in another file")
            array, at = map(onnx.numpy_helper.to_array, (values, proto.indices))
            if at.ndim == 2:
                at = np.ravel_multi_index(tuple(at.T), shape)
            if array.ndim != 1 or at.dtype.kind != "i" or at.shape != array.shape:
                raise ValueError("needs as many integer indices as values")
            np.unravel_index(at, shape)  # refuses indices outside of the shape
            dense = np.zeros(shape, array.dtype)
            dense.reshape(-1)[at] = array
        except (TypeError, ValueError) as error:
            raise ModelError(f"sparse tensor: {error}", node=label(owner)) from None
        return ir.Tensor(dense, dtype=dtype, name=values.name)


def _decoded(texts: Iterable[bytes]) -> list[str] | list[bytes]:
    """Return the texts of an attribute; bytes if one is not UTF-8, which custom ops may have."""
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError:
        return list(texts)


def _sort(graph: ir.Graph) -> None:
    """Put the nodes in an order in which they can run."""
    try:
        graph.sort()
    except ValueError:
        reason = f"a node of graph {graph.name!r} needs its own result"
        raise ModelError(reason) from None
