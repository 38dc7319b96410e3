"""Apply an op to facts: by its kernel, its shape function, or onnx's inference."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import (
    MOST_ELEMENTS,
    UNKNOWN,
    Array,
    Fact,
    list_of,
    of_array,
    of_items,
    of_type,
)
from onnxfold.analysis.symbolic.shape_functions import Application, Undecided, find
from onnxfold.graphs import has_references
from onnxfold.kernels.inference import infer_types, schema_of, tensor_proto
from onnxfold.kernels.registry import NotExact, Postpone, Unfoldable
from onnxfold.kernels.registry import find as find_kernel
from onnxfold.ops import Trait, ops

_MOST_BYTES = 1 << 12
_MOVING = frozenset(ops(Trait.MOVES))
INVALID_NODE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of a shape function for an invalid node: a missing axis, a list of lists."""

Results = Sequence[Fact]


def results_of(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> Results:
    """Return the facts of a node's outputs.

    Args:
        node: A node without subgraphs, of an op that is no function of the model.
        inputs: The facts of its inputs; None for omitted ones.
        opsets: Domain to version.
        algebra: The algebra of the model's expressions.
    """
    attributes = {name: python_value(a) for name, a in node.attributes.data.items()}
    op_type, operands = node.op_type, inputs
    like = inputs[1] if op_type == "CastLike" and len(inputs) == 2 else None
    if like is not None and like.dtype:  # its elements need not be known
        op_type, operands, attributes["to"] = "Cast", inputs[:1], like.dtype
    application = Application(
        op_type, operands, attributes, opsets.get("", 1), len(node.outputs), algebra
    )
    some = [fact for fact in operands if fact is not None and fact.items is not None]
    if some and node.domain == "":
        computed = _computed(application)
        if computed is not None:
            return computed
    function = find(node.op_type, node.domain)
    if function is not None:
        try:
            return function(application)
        except (Undecided, *INVALID_NODE_ERRORS):
            pass  # onnx's inference may succeed
    found = _infer(node, inputs, opsets, algebra)
    if node.op_type == "ConvTranspose" and node.domain == "":
        pads = "output_padding" in attributes and "SAME" in str(attributes.get("auto_pad"))
        if pads or any(fact and fact.rank != found[0].rank for fact in inputs[:1]):
            return [Fact(found[0].dtype)]  # onnx and onnxruntime count different sizes
    return found


def python_value(attribute: ir.Attr) -> Any:
    """Return an attribute's value; tensors are converted to arrays."""
    value = attribute.value
    return value.numpy() if attribute.type == ir.AttributeType.TENSOR else value


def _computed(application: Application) -> Results | None:
    """Return the results of the op's kernel if all operands are known and small.

    For an op that only moves elements, some may be expressions: the kernel moves their indices.
    """
    op_type, inputs = application.op_type, application.inputs
    arrays: list[Array | None] = [None if f is None else f.known for f in inputs]
    items: list[Number] = []
    if op_type in _MOVING and any(f is not None and f.is_symbolic for f in inputs):
        for k in range(len(inputs) if op_type == "Concat" else 1):
            objects = application.objects(k)
            if objects is not None:
                numbers = np.arange(len(items), len(items) + objects.size)
                arrays[k] = numbers.reshape(objects.shape)
                items += objects.flat
    if any(a is None and f is not None for a, f in zip(arrays, inputs, strict=True)):
        return None
    kernel = find_kernel(op_type, application.opset)
    if kernel is None:
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(
                arrays,
                application.attributes,
                n_outputs=application.n_outputs,
                most_bytes=_MOST_BYTES,
            )
    except (NotExact, Unfoldable, Postpone):
        return None
    if any(r.size > MOST_ELEMENTS or r.dtype.kind not in "fiub" for r in results):
        return None
    dtype = application.fact(0).dtype
    if items and dtype is not None:
        moved = [list_of([items[k] for k in r.flat]).reshape(r.shape) for r in results]
        return [of_items(array, dtype, application.algebra) for array in moved]
    return [of_array(r, ir.DataType.from_numpy(r.dtype)) for r in results]


def _infer(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> list[Fact]:
    """Return the facts of a node's outputs as onnx infers them; see `results_of`."""
    version = opsets.get(node.domain)
    schema = None if version is None else schema_of(node.op_type, version, node.domain)
    if schema is None or has_references(node):
        return [UNKNOWN] * len(node.outputs)
    names = [f"i{k}" if f is not None else "" for k, f in enumerate(inputs)]
    outputs = [f"o{k}" if o.name else "" for k, o in enumerate(node.outputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    for attribute in node.attributes.values():
        proto.attribute.append(ir.serde.serialize_attribute(attribute))
    facts = {name: f for name, f in zip(names, inputs, strict=True) if f is not None}
    types = {name: _type_proto(fact, algebra) for name, fact in facts.items()}
    data = {name: d for name, fact in facts.items() if (d := _data(fact)) is not None}
    for name, formal in schema.attributes.items():  # onnx's own defaults may differ
        if name not in node.attributes and formal.default_value.type:
            proto.attribute.append(formal.default_value)
    inferred: Mapping[str, onnx.TypeProto] = {}
    with contextlib.suppress(Unfoldable):
        inferred = infer_types(schema, proto, types, data, opsets)
    return [_fact(inferred.get(name), algebra) for name in outputs]


def _fact(proto: onnx.TypeProto | None, algebra: Algebra) -> Fact:
    """Return the fact of a type; its dimensions may be names of sizes."""
    if proto is None or proto.WhichOneof("value") is None:
        return UNKNOWN
    if not proto.HasField("tensor_type"):
        return Fact(other=proto.SerializeToString())
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
    known, dtype = fact.known, fact.dtype
    if known is None or known.ndim > 1 or dtype is None or dtype.bitwidth < 8:
        return None
    # sizes computed of floats (scales of a Resize) are rounded differently in onnxruntime
    return tensor_proto(known) if dtype.is_integer() else None


def _type_proto(fact: Fact, algebra: Algebra) -> onnx.TypeProto:
    """Return the type of a fact; expressions get names."""
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
                name = str(size.terms)
                algebra.sizes[name] = size
                proto.tensor_type.shape.dim.add(dim_param=name)
    return proto
