"""Whether a node has the operands and attributes that ONNX's schema of its op asks for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

_ANY = 1 << 31
_TENSOR, _GRAPH = ir.AttributeType.TENSOR, ir.AttributeType.GRAPH
_LOOKED_INTO = frozenset((_TENSOR, _GRAPH))
_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


class _Signature(NamedTuple):
    optional: tuple[bool, ...]
    """Which inputs may be left out by an empty name; the last one stands for all that follow."""
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    types: Mapping[str, int]
    required: tuple[str, ...]


@functools.cache
def _signature(domain: str, op_type: str, opset: int) -> _Signature | None:
    """What the schema says; None where there is none."""
    if not onnx.defs.has(op_type, opset, domain):
        return None
    schema = onnx.defs.get_schema(op_type, opset, domain)
    if schema.deprecated:
        return None
    attributes = schema.attributes.values()
    return _Signature(
        tuple(p.option == _OPTIONAL for p in schema.inputs),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {a.name: a.type.value for a in attributes},  # type: ignore[attr-defined]
        tuple(a.name for a in attributes if a.required),
    )


def objection(
    node: ir.Node, attributes: Sequence[ir.Attr], opsets: Mapping[str, int]
) -> str | None:
    """What is wrong with a node; None if nothing is, or ONNX does not define its op.

    Attributes that the schema does not have are nobody's concern.

    Args:
        node: The node.
        attributes: Its attributes as they were written: a name may be there twice.
        opsets: The version of every domain that is imported where the node is.
    """
    domain, op_type, inputs, outputs = node.domain, node.op_type, node.inputs, node.outputs
    types = {attribute.name: attribute.type for attribute in attributes} if attributes else {}
    if len(types) != len(attributes):
        names = [attribute.name for attribute in attributes]
        return f"attribute {max(names, key=names.count)!r} is given twice"
    opset = opsets.get(domain)
    if opset is None:
        return None if domain else "no opset of ONNX is imported"
    signature = _signature(domain, op_type, opset)
    if signature is None:
        return None
    if not signature.inputs[0] <= len(inputs) <= signature.inputs[1]:
        return _wrong_count(node, opset, "inputs", len(inputs), signature.inputs)
    if not signature.outputs[0] <= len(outputs) <= signature.outputs[1]:
        return _wrong_count(node, opset, "outputs", len(outputs), signature.outputs)
    if None in inputs:
        for place, value in enumerate(inputs):
            if value is None and not signature.optional[min(place, len(signature.optional) - 1)]:
                return f"input {place} of {op_type} is left out"
    for name in signature.required:
        if name not in types:
            return f"attribute {name!r} of {op_type} is missing"
    if (
        op_type == "Constant"
        and not domain
        and (len(types) != 1 or not types.keys() <= signature.types.keys())
    ):
        return f"a Constant has one value, this one has {', '.join(types) or 'none'}"
    for attribute in attributes:
        kind = attribute.type
        if kind not in _LOOKED_INTO and signature.types.get(attribute.name, kind) == kind:
            continue
        wrong = _attribute_objection(node, attribute, signature, opset)
        if wrong is not None:
            return wrong
    return None


def _attribute_objection(
    node: ir.Node, attribute: ir.Attr, signature: _Signature, opset: int
) -> str | None:
    name, kind = attribute.name, attribute.type
    if kind != signature.types.get(name, kind):
        expected = ir.AttributeType(signature.types[name])
        return (
            f"attribute {name!r} is of type {kind.name}, "
            f"{node.op_type} of opset {opset} has {expected.name}"
        )
    if attribute.is_ref():
        return None
    if kind == _TENSOR and attribute.value.dtype == ir.DataType.UNDEFINED:
        return "an attribute has no tensor"
    if kind == _GRAPH:
        return _body_objection(node, name, attribute.value, opset)
    return None


def _wrong_count(node: ir.Node, opset: int, what: str, count: int, range_: tuple[int, int]) -> str:
    least, most = range_
    expected = str(least) if least == most else f"{least} to {most}"
    return f"{node.op_type} of opset {opset} has {expected} {what}, this one has {count}"


def _body_objection(node: ir.Node, name: str, graph: ir.Graph, opset: int) -> str | None:
    """Whether a graph inside takes what the node hands it, and gives what the node gives."""
    given, most = len(node.inputs), len(node.outputs)
    least = most
    if node.op_type == "If":
        given = 0
    elif node.op_type == "Loop":
        given = max(given, 2)  # the trip count and the condition may be left out
        least = max(most, given - 2) + 1
        most = _ANY
    elif node.op_type == "Scan":
        given -= opset < 9  # the lengths of the sequences stay outside
        most = _ANY
    elif node.op_type != "SequenceMap":
        return None
    inputs = sum(not value.is_initializer() for value in graph.inputs)  # the others have a default
    if inputs != given:
        return f"graph {name!r} has {inputs} inputs, it is given {given}"
    if not least <= len(graph.outputs) <= most:
        return f"graph {name!r} has {len(graph.outputs)} outputs, not {least}"
    return None
