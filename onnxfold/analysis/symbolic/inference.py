"""Asking the shape inference of onnx or onnxruntime about one op, with expressions for sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.symbolic import schemas
from onnxfold.analysis.symbolic.expression import Algebra, Expr, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, of_type
from onnxfold.kernels.inference import infer_types, schema_of
from onnxfold.kernels.registry import Unfoldable

# Elements of floating point lists that decide about shapes: the scales of Resize.
_DATA_ELEMENTS = 64

_Size = int | str | None
"""A number, the name of one of the operands' sizes, or open."""
_Template = tuple[tuple[ir.DataType | None, tuple[_Size, ...] | None, bytes | None], ...]


class Inference:
    """Others' inference for single nodes, asked once for all nodes that look alike.

    Two nodes look alike if they differ only in which sizes of their operands are unknown: those
    are numbered for each node in the order in which they occur.

    Args:
        algebra: Makes the sizes that stay open.
    """

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._templates: dict[object, _Template] = {}

    def infer(
        self, node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int]
    ) -> list[Fact]:
        """The facts of the outputs."""
        version = opsets.get(node.domain)
        if version is None or any(a.is_ref() for a in node.attributes.values()):
            return [UNKNOWN] * len(node.outputs)
        schema = schema_of(node.op_type, version, node.domain)
        if schema is None and not schemas.believed(node.domain, node.op_type):
            return [UNKNOWN] * len(node.outputs)
        names: dict[Expr, str] = {}
        types = [None if f is None else _type(f, names) for f in inputs]
        data = [_data(f) for f in inputs]
        key = _key(node, version, types, data)
        template = None if key is None else self._templates.get(key)
        if template is None:
            template = _ask(node, schema, opsets, types, data)
            if key is not None:
                self._templates[key] = template
        sizes: dict[str, Number] = {name: size for size, name in names.items()}
        return [self._fact(result, sizes) for result in template]

    def _fact(
        self,
        result: tuple[ir.DataType | None, tuple[_Size, ...] | None, bytes | None],
        sizes: Mapping[str, Number],
    ) -> Fact:
        dtype, dims, other = result
        if dims is None:
            return Fact(dtype, None, None, other)
        return of_type(dtype, [self._size(d, sizes) for d in dims], self._algebra)

    def _size(self, size: _Size, sizes: Mapping[str, Number]) -> Number:
        if isinstance(size, int):
            return size
        found = None if size is None else sizes.get(size)
        return self._algebra.unknown(low=0) if found is None else found


_Type = tuple[ir.DataType | None, tuple[int | str, ...] | None, bytes | None]


def _type(fact: Fact, names: dict[Expr, str]) -> _Type:
    if fact.shape is None:
        return fact.dtype, None, fact.other
    dims = tuple(
        d if isinstance(d, int) else names.setdefault(d, f"d{len(names)}") for d in fact.shape
    )
    return fact.dtype, dims, None


def _data(fact: Fact | None) -> onnx.TensorProto | None:
    known = None if fact is None else fact.known
    if fact is None or known is None or known.ndim > 1 or known.size > _DATA_ELEMENTS:
        return None
    if fact.dtype is None or fact.dtype.bitwidth < 8:
        return None
    return onnx.TensorProto(
        data_type=fact.dtype.value,
        dims=known.shape,
        raw_data=np.ascontiguousarray(known).tobytes(),
    )


def attributes_key(node: ir.Node) -> tuple[Any, ...] | None:
    """The same for nodes with the same attributes; None if there is no telling."""
    if not node.attributes:
        return ()
    found: list[Any] = []
    for name, attribute in node.attributes.items():
        if attribute.type not in _KEYED or attribute.is_ref():
            return None
        value = attribute.value
        found.append(name)
        found.append(tuple(value) if isinstance(value, (list, tuple)) else value)
    return tuple(found)


def _key(
    node: ir.Node,
    version: int | None,
    types: Sequence[_Type | None],
    data: Sequence[onnx.TensorProto | None],
) -> object | None:
    attributes = attributes_key(node)
    if attributes is None:
        return None
    return (
        node.domain,
        node.op_type,
        version,
        len(node.outputs),
        attributes,
        tuple(types),
        tuple(None if d is None else d.raw_data for d in data),
    )


_KEYED = (
    ir.AttributeType.INT,
    ir.AttributeType.FLOAT,
    ir.AttributeType.STRING,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOATS,
    ir.AttributeType.STRINGS,
)


def _ask(
    node: ir.Node,
    schema: onnx.defs.OpSchema | None,
    opsets: Mapping[str, int],
    types: Sequence[_Type | None],
    data: Sequence[onnx.TensorProto | None],
) -> _Template:
    """The answer of onnx, or of onnxruntime for an op without a schema there."""
    names = [f"i{k}" if t is not None else "" for k, t in enumerate(types)]
    outputs = [f"o{k}" if o.name else "" for k, o in enumerate(node.outputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    for attribute in node.attributes.values():
        proto.attribute.append(ir.serde.serialize_attribute(attribute))
    protos = {n: _type_proto(t) for n, t in zip(names, types, strict=True) if t is not None}
    tensors = {n: d for n, d in zip(names, data, strict=True) if d is not None}
    inferred: Mapping[str, onnx.TypeProto]
    if schema is None:
        inferred = schemas.infer(proto, opsets[node.domain], protos, tensors)
        outputs = _only(outputs, schemas.believed(node.domain, node.op_type))
    else:
        inferred = _asked_of_onnx(proto, schema, opsets, protos, tensors)
    return tuple(_read(inferred.get(name)) for name in outputs)


def _only(names: Sequence[str], places: Sequence[int]) -> list[str]:
    return [name if k in places else "" for k, name in enumerate(names)]


def _asked_of_onnx(
    node: onnx.NodeProto,
    schema: onnx.defs.OpSchema,
    opsets: Mapping[str, int],
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
) -> Mapping[str, onnx.TypeProto]:
    given = {attribute.name for attribute in node.attribute}
    for name, formal in schema.attributes.items():  # onnx's own defaults are not always those
        if name not in given and formal.default_value.type:
            node.attribute.append(formal.default_value)
    try:
        return infer_types(schema, node, types, data, opsets)
    except Unfoldable:
        return {}


def _type_proto(known: _Type) -> onnx.TypeProto:
    dtype, dims, other = known
    proto = onnx.TypeProto()
    if other is not None:
        proto.ParseFromString(other)
    elif dtype is not None:
        tensor = proto.tensor_type
        tensor.elem_type = dtype.value
        if dims is not None:
            tensor.shape.SetInParent()
            for dim in dims:
                if isinstance(dim, int):
                    tensor.shape.dim.add(dim_value=dim)
                else:
                    tensor.shape.dim.add(dim_param=dim)
    return proto


def _read(
    proto: onnx.TypeProto | None,
) -> tuple[ir.DataType | None, tuple[_Size, ...] | None, bytes | None]:
    if proto is None or proto.WhichOneof("value") is None:
        return None, None, None
    if not proto.HasField("tensor_type"):
        return None, None, _without_names(proto).SerializeToString()
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None, None
    dims: list[_Size] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            dims.append(dim.dim_param or None)
    return dtype, tuple(dims), None


def _without_names(proto: onnx.TypeProto) -> onnx.TypeProto:
    """The type of a sequence or an optional; sizes had names for this one node only."""
    inner = proto
    while not inner.HasField("tensor_type"):
        kind = inner.WhichOneof("value")
        if kind not in ("sequence_type", "optional_type"):
            return proto
        inner = getattr(inner, kind).elem_type
    for dim in inner.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    return proto
