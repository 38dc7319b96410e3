"""Inference of the types of an operation's results by onnx, and queries of onnx's schemas."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.shape_inference
import onnx_ir as ir

from onnxfold.fold.operation import OWN, Operation
from onnxfold.fold.pool import Buffer
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ops import definition_of, find
from onnxfold.ops.numpy_kernels import Array, Unfoldable

MAX_SIZE_ELEMENTS = 64
"""Integer operands of up to this many elements may be sizes and are passed to shape inference."""
# A shape that only element-wise ops preserve: all sizes differ, and one of them is 1.
_ANY_SIZES = [2, 3, 1, 5]
# The exceptions that onnx raises for invalid nodes.
_INFERENCE_ERRORS = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    ValueError,
    RuntimeError,
)


_Type = tuple[tuple[int, ...], ir.DataType]


def infer(operation: Operation) -> list[_Type | None]:
    """Return the shape and dtype of each result, or None for a result that onnx cannot infer.

    Raises:
        Unfoldable: The operation is invalid, a result is not a tensor, or inference would crash or
            never end.
    """
    node = operation.node
    schema = schema_of(node.op_type, operation.opset, node.domain)
    if schema is None:
        return [None] * len(node.outputs)
    names = [f"{OWN}i{k}" if b is not None else "" for k, b in enumerate(operation.inputs)]
    outputs = [f"{OWN}o{k}" if o.name else "" for k, o in enumerate(node.outputs)]
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    captures = [value.name or "" for value in operation.captures]
    for name, buffer in zip([*names, *captures], operation.operands, strict=True):
        if buffer is None:
            continue
        types[name] = type_of(buffer)
        # for floats, such as the scales of Resize, onnx may infer other sizes than onnxruntime
        is_integer = buffer.dtype.is_integer() and buffer.dtype.bitwidth >= 8
        if is_integer and buffer.is_known and buffer.size <= MAX_SIZE_ELEMENTS:
            data[name] = tensor_proto(buffer.array())
    proto = operation.to_proto(names, outputs)
    inferred = infer_types(schema, proto, types, data, operation.opsets)
    return [_result_type(inferred.get(name)) for name in outputs]


def infer_types(
    schema: onnx.defs.OpSchema,
    node: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    data: dict[str, onnx.TensorProto],
    opsets: Mapping[str, int],
) -> Mapping[str, onnx.TypeProto]:
    """Return the types that onnx infers for the outputs of a node, by name.

    Args:
        schema: The schema of the op.
        node: The node.
        types: The types of the inputs, by name.
        data: The known elements of inputs, by name.
        opsets: The version of each domain.

    Raises:
        Unfoldable: onnx rejects the node, or would crash or never end.
    """
    clamps = find(node.op_type, node.domain).clamps_attributes
    for attribute in node.attribute:
        is_wide = not -(1 << 31) <= attribute.i < 1 << 31
        if is_wide and attribute.type == onnx.AttributeProto.INT and not clamps:
            # onnx truncates the integer to 32 bits and uses it as an index without a check
            raise Unfoldable(f"shape inference: {attribute.name} is {attribute.i}")
        terms = attribute.s.partition(b"->")[0].split(b",") if attribute.name == "equation" else ()
        if any(b"." in term.replace(b"...", b"", 1) for term in terms):
            # onnx's parser of Einsum equations would never end
            raise Unfoldable(f"shape inference: the equation is {attribute.s!r}")
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        inferred: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=imports
        )
    except _INFERENCE_ERRORS as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Unfoldable(f"shape inference: {reason}") from error
    return inferred


def may_be_constant(value: ir.Value, dtype: ir.DataType | None, elements: Array | None) -> bool:
    """Return whether runtimes load a model in which a computed value is replaced by a constant.

    ``elements`` is None if the elements are unknown or too many for sizes or axes. Then, and also
    for more than `MAX_SIZE_ELEMENTS` elements, `Op.accepts_constant` is not checked.
    """
    for use in uses(value):
        definition = definition_of(use.node)
        if use.idx in definition.overwritten and definition.overwrites(use.node):
            return False
        if elements is None or elements.size > MAX_SIZE_ELEMENTS:
            continue
        if use.idx not in definition.restricted_constants:
            continue
        if not definition.accepts_constant(use.node, use.idx, dtype, elements):
            return False
    return True


@functools.cache
def known_domains() -> frozenset[str]:
    """Return the domains of the ops that onnx defines."""
    return frozenset(schema.domain for schema in onnx.defs.get_all_schemas())


def index_of_input(name: str, schema: onnx.defs.OpSchema | None) -> int | None:
    """Return the index of an input that was an attribute in older opsets, such as ``axes``.

    The result is None if the schema is None, still has the attribute, or has no such input.
    """
    if schema is None or name in schema.attributes:
        return None
    return next((k for k, formal in enumerate(schema.inputs) if formal.name == name), None)


def type_of(buffer: Buffer) -> onnx.TypeProto:
    """Return the ONNX type of a buffer's value."""
    return onnx.helper.make_tensor_type_proto(buffer.dtype.value, buffer.shape)


