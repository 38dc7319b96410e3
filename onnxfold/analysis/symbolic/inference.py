"""Asking the shape inference of onnx or onnxruntime about one op, with expressions for sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.symbolic import schemas
from onnxfold.analysis.symbolic.expression import Algebra, Expr, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, of_type
from onnxfold.graphs import has_references
from onnxfold.kernels.inference import infer_types, schema_of
from onnxfold.kernels.registry import Unfoldable

# Elements of floating point lists that decide about shapes: the scales of Resize.
_DATA_ELEMENTS = 64


def infer(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> list[Fact]:
    """The facts of a node's outputs as onnx infers them, or onnxruntime for an op of its own.

    Args:
        node: A node without subgraphs.
        inputs: What is known of its inputs; None for one that is omitted.
        opsets: Domain to version.
        algebra: Makes the sizes that stay open.
    """
    version = opsets.get(node.domain)
    if version is None or has_references(node):
        return [UNKNOWN] * len(node.outputs)
    schema = schema_of(node.op_type, version, node.domain)
    if schema is None and not schemas.believed(node.domain, node.op_type):
        return [UNKNOWN] * len(node.outputs)
    names: dict[Expr, str] = {}
    types = [None if f is None else _type(f, names) for f in inputs]
    data = [_data(f) for f in inputs]
    sizes = {name: size for size, name in names.items()}
    return [_fact(t, sizes, algebra) for t in _ask(node, schema, opsets, types, data)]


def _fact(proto: onnx.TypeProto | None, sizes: Mapping[str, Expr], algebra: Algebra) -> Fact:
    """What a type says; its dims may have the names of sizes."""
    if proto is None or proto.WhichOneof("value") is None:
        return UNKNOWN
    if not proto.HasField("tensor_type"):
        return Fact(other=_without_names(proto).SerializeToString())
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Fact(dtype)
    shape: list[Number] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            size = sizes.get(dim.dim_param)
            shape.append(algebra.unknown(low=0) if size is None else size)
    return of_type(dtype, shape, algebra)


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


def _ask(
    node: ir.Node,
    schema: onnx.defs.OpSchema | None,
    opsets: Mapping[str, int],
    types: Sequence[_Type | None],
    data: Sequence[onnx.TensorProto | None],
) -> list[onnx.TypeProto | None]:
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
    return [inferred.get(name) for name in outputs]


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
