"""Conversion of protobuf to the IR: one traversal checks a model and creates its nodes.

onnx-ir creates types, shapes and small tensors. This module traverses the graphs, because they must
be checked: onnx-ir creates a new value for an undefined name. Checking and building the IR in the
same traversal takes three quarters of the time of checks followed by
``ir.serde.deserialize_model``.
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

# Key in the ``meta`` of a model: the number of Constant nodes that were converted to initializers.
LIFTED_KEY = "onnxfold.lifted"

_A = onnx.AttributeProto
# The fields and types of numeric attributes, which are the most frequent ones.
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
"""The types of the attributes of Constant. A sparse value is converted to a dense one."""
# The first IR version whose models import opsets.
_FIRST_WITH_OPSETS = 3
# Maximum bytes by which a model may grow when its sparse tensors are converted to dense ones.
_MAX_DENSE_GROWTH = 1 << 16

_warns_of_losses = ContextVar("warns_of_losses", default=True)


@contextlib.contextmanager
def losses_allowed() -> Iterator[None]:
    """In the context, suppress warnings about discarded parts of messages.

    The caller must keep the messages.
    """
    token = _warns_of_losses.set(False)
    try:
        yield
    finally:
        _warns_of_losses.reset(token)


def decode(
    skeleton: bytes,
    placeholders: Placeholders,
    external: Callable[[ir.ExternalTensor, str], ir.TensorProtocol],
    *,
    lift_constants: bool = False,
) -> ir.Model:
    """Convert a serialized model.

    Training information, device configurations and fields that this version of onnx does not define
    are discarded with a warning; see `losses_allowed`.

    Args:
        skeleton: A serialized ``ModelProto`` in which placeholders replace some ``raw_data``.
        placeholders: The placeholders with their objects: spans, or arrays of bytes.
        external: Called with an external tensor and its name for errors. Returns the tensor with
            the position of its data.
        lift_constants: Whether to convert Constant nodes to initializers before nodes are created.
            Equal constants of a graph become one initializer. The entry ``LIFTED_KEY`` of the
            model's ``meta`` is the number of converted nodes.

    Raises:
        ModelError: The model is invalid.
    """
    proto = parse(skeleton)
    proto.DiscardUnknownFields()
    if _warns_of_losses.get():
        _warn_of_losses(proto, skeleton)
    shape_of.cache_clear()  # callers can change the denotations of a shape
    static_shape.cache_clear()
    try:
        reader = _Reader(placeholders, external, lift_constants)
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
        # onnx-ir raises these for invalid models that no check covers
        raise ModelError(root_cause(error)) from error


def _warn_of_losses(proto: onnx.ModelProto, skeleton: bytes) -> None:
    """Warn about parts of a message that an ``ir.Model`` cannot represent."""
    # Numbers that are encoded with too many bytes also change the size of the message. Therefore,
    # the message is parsed and measured again with its unknown fields.
    if len(skeleton) != proto.ByteSize() != parse(skeleton).ByteSize():
        logger.warning("fields that onnx %s does not define are discarded", onnx.__version__)
    if proto.training_info:
        logger.warning("training information is discarded")
    if proto.configuration:
        logger.warning("device configurations are discarded")


class _FieldTensor(ir.TensorProtoTensor):
    """A tensor whose elements are in a typed field of the message, such as ``int64_data``.

    The dtype and the shape are stored, because onnx-ir creates them again for each access.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(proto)
        self.dtype = DTYPES[proto.data_type]  # type: ignore[misc]
        self.shape = static_shape(tuple(proto.dims[:]))  # type: ignore[misc]


class _Scope:
    """The names of one graph or function.

    Attributes:
        values: The inputs, the initializers, and the results of the nodes read so far, by name.
        infos: The ``value_info`` of values, by name.
        forward_references: Names of operands whose producer has not been read yet.
        is_unsorted: Whether a node reads its own result, or the result of a later node.
        lifted: Values of Constant nodes that became initializers, by the serialized attribute of
            the node. The key of a further value with an equal attribute also contains its name.
    """

    def __init__(
        self, nodes: Sequence[onnx.NodeProto], infos: Iterable[onnx.ValueInfoProto]
    ) -> None:
        self.values: dict[str, ir.Value] = {}
        self.infos = {info.name: info for info in infos}
        self.forward_references: set[str] = set()
        self.is_unsorted = False
        self.lifted: dict[object, ir.Value] = {}
        self._nodes = nodes
        self._result_names: frozenset[str] | None = None

    def find(self, name: str) -> ir.Value | None:
        """Return the value with this name; None if the graph has no such value.

        The result of a later node is created and recorded as a forward reference.
        """
        value = self.values.get(name)
        if value is not None:
            return value
        if self._result_names is None:
            self._result_names = frozenset(name for node in self._nodes for name in node.output)
        if name not in self._result_names:
            return None
        self.forward_references.add(name)
        self.is_unsorted = True
        return self.values.setdefault(name, ir.Value(name=name))


