"""A model for an engine: an operation, its operands, and the wanted results."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxfold.kernels.inference import tensor_proto, type_of
from onnxfold.kernels.operation import OWN, Operation
from onnxfold.pool import Buffer

# Operands up to this many bytes are stored in the model, larger ones are fed.
_INLINE_BYTES = 4096

# All supported versions of onnxruntime read it, even if the model's own version is newer than the
# installed one supports; the first version with overloads of functions.
IR_VERSION = 10


def assemble(
    operation: Operation,
    wanted: Sequence[int],
    functions: Sequence[onnx.FunctionProto],
    *,
    general: bool,
) -> tuple[onnx.ModelProto, dict[str, Buffer]]:
    """Return a model of an operation, and the operands that are not in it by their names.

    Args:
        operation: The operation, whose operands are known.
        wanted: The indices of its results to fetch.
        functions: The model's local functions.
        general: Make the same model for operands of other sizes and elements, but for strings and
            numbers of less than a byte. onnxruntime may compute other bits than for constants.
    """
    imports = dict(operation.opsets)
    for function in functions:
        imports.setdefault(function.domain, 1)
    model = onnx.ModelProto(ir_version=IR_VERSION, functions=functions)
    for domain, version in imports.items():
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    graph = model.graph
    graph.name = "fold"
    feeds: dict[str, Buffer] = {}
    names: dict[Buffer | None, str] = {None: ""}
    inputs = operation.inputs
    for buffer in inputs:
        if buffer is not None and buffer not in names:
            names[buffer] = f"{OWN}c{len(names)}"
            _supply(graph, feeds, buffer, names[buffer], general)
    for value, buffer in zip(operation.captures, operation.operands[len(inputs) :], strict=True):
        assert buffer is not None and value.name is not None
        _supply(graph, feeds, buffer, value.name, general)
    outputs = [f"{OWN}r{k}" if o.name else "" for k, o in enumerate(operation.node.outputs)]
    graph.node.append(operation.to_proto([names[b] for b in inputs], outputs))
    graph.output.extend(onnx.ValueInfoProto(name=f"{OWN}r{index}") for index in wanted)
    return model, feeds


def _supply(
    graph: onnx.GraphProto, feeds: dict[str, Buffer], buffer: Buffer, name: str, general: bool
) -> None:
    """Put a known operand into the model, or add it to the feeds."""
    inline = buffer.dtype == ir.DataType.STRING or buffer.dtype.bitwidth < 8
    if inline or buffer.nbytes <= (0 if general else _INLINE_BYTES):
        graph.initializer.append(tensor_proto(buffer.array(), name))
        return
    kind = type_of(buffer)
    for dimension in kind.tensor_type.shape.dim if general else ():
        dimension.Clear()
    graph.input.append(onnx.ValueInfoProto(name=name, type=kind))
    feeds[name] = buffer
