"""Inference of the facts of a node's outputs.

The op's definition infers the facts. If the definition is undecided, onnx infers them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from onnxfold.fold.inference import infer_types, schema_of, tensor_proto
from onnxfold.ir.graphs import has_references
from onnxfold.ir.symbolic.expression import Algebra, Number
from onnxfold.ir.symbolic.fact import UNKNOWN, Fact, of_type
from onnxfold.ops import find
from onnxfold.ops.application import INVALID_NODE_ERRORS, Application, Undecided, python_value
from onnxfold.ops.numpy_kernels import Unfoldable
from onnxfold.ops.results import facts_of_results


def results_of(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> Sequence[Fact]:
    """Return the facts of a node's outputs.

    The node must not have subgraphs or call a function of the model. ``inputs`` contains the facts
    of its inputs, or None for an omitted input. If the result is shorter than the outputs, the
    facts of the last outputs are unknown.
    """
    infer = functools.partial(_infer, node, inputs, opsets, algebra)
    attributes = {name: python_value(a) for name, a in node.attributes.data.items()}
    application = Application(
        node.op_type, inputs, attributes, opsets.get("", 1), len(node.outputs), algebra, infer
    )
    definition = find(node.op_type, node.domain, opsets.get(node.domain))
    try:
        return facts_of_results(definition, application)
    except (Undecided, *INVALID_NODE_ERRORS):
        return infer()


def _infer(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> list[Fact]:
    """Return the facts that onnx infers for a node's outputs.

    The facts are unknown if the op has no schema, the node refers to an attribute of a function, or
    onnx rejects the node.
    """
    version = opsets.get(node.domain)
    schema = None if version is None else schema_of(node.op_type, version, node.domain)
    if schema is None or has_references(node):
        return [UNKNOWN] * len(node.outputs)
    names = [f"i{k}" if f is not None else "" for k, f in enumerate(inputs)]
    outputs = [f"o{k}" if o.name else "" for k, o in enumerate(node.outputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    proto.attribute.extend(map(ir.serde.serialize_attribute, node.attributes.values()))
    facts = {name: f for name, f in zip(names, inputs, strict=True) if f is not None}
    types = {name: _type_proto(fact, algebra) for name, fact in facts.items()}
    data = {name: d for name, fact in facts.items() if (d := _data(fact)) is not None}
    for name, formal in schema.attributes.items():  # onnx's inference may use other defaults
        if name not in node.attributes and formal.default_value.type:
            proto.attribute.append(formal.default_value)
    inferred: Mapping[str, onnx.TypeProto] = {}
    with contextlib.suppress(Unfoldable):
        inferred = infer_types(schema, proto, types, data, opsets)
    # all omitted outputs have the name "", so a type inferred for it belongs to only one of them
    return [_fact(inferred.get(name) if name else None, algebra) for name in outputs]


def _fact(proto: onnx.TypeProto | None, algebra: Algebra) -> Fact:
    """Return the fact of a type that onnx inferred; `UNKNOWN` for None.

    A dimension with a name from `_type_proto` has the size that the name represents.
    """
    if proto is None or proto.WhichOneof("value") is None:
        return UNKNOWN
    if not proto.HasField("tensor_type"):
        return Fact(type_proto=proto.SerializeToString())
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Fact(dtype)
    shape: list[Number] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            size = algebra.sizes.get(dim.dim_param)
            shape.append(algebra.unknown(low=0) if size is None else size)
    return of_type(dtype, shape, algebra)


def _data(fact: Fact) -> onnx.TensorProto | None:
    known = fact.known
    dtype = fact.dtype
    if known is None or known.ndim > 1 or dtype is None or dtype.bitwidth < 8:
        return None
    # onnx may round sizes that depend on floats, such as the scales of Resize, unlike onnxruntime
    return tensor_proto(known) if dtype.is_integer() else None


def _type_proto(fact: Fact, algebra: Algebra) -> onnx.TypeProto:
    """Return the type of a fact. Names represent the expressions, see `Algebra.sizes`."""
    proto = onnx.TypeProto()
    if fact.type_proto is not None:
        proto.ParseFromString(fact.type_proto)
    elif fact.dtype is not None:
        proto.tensor_type.elem_type = fact.dtype.value
        if fact.shape is not None:
            proto.tensor_type.shape.SetInParent()
        for size in fact.shape or ():
            if isinstance(size, int):
                proto.tensor_type.shape.dim.add(dim_value=size)
            else:
                name = str(size.terms)
                algebra.sizes[name] = size
                proto.tensor_type.shape.dim.add(dim_param=name)
    return proto
