"""Inputs at the end that are left out, and optional outputs that nobody reads."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onnxfold.editing.removal import is_used
from onnxfold.kernels.inference import schema_of

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
# From here on an attribute, and not the number of outputs, says whether it trains.
_TRAINING_MODE = 14


def has_idle_ends(node: ir.Node) -> bool:
    """True if an input at the end is left out, or one of several outputs is read by nobody.

    Few nodes have any, and only for those a schema need be looked up.
    """
    inputs, outputs = node.inputs, node.outputs
    if inputs and inputs[-1] is None:
        return True
    return len(outputs) > 1 and not all(is_used(value) for value in outputs)


def cut_idle_ends(node: ir.Node, opset: int) -> bool:
    """Leave out what is optional and nobody asks for.

    Args:
        node: Any node.
        opset: The version of its domain.

    Returns:
        Whether the node was changed.
    """
    before = len(node.inputs), [value.name for value in node.outputs]
    schema = schema_of(node.op_type, opset, node.domain)
    # A Loop has two inputs even if both are left out.
    fewest = len(node.inputs) if schema is None else schema.min_input
    count = len(node.inputs)
    while count > fewest and node.inputs[count - 1] is None:
        count -= 1
    node.resize_inputs(count)
    if schema is not None and len(node.outputs) > 1 and not _counts_outputs(node, opset):
        formal = schema.outputs
        for k, value in enumerate(node.outputs):
            if k >= len(formal) or formal[k].option == _VARIADIC:
                break
            is_optional = formal[k].option == _OPTIONAL and not _is_state(node, schema, k)
            if is_optional and not is_used(value):
                value.name = ""
        count = len(node.outputs)
        while count > schema.min_output and not node.outputs[count - 1].name:
            count -= 1
        node.resize_outputs(count)
    return before != (len(node.inputs), [value.name for value in node.outputs])


def _counts_outputs(node: ir.Node, opset: int) -> bool:
    """True for the ops that do something else when they have fewer outputs.

    onnxruntime's MaxPool passes a NaN by in another way when it is not asked for indices.
    """
    if node.op_type == "MaxPool":
        return True
    if node.op_type != "BatchNormalization":
        return False
    mode = node.attributes.get("training_mode")
    return opset < _TRAINING_MODE or (mode is not None and (mode.is_ref() or bool(mode.as_int())))


def _is_state(node: ir.Node, schema: onnx.defs.OpSchema, index: int) -> bool:
    """True for a ``present_*`` output whose ``past_*`` input is given: runtimes want both."""
    name = schema.outputs[index].name
    if not name.startswith("present"):
        return False
    past = name.replace("present", "past", 1)
    return any(
        formal.name == past and given is not None
        for formal, given in zip(schema.inputs, node.inputs, strict=False)
    )
