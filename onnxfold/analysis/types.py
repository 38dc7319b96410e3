"""Dtypes and shapes of values, inferred from what is certain: inputs, constants and onnx's rules.

The ``value_info`` that a file carries is not believed: tools leave stale ones behind. A size that
is not known has a symbol; two values with the same symbol have the same size in every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.scopes import Scope, Scopes
from onnxfold.kernels.inference import schema_of
from onnxfold.kernels.operation import subgraphs_of


class Symbol:
    """A size that is known only when the model runs. Equal symbols are equal sizes."""

    __slots__ = ("_hash", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._hash = hash(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.name == other.name

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.name


Dim = int | Symbol
Shape = tuple[Dim, ...]


@dataclass(frozen=True, eq=False)
class Type:
    """What is known of a value; None is unknown.

    Equality is identity: one model's types are made once each, and so are cheap to look up.
    """

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    other: bytes | None = None
    """The serialized type of a value that is not a dense tensor (a sequence, an optional)."""

    @property
    def rank(self) -> int | None:
        """Number of axes."""
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if every size is a number."""
        if self.shape is None or not all(isinstance(d, int) for d in self.shape):
            return None
        return self.shape  # type: ignore[return-value]


UNKNOWN = Type()

# Operands up to this many elements are shown to shape inference as data (they may be sizes).
_DATA_ELEMENTS = 64

# Result types with None for a size that the rules leave open.
_Template = tuple["_Result", ...]
_Result = tuple[ir.DataType | None, tuple[Dim | None, ...] | None, bytes | None]


