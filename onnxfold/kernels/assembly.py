"""A model for an engine: some operations, their operands, and the wanted results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onnxfold.graphs import nodes_within
from onnxfold.kernels.inference import schema_of, tensor_proto, type_of
from onnxfold.kernels.operation import Operation, Output
from onnxfold.pool import Buffer

# Operands up to this many bytes are stored in the model, larger ones are fed.
_INLINE_BYTES = 4096

# All supported versions of onnxruntime read it, even if the model's own version is newer than the
# installed one supports; the first version with overloads of functions.
IR_VERSION = 10

# The oldest opset for which onnxruntime guarantees support.
OLDEST_OPSET = 7


@dataclass
class Assembly:
    """A model whose inputs are large operands only."""

    model: onnx.ModelProto
    feeds: dict[str, Buffer] = field(default_factory=dict)
    """The large operands by input name."""
    outputs: list[str] = field(default_factory=list)
    """Names of the wanted results."""


def assemble(
    operations: Sequence[Operation],
    wanted: Sequence[Output],
    functions: Sequence[onnx.FunctionProto],
    opsets: Mapping[str, int],
) -> Assembly:
    """Return a model of operations.

    Every value gets a new name, in subgraphs too, so that names of the model cannot clash.

    Args:
        operations: Operations in topological order. Operands that are results of others in the list
            are connected in the model; all others must be known.
        wanted: The outputs to fetch.
        functions: The model's local functions.
        opsets: Domain to version.
    """
    imports = dict(opsets)
    for function in functions:
        imports.setdefault(function.domain, 1)
    model = onnx.ModelProto(ir_version=IR_VERSION, functions=functions)
    for domain, version in imports.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    result = Assembly(model)
    graph = model.graph
    graph.name = "fold"
    names: dict[Buffer, str] = {}
    produced: dict[Output, str] = {}
    for k, operation in enumerate(operations):
        for buffer in operation.operands:
            if buffer is not None and buffer not in names:
                names[buffer] = f"c{len(names)}"
                _supply(result, buffer, names[buffer])
        outputs = []
        for index, value in enumerate(operation.node.outputs):
            name = f"r{k}_{index}" if value.name else ""
            outputs.append(name)
            produced[operation, index] = name
            made = operation.results[index] if operation.results else None
            if made is not None:
                names[made] = name
        operands = ["" if b is None else names[b] for b in operation.operands]
        graph.node.append(operation.to_proto(operands, outputs))
    for output in wanted:
        result.outputs.append(produced[output])
        graph.output.append(onnx.ValueInfoProto(name=produced[output]))
    return result


def _supply(assembly: Assembly, buffer: Buffer, name: str) -> None:
    """Put a known operand into the model, or add it to the feeds."""
    graph = assembly.model.graph
    inline = buffer.dtype == ir.DataType.STRING or buffer.dtype.bitwidth < 8
    if inline or buffer.nbytes <= _INLINE_BYTES:
        graph.initializer.append(tensor_proto(buffer.dtype, buffer.array(), name))
    else:
        graph.input.append(onnx.ValueInfoProto(name=name, type=type_of(buffer)))
        assembly.feeds[name] = buffer


def oldest_opsets(operations: Sequence[Operation]) -> dict[str, int]:
    """Return the oldest opsets at which all the ops have the same meaning as at those of the model.

    A model may use an opset newer than this onnxruntime supports, but only ops that have not
    changed. A function has opsets of its own, which onnxruntime applies to its body only if the
    model's are at least as new.
    """
    opsets = dict(operations[0].opsets)
    version = 1
    for node in nodes_within(operation.node for operation in operations):
        schema = schema_of(node.op_type, opsets.get(node.domain, 1), node.domain)
        if schema is None:
            return opsets
        if node.domain == "":
            version = max(version, schema.since_version)
    if "" in opsets:
        opsets[""] = max(version, min(opsets[""], OLDEST_OPSET))
    return opsets