@functools.lru_cache(maxsize=4096)
def schema_of(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    """Return the schema of an op at an opset; None if onnx does not define the op at this opset."""
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def is_elementwise(op_type: str, opset: int, dtypes: tuple[ir.DataType | None, ...]) -> bool:
    """Return whether an ONNX op computes element by element on operands of these dtypes.

    Operands of equal shapes then have a result of the same shape, and no integer is an index or a
    size. The result is False for dtypes other than floats and booleans. The dtype of an omitted
    operand is None.
    """
    schema = schema_of(op_type, opset, "")
    kinds = onnx.defs.OpSchema.AttrType
    if schema is None or not schema.min_input <= len(dtypes) <= schema.max_input:
        return False
    if any(a.type not in (kinds.FLOAT, kinds.STRING) for a in schema.attributes.values()):
        return False
    types = {}
    for k, dtype in enumerate(dtypes):
        if dtype is None:
            continue
        if not (dtype.is_floating_point() or dtype == ir.DataType.BOOL):
            return False
        types[f"i{k}"] = onnx.helper.make_tensor_type_proto(dtype.value, _ANY_SIZES)
    names = ["" if dtype is None else f"i{k}" for k, dtype in enumerate(dtypes)]
    try:
        node = onnx.helper.make_node(op_type, names, ["o"])
        inferred = infer_types(schema, node, types, {}, {"": opset})
    except Unfoldable:
        return False
    if len(schema.outputs) != 1 or "o" not in inferred:
        return False
    return [d.dim_value for d in inferred["o"].tensor_type.shape.dim] == _ANY_SIZES


@functools.cache
def accepts_dtype(op_type: str, opset: int, domain: str, index: int, dtype: ir.DataType) -> bool:
    """Return whether an input of an op may have a dtype; True for ops that onnx does not define."""
    schema = schema_of(op_type, opset, domain)
    if schema is None or not schema.inputs:
        return True
    formal = schema.inputs[min(index, len(schema.inputs) - 1)]
    return f"tensor({dtype.name.lower()})" in formal.types


def tensor_proto(elements: Array, name: str = "") -> onnx.TensorProto:
    """Return a protobuf tensor with the elements of an array from the pool."""
    array = elements.astype(object) if elements.dtype.kind == "S" else elements
    return onnx.numpy_helper.from_array(array, name)


def _result_type(proto: onnx.TypeProto | None) -> _Type | None:
    if proto is None or not proto.WhichOneof("value"):
        return None
    if not proto.HasField("tensor_type"):
        raise Unfoldable("its result is not a tensor")
    tensor = proto.tensor_type
    is_static = tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)
    if not tensor.elem_type or not is_static:
        return None
    shape = tuple(d.dim_value for d in tensor.shape.dim)
    if any(d < 0 for d in shape):
        raise Unfoldable(f"its result would have shape {list(shape)}")
    return shape, ir.DataType(tensor.elem_type)
