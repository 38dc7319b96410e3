"""PyTorch modules of nodes and PyTorch names of weights, from an exporter's metadata."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onnxfold.ir.graphs import all_graphs
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ops import definition_of
from onnxfold.ops.elementwise import Add

# PyTorch's exporter writes "['', 'model', 'model.layers.0', 'add_3']"; the last name is the node.
_SCOPES = "pkg.torch.onnx.name_scopes"
# The scope of nodes that the exporter added and that belong to no module.
_PLACEHOLDER = "_empty_nn_module_stack_from_metadata_hook"
# Maximum characters of entries that are parsed; exporters write shorter ones.
_MAX_LENGTH = 10_000
# Maximum depth of modules.
_MAX_DEPTH = 64

Module = tuple[str, ...]
"""The names of nested modules from the outermost inward; () is the model itself."""


def module_of(node: ir.Node) -> Module:
    """Return the module of a node.

    PyTorch's exporter writes it into the node's metadata. Otherwise it is the node's name without
    the last part, as in ``/model/layers.0/self_attn/MatMul``. A node without such a name belongs to
    the model itself.
    """
    scopes = _scopes(node.metadata_props.get(_SCOPES, ""))
    if scopes is not None:
        return _relative(scopes)
    name = node.name or ""
    if "/" not in name or len(name) > _MAX_LENGTH:
        return ()
    return tuple(part for part in name.split("/")[:-1] if part)[:_MAX_DEPTH]


def common_module(modules: Sequence[Module]) -> Module:
    """Return the innermost module that contains all the modules."""
    first = min(modules)
    last = max(modules)
    depth = 0
    while depth < len(first) and depth < len(last) and first[depth] == last[depth]:
        depth += 1
    return first[:depth]


def _scopes(text: str) -> list[str] | None:
    if not text or len(text) > _MAX_LENGTH:
        return None
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None  # other tools may write arbitrary text
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        return None
    return scopes[:-1]


def _relative(scopes: Sequence[str]) -> Module:
    """Return each qualified name relative to the previous one: ("model", "layers.0", "mlp")."""
    parts: list[str] = []
    previous = ""
    for scope in scopes[:_MAX_DEPTH]:
        if scope and scope != _PLACEHOLDER:
            parts.append(scope.removeprefix(f"{previous}."))
            previous = scope
    return tuple(parts)


# A submodule of peft's layers; its siblings are the adapters.
_BASE_LAYER = "base_layer"


def parameter_names(model: ir.Model) -> dict[ir.Value, str]:
    """Return the PyTorch names of the main graph's weights: "layers.0.q_proj.lora_A.weight".

    A name in the file with dots is the PyTorch name. Exporters rename weights that they transpose.
    Their names are derived from the module of the consumer. Weights with consumers in several
    modules, and weights with equal names, are omitted.
    """
    modules = {node: module_of(node) for graph in all_graphs(model) for node in graph}
    all_modules = set(modules.values())
    names: dict[ir.Value, str] = {}
    for value in model.graph.initializers.values():
        name_in_file = value.name or ""
        if "." in name_in_file:
            names[value] = name_in_file
            continue
        consumers = uses(value)
        if len({modules.get(use.node, ()) for use in consumers}) == 1:
            first = next(iter(consumers))
            module = _with_adapter(modules.get(first.node, ()), all_modules)
            if module:
                names[value] = ".".join((*module, _parameter_kind(value, first.node, first.idx)))
    counts = Counter(names.values())
    return {value: name for value, name in names.items() if counts[name] == 1}


def _parameter_kind(value: ir.Value, node: ir.Node, operand: int) -> str:
    is_vector = value.shape is not None and len(value.shape) == 1
    is_added = isinstance(definition_of(node), Add) or operand == 2
    return "bias" if is_vector and is_added else "weight"


def _with_adapter(module: Module, all_modules: Collection[Module]) -> Module:
    """Return the module with peft's name of an adapter: "lora_A.default" or "lora_B.default".

    TorchScript gives both submodules the same name; the second one called has the suffix "_1".
    """
    if not module or (*module[:-1], _BASE_LAYER) not in all_modules:
        return module
    *outer, last = module
    first = last.removesuffix("_1")
    if (
        last == _BASE_LAYER
        or (*outer, first) not in all_modules
        or (*outer, f"{first}_1") not in all_modules
    ):
        return module
    return (*outer, "lora_A" if last == first else "lora_B", first)
