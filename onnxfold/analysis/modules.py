"""PyTorch modules of nodes and PyTorch names of weights.

They are derived from the metadata and the names that exporters write.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onnxfold.ir.graphs import all_graphs
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ops import definition_of
from onnxfold.ops.elementwise import Add

# The key of node metadata in which PyTorch's exporter writes the names of the modules and of the
# node. An example is "['', 'model', 'model.layers.0', 'add_3']".
_SCOPES = "pkg.torch.onnx.name_scopes"
# The scope of nodes that the exporter added and that belong to no module.
_PLACEHOLDER = "_empty_nn_module_stack_from_metadata_hook"
# Maximum number of characters of names and metadata that are parsed. Exporters write shorter ones.
_MAX_LENGTH = 10_000
# Maximum depth of modules.
_MAX_DEPTH = 64

Module = tuple[str, ...]
"""The names of nested modules, outermost first. The model itself is ()."""


def module_of(node: ir.Node) -> Module:
    """Return the module of a node.

    PyTorch's exporter writes the module into the node's metadata. Without valid metadata, the
    module consists of all parts but the last of a name such as
    ``/model/layers.0/self_attn/MatMul``. A node without such a name belongs to the model itself.
    """
    scopes = _scopes(node.metadata_props.get(_SCOPES, ""))
    if scopes is not None:
        return _relative(scopes)
    name = node.name or ""
    if "/" not in name or len(name) > _MAX_LENGTH:
        return ()
    return tuple(part for part in name.split("/")[:-1] if part)[:_MAX_DEPTH]


def common_module(modules: Sequence[Module]) -> Module:
    """Return the innermost module that contains all the modules; at least one is required."""
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
    """Return each name relative to the previous one, such as ("model", "layers.0", "mlp").

    Names of the model itself and of nodes without a module are omitted.
    """
    parts: list[str] = []
    previous = ""
    for scope in scopes[:_MAX_DEPTH]:
        if scope and scope != _PLACEHOLDER:
            parts.append(scope.removeprefix(f"{previous}."))
            previous = scope
    return tuple(parts)


# The name of a submodule of peft's layers. The adapters are its siblings.
_BASE_LAYER = "base_layer"


def parameter_names(model: ir.Model) -> dict[ir.Value, str]:
    """Return the PyTorch names of initializers, such as "layers.0.q_proj.lora_A.weight".

    Initializers of the main graph are considered. A name that contains a dot is the PyTorch name.
    Exporters rename weights that they transpose, so any other name is replaced by a name that is
    derived from the module of the consumers. Weights with consumers in several modules or in no
    module, and weights whose PyTorch names are equal, are omitted.
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
    """Return a module of an adapter with peft's names, such as (..., "lora_A", "default").

    TorchScript gives the submodules of lora_A and lora_B the same name, such as "default". The
    submodule that is called second has the suffix "_1". Other modules are returned unchanged.
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