class Types:
    """The types of a model's values, inferred on demand, each once.

    Answers stay right while the graph is rewritten, as what a node computes never changes.

    Args:
        scopes: The scopes of the model.
        known: Its constants.
    """

    def __init__(self, scopes: Scopes, known: KnownValues) -> None:
        self._scopes = scopes
        self._known = known
        self._types: dict[ir.Value, Type] = {}
        self._templates: dict[tuple[Any, ...], _Template] = {}
        self._fresh = itertools.count()
        self._made: dict[tuple[Any, ...], Type] = {}

    def of(self, value: ir.Value) -> Type:
        """What is known of a value."""
        found = self._types.get(value)
        return found if found is not None else self._find(value)

    def same(self, old: ir.Value, new: ir.Value) -> None:
        """One value takes the other's place.

        Where nothing can be inferred for ``new``, which an op of another domain may make, what is
        known of ``old`` holds.
        """
        known, found = self.of(old), self.of(new)
        if found.other is None and (found.dtype is None or found.shape is None):
            dtype = known.dtype if found.dtype is None else found.dtype
            shape = known.shape if found.shape is None else found.shape
            self._types[new] = self._make(dtype, shape, known.other)

    def _find(self, value: ir.Value) -> Type:
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._types:
                pending.pop()
                continue
            node = current.producer()
            if node is None:
                self._types[current] = self._source(current)
                continue
            missing = [v for v in self._needed(node) if v not in self._types]
            if missing:
                pending.extend(missing)
                continue
            self._infer(node)
        return self._types[value]

    # ---------------------------------------------------------------- values without a producer

    def _source(self, value: ir.Value) -> Type:
        tensor = self._known.tensor(value)
        if tensor is not None:
            return self._make(tensor.dtype, tuple(tensor.shape.numpy()))
        scope = self._scopes.find(value.graph)
        if scope is None or not value.is_graph_input() or scope.in_function:
            return UNKNOWN
        if scope.parent is None:
            return self._declared(value)
        return self._body_input(value, scope)

    def _declared(self, value: ir.Value) -> Type:
        """The type of a model input: the runtime holds callers to it."""
        if not isinstance(value.type, ir.TensorType):
            return self._make(None, None, _other(value.type))
        if value.shape is None:
            return self._make(value.dtype)
        dims: list[Dim] = []
        for dim in value.shape:
            if isinstance(dim, int):
                # some exporters write 0 or -1 for a size they do not know
                dims.append(dim if dim > 0 else self._new_symbol())
            else:
                dims.append(Symbol(dim.value) if dim.value else self._new_symbol())
        return self._make(value.dtype, tuple(dims))

    def _body_input(self, value: ir.Value, scope: Scope) -> Type:
        """An input of a loop's body. The sizes of a carried value may change from turn to turn."""
        node = scope.parent
        assert node is not None
        position = list(scope.graph.inputs).index(value)
        if node.domain != "" or node.op_type != "Loop":
            return UNKNOWN
        if position < 2:
            return self._make(ir.DataType.INT64 if position == 0 else ir.DataType.BOOL, ())
        start = node.inputs[position] if position < len(node.inputs) else None
        return UNKNOWN if start is None else self._make(self.of(start).dtype)

    # ---------------------------------------------------------------- results of nodes

    def _needed(self, node: ir.Node) -> list[ir.Value]:
        """The values whose types decide about the results of a node."""
        needed = [v for v in node.inputs if v is not None]
        if node.op_type == "If" and node.domain == "":
            needed.extend(v for g in subgraphs_of(node) for v in g.outputs)
        return needed

    def _infer(self, node: ir.Node) -> None:
        scope = self._scopes.find(node.graph)
        results: Sequence[Type] = ()
        if scope is not None and node.op_identifier() not in self._scopes.model.functions:
            if node.op_type in _CONTROL_FLOW and node.domain == "":
                results = self._infer_control_flow(node)
            else:
                results = self._infer_by_schema(node, scope.opsets)
        for k, output in enumerate(node.outputs):
            self._types[output] = results[k] if k < len(results) else UNKNOWN

    def _infer_control_flow(self, node: ir.Node) -> list[Type]:
        if node.op_type != "If":
            return []  # how often a body runs, and with what shapes, is not known
        branches = [g.outputs for g in subgraphs_of(node)]
        return [
            self._common([self._types[v] for v in results])
            for results in zip(*branches, strict=False)
        ]

    def _common(self, types: Sequence[Type]) -> Type:
        """What holds for all of the types."""
        first = types[0]
        if any(t.dtype != first.dtype or t.other != first.other for t in types):
            return UNKNOWN
        if any(t.rank != first.rank or t.rank is None for t in types):
            return self._make(first.dtype, None, first.other)
        dims = zip(*(t.shape or () for t in types), strict=True)
        shape = tuple(d[0] if len(set(d)) == 1 else self._new_symbol() for d in dims)
        return self._make(first.dtype, shape)

    def _infer_by_schema(self, node: ir.Node, opsets: Mapping[str, int]) -> list[Type]:
        version = opsets.get(node.domain)
        schema = None if version is None else schema_of(node.op_type, version, node.domain)
        if schema is None:
            return []
        inputs = [None if v is None else self._types[v] for v in node.inputs]
        data = [self._data(v, t) for v, t in zip(node.inputs, inputs, strict=True)]
        key = _key(node, version, inputs, data)
        template = self._templates.get(key) if key is not None else None
        if template is None:
            template = _infer_template(node, schema, opsets, inputs, data)
            if key is not None:
                self._templates[key] = template
        return [self._instance(result) for result in template]

    def _data(self, value: ir.Value | None, known: Type | None) -> onnx.TensorProto | None:
        # sizes and axes are short lists of integers
        if value is None or known is None or known.dtype not in _SIZE_DTYPES:
            return None
        shape = known.shape
        if shape is None or len(shape) > 1 or not self._known.is_constant(value):
            return None
        if any(isinstance(d, Symbol) or d > _DATA_ELEMENTS for d in shape):
            return None
        array = self._known.array(value)
        if array is None:
            return None
        return onnx.TensorProto(
            data_type=known.dtype.value if known.dtype else 0,
            dims=array.shape,
            raw_data=np.ascontiguousarray(array).tobytes(),
        )

    def _instance(self, result: _Result) -> Type:
        dtype, dims, other = result
        if dims is not None and None in dims:
            dims = tuple(self._new_symbol() if d is None else d for d in dims)
        return self._make(dtype, dims, other)

    def _make(self, dtype: ir.DataType | None, shape: Any = None, other: Any = None) -> Type:
        """The one type with these contents."""
        contents = (None if dtype is None else dtype._value_, shape, other)
        made = self._made.get(contents)
        if made is None:
            made = self._made[contents] = Type(dtype, shape, other)
        return made

    def _new_symbol(self) -> Symbol:
        return Symbol(f"?{next(self._fresh)}")


