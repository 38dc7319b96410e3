"""Asking the shape inference of onnx about one op, with expressions for sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Expr, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, of_type
from onnxfold.graphs import has_references
from onnxfold.kernels.inference import infer_types, schema_of
from onnxfold.kernels.registry import Unfoldable


def infer(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> list[Fact]:
    """Return the facts of a node's outputs as onnx infers them.

    Args:
        node: A node without subgraphs.
        inputs: What is known of its inputs; None for one that is omitted.
        opsets: Domain to version.
        algebra: Makes the sizes that stay open.
    """
    version = opsets.get(node.domain)
    schema = None if version is None else schema_of(node.op_type, version, node.domain)
    if schema is None or has_references(node):
        return [UNKNOWN] * len(node.outputs)
    names = [f"i{k}" if f is not None else "" for k, f in enumerate(inputs)]
    outputs = [f"o{k}" if o.name else "" for k, o in enumerate(node.outputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    for attribute in node.attributes.values():
        proto.attribute.append(ir.serde.serialize_attribute(attribute))
    symbols: dict[Expr, str] = {}
    facts = {name: f for name, f in zip(names, inputs, strict=True) if f is not None}
    types = {name: _type_proto(fact, symbols) for name, fact in facts.items()}
    data = {name: d for name, fact in facts.items() if (d := _data(fact)) is not None}
    for name, formal in schema.attributes.items():  # onnx's own defaults are not always those
        if name not in node.attributes and formal.default_value.type:
            proto.attribute.append(formal.default_value)
    inferred: Mapping[str, onnx.TypeProto] = {}
    with contextlib.suppress(Unfoldable):
        inferred = infer_types(schema, proto, types, data, opsets)
    sizes = {name: size for size, name in symbols.items()}
    return [_fact(inferred.get(name), sizes, algebra) for name in outputs]


def _fact(proto: onnx.TypeProto | None, sizes: Mapping[str, Expr], algebra: Algebra) -> Fact:
    """Return what a type says; its dims may have the names of sizes."""
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


def _data(fact: Fact) -> onnx.TensorProto | None:
    known, dtype = fact.known, fact.dtype
    if known is None or known.ndim > 1 or dtype is None or dtype.bitwidth < 8:
        return None
    raw_data = np.ascontiguousarray(known).tobytes()
    return onnx.TensorProto(data_type=dtype.value, dims=known.shape, raw_data=raw_data)


def _type_proto(fact: Fact, symbols: dict[Expr, str]) -> onnx.TypeProto:
    """Return the type that a fact says; expressions get names."""
    proto = onnx.TypeProto()
    if fact.other is not None:
        proto.ParseFromString(fact.other)
    elif fact.dtype is not None:
        proto.tensor_type.elem_type = fact.dtype.value
        if fact.shape is not None:
            proto.tensor_type.shape.SetInParent()
        for size in fact.shape or ():
            if isinstance(size, int):
                proto.tensor_type.shape.dim.add(dim_value=size)
            else:
                name = symbols.setdefault(size, f"d{len(symbols)}")
                proto.tensor_type.shape.dim.add(dim_param=name)
    return proto


def _without_names(proto: onnx.TypeProto) -> onnx.TypeProto:
    """Return the type of a sequence or an optional; sizes had names for this one node only."""
    inner = proto
    while (kind := inner.WhichOneof("value")) in ("sequence_type", "optional_type"):
        inner = getattr(inner, kind).elem_type
    for dim in inner.tensor_type.shape.dim if kind == "tensor_type" else ():
        dim.ClearField("dim_param")
    return proto
