"""The model that an engine is given: an operation, its operands, and the wanted results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onnxfold.graphs import nodes_within
from onnxfold.kernels.inference import schema_of, tensor_proto, type_of
from onnxfold.kernels.operation import Operation
from onnxfold.pool import Buffer

# Operands up to this many bytes travel inside the model, larger ones are fed in place.
_INLINE_BYTES = 4096

# Every supported onnxruntime reads it, while the model's own may be newer than the one installed;
# it is the first in which functions may be overloaded.
IR_VERSION = 10

# onnxruntime promises to run models from here on.
OLDEST_OPSET = 7


@dataclass
class Assembly:
    """A model, and the operands that are its inputs."""

    model: onnx.ModelProto
    outputs: list[str]
    """Names of the wanted results."""
    feeds: dict[str, Buffer] = field(default_factory=dict)
    """The operands that are not in the model, by their names."""


def assemble(
    operations: Sequence[Operation],
    wanted: Sequence[int],
    functions: Sequence[onnx.FunctionProto],
    opsets: Mapping[str, int],
    *,
    general: bool,
) -> Assembly:
    """Return a model of an operation.

    Every value gets a name of ours, in subgraphs too: what models call their values cannot clash.

    Args:
        operations: The operation, behind those that make sequences for it. Operands that are
            results of others in the list are wired inside the model; all others must be known.
        wanted: Which results of the operation to fetch, by their index.
        functions: The model's local functions.
        opsets: Domain to version.
        general: Make the same model for operands of other sizes and elements, but for strings and
            numbers of less than a byte. onnxruntime may compute other bits than for constants.
    """
    imports = dict(opsets)
    for function in functions:
        imports.setdefault(function.domain, 1)
    model = onnx.ModelProto(ir_version=IR_VERSION, functions=functions)
    for domain, version in imports.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    last = len(operations) - 1
    result = Assembly(model, [f"r{last}_{index}" for index in wanted])
    graph = model.graph
    graph.name = "fold"
    names: dict[Buffer, str] = {}
    for k, operation in enumerate(operations):
        for buffer in operation.operands:
            if buffer is not None and buffer not in names:
                names[buffer] = f"c{len(names)}"
                _supply(result, buffer, names[buffer], general)
        outputs = [f"r{k}_{i}" if v.name else "" for i, v in enumerate(operation.node.outputs)]
        names.update((b, outputs[i]) for i, b in enumerate(operation.results) if b is not None)
        operands = ["" if b is None else names[b] for b in operation.operands]
        graph.node.append(operation.to_proto(operands, outputs))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in result.outputs)
    return result


def _supply(assembly: Assembly, buffer: Buffer, name: str, general: bool) -> None:
    """Put a known operand into the model, or among what is fed to it."""
    graph = assembly.model.graph
    inline = buffer.dtype == ir.DataType.STRING or buffer.dtype.bitwidth < 8
    if inline or buffer.nbytes <= (0 if general else _INLINE_BYTES):
        graph.initializer.append(tensor_proto(buffer.dtype, buffer.array(), name))
        return
    kind = type_of(buffer)
    for dimension in kind.tensor_type.shape.dim if general else ():
        dimension.Clear()
    graph.input.append(onnx.ValueInfoProto(name=name, type=kind))
    assembly.feeds[name] = buffer


def oldest_opsets(operations: Sequence[Operation]) -> dict[str, int]:
    """Return the oldest opsets at which all the ops mean what they mean at the model's.

    A model may use an opset that is newer than this onnxruntime while its ops are not. A function
    is written for the opsets of its own, which onnxruntime applies to its body only as long as the
    model's are no older.
    """
    opsets = dict(operations[-1].opsets)
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