def _resolve(name: str, scopes: Iterable[_Scope]) -> ir.Value | None:
    """Return the value with this name in the innermost graph that has one, or None."""
    return next((value for scope in scopes if (value := scope.find(name)) is not None), None)


def _last_constants(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return all nodes except Constants whose result a later Constant defines again.

    onnxruntime uses the last one of these Constants.
    """
    last = {name: node for node in nodes if node.op_type == "Constant" for name in node.output}
    return [
        node
        for node in nodes
        if node.op_type != "Constant" or all(last[name] is node for name in node.output)
    ]


def _inputs_of(proto: onnx.NodeProto, scopes: tuple[_Scope, ...]) -> list[ir.Value | None]:
    """Return the inputs of a node, with None for each omitted one.

    An input may be a value of an outer graph.

    Raises:
        ModelError: An input is not defined.
    """
    inputs = [_resolve(name, scopes) if name else None for name in proto.input]
    for name, value in zip(proto.input, inputs, strict=True):
        if name and value is None:
            reason = f"input {name!r} is not defined anywhere"
            raise ModelError(reason, node=label(proto))
    return inputs


def _outputs_of(proto: onnx.NodeProto, scope: _Scope) -> list[ir.Value]:
    """Return the outputs of a node, and define their names.

    Raises:
        ModelError: An output is already defined.
    """
    outputs = []
    for name in proto.output[:]:
        value = scope.values.get(name)
        if value is None:
            value = ir.Value(name=name)
        elif name in scope.forward_references:
            scope.forward_references.remove(name)
        else:
            reason = f"output {name!r} is already defined in this graph"
            raise ModelError(reason, node=label(proto))
        if name:
            scope.values[name] = value
            if name in scope.infos:
                describe(value, scope.infos[name])
        outputs.append(value)
    return outputs


def _check_constant(proto: onnx.NodeProto, attributes: Sequence[ir.Attr]) -> None:
    """Check that a Constant has one valid attribute.

    Raises:
        ModelError: The Constant has no attribute, several attributes, or an unknown attribute.
    """
    if len(attributes) != 1:
        reason = f"a Constant requires one value, but has {len(attributes)}"
        raise ModelError(reason, node=label(proto))
    name = attributes[0].name
    attribute_type = attributes[0].type
    if _CONSTANTS.get(name) != attribute_type:
        reason = f"a Constant has no attribute {name!r} of type {attribute_type.name}"
        raise ModelError(reason, node=label(proto))


def _set_constant(value: ir.Value, attribute: ir.Attr) -> None:
    """Set the tensor, type and shape of a Constant's result, which becomes an initializer."""
    tensor = tensor_of(attribute, value.name)
    assert tensor is not None
    value.const_value = tensor
    tensor.name = value.name
    value.type = ir.TensorType(tensor.dtype)
    value.shape = tensor.shape  # type: ignore[assignment]  # an ir.Shape


@dataclass(eq=False)
class _Reader:
    """The conversion of one model.

    Attributes:
        placeholders: The placeholders of large tensors.
        external: Returns an external tensor with the position of its data; see `decode`.
        lift_constants: Whether Constant nodes become initializers.
        lifted: The number of Constant nodes that have become initializers.
        dense_growth: Bytes by which the dense forms of sparse tensors exceed the sparse forms.
    """

    placeholders: Placeholders
    external: Callable[[ir.ExternalTensor, str], ir.TensorProtocol]
    lift_constants: bool
    lifted: int = 0
    dense_growth: int = 0

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        if proto.ir_version < 0:
            raise ModelError(f"invalid IR version {proto.ir_version}")
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
        # an output must be the result of a node
        kept = frozenset(["", *[v.name for v in proto.output]]) if self.lift_constants else None
        nodes = self.nodes(protos, scopes, kept)
        outputs = []
        for info in proto.output:
            result = scope.find(info.name)
            if result is None:
                captured = _resolve(info.name, outer)
                if captured is None:
                    raise ModelError(
                        f"output {info.name!r} of graph {proto.name!r} is not computed"
                    )
                # onnx-ir and onnxruntime reject an outer value as an output of a subgraph
                name = f"{captured.name}_identity"
                count = 1
                while _resolve(name, scopes) is not None:
                    name = f"{captured.name}_identity_{count}"
                    count += 1
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
        if scope.is_unsorted:
            _sort(graph)
        return graph

    def initializers(self, proto: onnx.GraphProto, scope: _Scope) -> list[ir.Value]:
        tensors = [self.tensor(tensor, tensor) for tensor in proto.initializer]
        tensors += [self.dense(sparse, sparse.values) for sparse in proto.sparse_initializer]
        initializers: dict[str, ir.Value] = {}
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
            value.const_value = tensor  # the default value if it is an input
            initializers[name] = value
        return list(initializers.values())

    def function(self, proto: onnx.FunctionProto) -> ir.Function:
        opsets = opsets_of(proto.opset_import, owner=proto.name)
        attributes = [self.attribute(attribute, proto, ()) for attribute in proto.attribute_proto]
        undefined = ir.AttributeType.UNDEFINED
        # attributes without default values
        attributes += [ir.Attr(name, undefined, None) for name in proto.attribute]
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
        if scope.is_unsorted:
            _sort(graph)
        return ir.Function(
            proto.domain, proto.name, proto.overload, graph=graph, attributes=attributes
        )

    def nodes(
        self,
        protos: Iterable[onnx.NodeProto],
        scopes: tuple[_Scope, ...],
        kept: frozenset[str] | None = None,
    ) -> list[ir.Node]:
        """Return the nodes of a graph.

        Constants whose results are not in ``kept`` become initializers. If ``kept`` is None, all
        Constants remain nodes.
        """
        scope = scopes[0]
        values = scope.values
        nodes = []
        constants = [name for p in protos if p.op_type == "Constant" for name in p.output]
        if len(constants) > len(set(constants)):
            protos = _last_constants(protos)
        for proto in protos:
            # a slice of a protobuf field is a list, whose iteration takes half the time
            op_type = proto.op_type
            domain = proto.domain
            entries = proto.attribute[:]
            inputs = [values.get(name) if name else None for name in proto.input[:]]
            if None in inputs:  # omitted, of a later node, or of an outer graph
                inputs = _inputs_of(proto, scopes)
            names = proto.output[:]
            is_constant = op_type == "Constant" and domain in ("", "ai.onnx")
            is_lifted = is_constant and kept is not None and kept.isdisjoint(names)
            content = entries[0].SerializeToString() if is_lifted and entries else b""
            duplicate = scope.lifted.get(content) if is_lifted else None
            if duplicate and len(entries) == 1 and values.keys().isdisjoint(names):
                values[names[0]] = duplicate
                self.lifted += 1
                continue
            attributes = [self.attribute(entry, proto, scopes) for entry in entries]
            outputs = _outputs_of(proto, scope)
            if is_constant:
                _check_constant(proto, attributes)
                if is_lifted and len(outputs) == 1 and not attributes[0].is_ref():
                    # an earlier node already reads this value, so it cannot become its duplicate
                    key = content if duplicate is None else (content, outputs[0].name)
                    scope.lifted[key] = outputs[0]
                    _set_constant(outputs[0], attributes[0])
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
        if (numeric := _NUMBERS.get(proto.type)) is not None:
            field, type_ = numeric
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
            reason = f"attribute {name!r} has no value, or its type is not supported"
            raise ModelError(reason, node=label(owner))
        return ir.Attr(name, _TYPES[kind], value, doc_string=proto.doc_string or None)

    def tensor(self, proto: onnx.TensorProto, owner: Any) -> ir.TensorProtocol:
        """Return the tensor of an attribute of ``owner``, or of the initializer ``owner``."""
        raw = proto.raw_data if proto.HasField("raw_data") else None
        stored: Any = None if raw is None else self.placeholders.get(raw)
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
        """Return a sparse tensor as a dense one.

        Raises:
            ModelError: The tensor is invalid or external, or the dense forms of the model's sparse
                tensors add too many bytes.
        """
        shape = tuple(proto.dims)
        values = proto.values
        for part in (values, proto.indices):
            check_tensor(part, None, owner)
        try:
            dtype = ir.DataType(values.data_type)
            dense_bytes = math.ceil(math.prod(shape) * dtype.itemsize)
            self.dense_growth += max(0, dense_bytes - proto.ByteSize())
            if self.dense_growth > _MAX_DENSE_GROWTH:
                raise ValueError("its dense form adds more than 64 KiB; store a dense tensor")
            if values.data_location or proto.indices.data_location:
                raise ValueError("external data is not supported")
            array, indices = map(onnx.numpy_helper.to_array, (values, proto.indices))
            if indices.ndim == 2:
                indices = np.ravel_multi_index(tuple(indices.T), shape)
            if array.ndim != 1 or indices.dtype.kind != "i" or indices.shape != array.shape:
                raise ValueError("it requires one integer index for each value")
            np.unravel_index(indices, shape)  # raises for indices outside of the shape
            dense = np.zeros(shape, array.dtype)
            dense.reshape(-1)[indices] = array
        except (TypeError, ValueError) as error:
            raise ModelError(f"sparse tensor: {error}", node=label(owner)) from None
        return ir.Tensor(dense, dtype=dtype, name=values.name)


def _decoded(texts: Iterable[bytes]) -> list[str] | list[bytes]:
    """Return the strings of an attribute.

    If one is not UTF-8, as custom ops allow, all of them remain bytes.
    """
    try:
        return [text.decode() for text in texts]
    except UnicodeDecodeError:
        return list(texts)


def _sort(graph: ir.Graph) -> None:
    """Sort the nodes of a graph topologically.

    Raises:
        ModelError: A node depends on its own result.
    """
    try:
        graph.sort()
    except ValueError:
        reason = f"a node of graph {graph.name!r} depends on its own result"
        raise ModelError(reason) from None
