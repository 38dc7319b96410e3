"""Whether a node has the operands and attributes that ONNX's schema of its op asks for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import onnx

_A = onnx.AttributeProto
# Types that need no closer look; the first ones are the most frequent.
_PLAIN = (_A.INT, _A.INTS, _A.FLOAT, _A.TENSOR, _A.STRING, _A.FLOATS, _A.STRINGS)
_ANY = 1 << 31
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


def objection(node: onnx.NodeProto, opsets: Mapping[str, int]) -> str | None:
    """What is wrong with a node; None if nothing is, or ONNX does not define its op.

    Attributes that the schema does not have are nobody's concern.

    Args:
        node: The node.
        opsets: The version of every domain that is imported where the node is.
    """
    domain = node.domain if node.domain != "ai.onnx" else ""
    opset = opsets.get(domain)
    if opset is None:
        return None if domain else "no opset of ONNX is imported"
    types = {}
    is_empty = False
    for attribute in node.attribute:
        kind = attribute.type
        if kind not in _PLAIN and (wrong := _misfit(attribute)) is not None:
            return wrong
        if attribute.name in types:
            return f"attribute {attribute.name!r} is given twice"
        types[attribute.name] = kind
        if kind == _A.TENSOR and not attribute.t.data_type and not attribute.ref_attr_name:
            is_empty = True
    signature = _signature(domain, node.op_type, opset)
    if signature is None:
        return None
    if is_empty:
        return "an attribute has no tensor"
    inputs = list(node.input)
    if not signature.inputs[0] <= len(inputs) <= signature.inputs[1]:
        return _wrong_count(node, opset, "inputs", len(inputs), signature.inputs)
    if not signature.outputs[0] <= len(node.output) <= signature.outputs[1]:
        return _wrong_count(node, opset, "outputs", len(node.output), signature.outputs)
    if "" in inputs:
        for place, name in enumerate(inputs):
            if not name and not signature.optional[min(place, len(signature.optional) - 1)]:
                return f"input {place} of {node.op_type} is left out"
    for name, kind in types.items():
        if kind != signature.types.get(name, kind):
            return (
                f"attribute {name!r} is of type {_type_name(kind)}, "
                f"{node.op_type} of opset {opset} has {_type_name(signature.types[name])}"
            )
    for name in signature.required:
        if name not in types:
            return f"attribute {name!r} of {node.op_type} is missing"
    if (
        node.op_type == "Constant"
        and not domain
        and not (len(types) == 1 and types.keys() <= signature.types.keys())
    ):
        return f"a Constant has one value, this one has {', '.join(types) or 'none'}"
    return _body_objection(node, opset) if _A.GRAPH in types.values() else None


def _wrong_count(
    node: onnx.NodeProto, opset: int, what: str, count: int, range_: tuple[int, int]
) -> str:
    least, most = range_
    expected = str(least) if least == most else f"{least} to {most}"
    return f"{node.op_type} of opset {opset} has {expected} {what}, this one has {count}"


def _body_objection(node: onnx.NodeProto, opset: int) -> str | None:
    """Whether the graphs inside take what the node hands them, and give what it gives."""
    given, most = len(node.input), len(node.output)
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
    for attribute in node.attribute:
        if attribute.type == _A.GRAPH:
            graph = attribute.g
            defaults = {tensor.name for tensor in graph.initializer}
            inputs = sum(value.name not in defaults for value in graph.input)
            if inputs != given:
                return f"graph {attribute.name!r} has {inputs} inputs, it is given {given}"
            if not least <= len(graph.output) <= most:
                return f"graph {attribute.name!r} has {len(graph.output)} outputs, not {least}"
    return None


def _misfit(attribute: onnx.AttributeProto) -> str | None:
    """Whether an attribute has a type, and a value where the type has no natural one."""
    kind = attribute.type
    if kind not in _A.AttributeType.values() or kind == _A.UNDEFINED:
        if attribute.ref_attr_name:
            return None
        return f"attribute {attribute.name!r} has no type that is known"
    if kind == _A.GRAPH and not attribute.ref_attr_name and not attribute.HasField("g"):
        return f"attribute {attribute.name!r} has no graph"
    return None


def _type_name(kind: int) -> str:
    return _A.AttributeType.Name(kind) if kind in _A.AttributeType.values() else str(kind)
