"""How many bytes a model takes, or will take once it is saved."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.graphs import all_graphs
from onnxfold.storage.bound import entry_bytes
from onnxfold.storage.layout import nbytes_of, plan_external, plan_single
from onnxfold.storage.load import EXTERNAL_KEY, FILES_KEY


def planned_bytes(model: ir.Model) -> int:
    """Return the length in bytes of the files that saving ``model`` would write.

    Exact, from types and shapes alone: only tensors below a few KiB are read.

    Raises:
        ModelError: The model cannot be serialized.
    """
    if not model.meta.get(EXTERNAL_KEY):
        try:
            return plan_single(model).model("").size
        except UsageError:  # too large for one file
            pass
    plan = plan_external(model, lambda span: None)
    return plan.model("").size + (plan.data.size if plan.data is not None else 0)


def takes_more(model: ir.Model, size: int, bare: int) -> bool:
    """Return whether the files that saving ``model`` would write are longer than ``size`` bytes.

    Args:
        model: The model.
        size: That many bytes.
        bare: What `most_bytes` says of the model.
    """
    described = (
        entry_bytes(value, value.shape)
        for graph in all_graphs(model)
        for node in graph
        for value in node.outputs
        if value.type is not None and not value.is_graph_output()  # those are counted
    )
    return bare + sum(described) > size and planned_bytes(model) > size


def least_bytes(model: ir.Model) -> int:
    """Return a lower bound of the length of the files that hold ``model``, quickly found.

    Counts names, op types and tensors, and nothing of the format around them.
    """
    tensors: dict[int, int] = {}
    total = 0
    for graph in all_graphs(model):
        for name, value in graph.initializers.items():
            total += len(name)
            if value.const_value is not None:
                tensors[id(value.const_value)] = nbytes_of(value.const_value)
        for node in graph:
            total += len(node.op_type) + len(node.name or "")
            for result in (*node.inputs, *node.outputs):
                if result is not None and result.name:
                    total += len(result.name)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                    tensors[id(attribute.value)] = nbytes_of(attribute.value)
    return total + sum(tensors.values())


def model_bytes(model: ir.Model) -> int:
    """Return the length in bytes of the files that ``model`` was loaded from."""
    return sum({file.key: file.size for file in model.meta[FILES_KEY]}.values())


def tensors_of(model: ir.Model) -> list[ir.TensorProtocol]:
    """Return the tensors of initializers and attributes everywhere in the model."""
    found: dict[int, ir.TensorProtocol] = {}
    owners: list[ir.Function | ir.Node] = [*model.functions.values()]
    for graph in all_graphs(model):
        owners += graph
        for value in graph.initializers.values():
            if value.const_value is not None:
                found[id(value.const_value)] = value.const_value
    for owner in owners:
        for attribute in owner.attributes.values():
            if attribute.is_ref() or attribute.value is None:
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                found[id(attribute.value)] = attribute.value
            elif attribute.type == ir.AttributeType.TENSORS:
                found.update((id(tensor), tensor) for tensor in attribute.value)
    return list(found.values())
