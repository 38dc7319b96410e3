"""What PyTorch called the weights of a model, also where an exporter gave them other names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import onnx_ir as ir

from onnxfold.analysis.modules import Module, module_of
from onnxfold.graphs import all_graphs
from onnxfold.onnx_ir_private import uses

# peft's layers have these parts: in the module's name, TorchScript leaves out which one it is.
_BASE = "base_layer"


def parameter_names(model: ir.Model) -> dict[ir.Value, str]:
    """Return what PyTorch calls the weights of the main graph:
    "layers.0.q_proj.lora_A.default.weight".

    That is the name in the file if it has dots. Exporters that transpose a weight make up another
    one; the module is then that of the node that reads it. A weight is left out if nodes of several
    modules read it, or if its module has another weight that would be called the same.
    """
    modules = {node: module_of(node) for graph in all_graphs(model) for node in graph}
    known = set(modules.values())
    names: dict[ir.Value, str] = {}
    for value in model.graph.initializers.values():
        own = value.name or ""
        if "." in own:
            names[value] = own
            continue
        readers = uses(value)
        if len({modules.get(use.node, ()) for use in readers}) == 1:
            first = next(iter(readers))
            module = _with_part(modules.get(first.node, ()), known)
            if module:
                names[value] = ".".join((*module, _kind(value, first.node, first.idx)))
    often = Counter(names.values())
    return {value: name for value, name in names.items() if often[name] == 1}


def _kind(value: ir.Value, node: ir.Node, operand: int) -> str:
    is_vector = value.shape is not None and len(value.shape) == 1
    return "bias" if is_vector and (node.op_type == "Add" or operand == 2) else "weight"


def _with_part(module: Module, known: Collection[Module]) -> Module:
    """Return the module as peft names it: TorchScript calls lora_A.default and lora_B.default by
    the last.

    The one that is called second has "_1" behind its name.
    """
    if not module or (*module[:-1], _BASE) not in known:
        return module
    *outer, last = module
    first = last.removesuffix("_1")
    if last == _BASE or (*outer, first) not in known or (*outer, f"{first}_1") not in known:
        return module
    return (*outer, "lora_A" if last == first else "lora_B", first)