_CONTROL_FLOW = frozenset(("If", "Loop", "Scan", "SequenceMap"))

# a tuple: hashing an enum member costs more than comparing three
_SIZE_DTYPES = (
    ir.DataType.INT64,
    ir.DataType.INT32,
    ir.DataType.FLOAT,  # the scales of Resize
)


def _key(
    node: ir.Node,
    version: int | None,
    inputs: Sequence[Type | None],
    data: Sequence[onnx.TensorProto | None],
) -> tuple[Any, ...] | None:
    """Nodes with the same key have the same result types; None if there is no telling."""
    attributes: list[tuple[str, Any]] = []
    for name, attribute in node.attributes.items():
        if attribute.is_ref() or attribute.type in _NO_KEY:
            return None
        value = attribute.value
        attributes.append((name, tuple(value) if isinstance(value, (list, tuple)) else value))
    return (
        node.domain,
        node.op_type,
        version,
        len(node.outputs),
        tuple(attributes),
        tuple(inputs),
        tuple(None if d is None else d.raw_data for d in data),
    )


_NO_KEY = (
    ir.AttributeType.TENSOR,
    ir.AttributeType.TENSORS,
    ir.AttributeType.SPARSE_TENSOR,
    ir.AttributeType.SPARSE_TENSORS,
    ir.AttributeType.GRAPH,
    ir.AttributeType.GRAPHS,
    ir.AttributeType.TYPE_PROTO,
    ir.AttributeType.TYPE_PROTOS,
)


def _infer_template(
    node: ir.Node,
    schema: onnx.defs.OpSchema,
    opsets: Mapping[str, int],
    inputs: Sequence[Type | None],
    data: Sequence[onnx.TensorProto | None],
) -> _Template:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return ()
    names = [f"i{k}" if t is not None else "" for k, t in enumerate(inputs)]
    outputs = [f"o{k}" for k in range(len(node.outputs))]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    for attribute in node.attributes.values():
        proto.attribute.append(ir.serde.serialize_attribute(attribute))
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: _proto_of(t) for name, t in zip(names, inputs, strict=True) if t is not None},
            {name: d for name, d in zip(names, data, strict=True) if d is not None},
            opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()],
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return ()
    return tuple(_result(inferred.get(name)) for name in outputs)


def _proto_of(known: Type) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    if known.other is not None:
        proto.ParseFromString(known.other)
        return proto
    if known.dtype is None:
        return proto
    tensor = proto.tensor_type
    tensor.elem_type = known.dtype.value
    if known.shape is not None:
        tensor.shape.SetInParent()
        for dim in known.shape:
            if isinstance(dim, int):
                tensor.shape.dim.add(dim_value=dim)
            else:
                tensor.shape.dim.add(dim_param=dim.name)
    return proto


def _result(proto: onnx.TypeProto | None) -> _Result:
    if proto is None or proto.WhichOneof("value") is None:
        return None, None, None
    if not proto.HasField("tensor_type"):
        return None, None, proto.SerializeToString()
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None, None
    dims: list[Dim | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            dims.append(Symbol(dim.dim_param) if dim.dim_param else None)
    return dtype, tuple(dims), None


def _other(declared: ir.TypeProtocol | None) -> bytes | None:
    if declared is None:
        return None
    proto = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, declared)
    serialized: bytes = proto.SerializeToString()
    return serialized
