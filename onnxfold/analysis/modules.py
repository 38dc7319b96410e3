"""The modules that nodes come from, by the name scopes that exporters write."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import onnx_ir as ir

# As PyTorch's exporter writes it: "['', 'model', 'model.layers.0', 'add_3']", the node at the end.
_SCOPES = "pkg.torch.onnx.name_scopes"
# What the exporter adds itself is in no module.
_PLACEHOLDER = "_empty_nn_module_stack_from_metadata_hook"
# Longer entries, which nobody's exporter writes, are not read.
_LONGEST = 10_000
_MOST = 64

Module = tuple[str, ...]
"""Names from the outside in; () is the model itself."""


def module_of(node: ir.Node) -> Module:
    """Return the module that a node comes from.

    PyTorch's exporter says it in the node's metadata. Otherwise it is the node's name without the
    last part, as in ``/model/layers.0/self_attn/MatMul``. A node whose name says nothing is the
    model's own.
    """
    scopes = _scopes(node.metadata_props.get(_SCOPES, ""))
    if scopes is not None:
        return _relative(scopes)
    name = node.name or ""
    if "/" not in name or len(name) > _LONGEST:
        return ()
    return tuple(part for part in name.split("/")[:-1] if part)[:_MOST]


def common_module(modules: Sequence[Module]) -> Module:
    """Return the innermost module that holds all of them."""
    first, last = min(modules), max(modules)
    same = 0
    while same < len(first) and same < len(last) and first[same] == last[same]:
        same += 1
    return first[:same]


def _scopes(text: str) -> list[str] | None:
    if not text or len(text) > _LONGEST:
        return None
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None  # another tool may write there what it likes
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        return None
    return scopes[:-1]


def _relative(scopes: Sequence[str]) -> Module:
    """Qualified names, each without what the one before says: ("model", "layers.0", "mlp")."""
    parts: list[str] = []
    before = ""
    for scope in scopes[:_MOST]:
        if scope and scope != _PLACEHOLDER:
            parts.append(scope.removeprefix(f"{before}."))
            before = scope
    return tuple(parts)
