"""What a model imports and what its functions call: opsets that are known, calls that end."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator

import onnx

from onnxfold.errors import ModelError

# Calls written out may amount to so many nodes; real models stay far below.
_MOST_NODES = 10_000_000
Key = tuple[str, str, str]

_NEWEST = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}
_LARGEST_VERSION = (1 << 31) - 1


def opsets_of(
    imports: Iterable[onnx.OperatorSetIdProto], owner: str | None = None
) -> dict[str, int]:
    """The version of every domain that is imported, ONNX's own under its short name.

    Raises:
        ModelError: A version is no version, is newer than onnx knows, or contradicts another.
    """
    found: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        version = entry.version
        newest = _NEWEST.get(domain)
        if not 1 <= version <= (newest or _LARGEST_VERSION):
            known = f"; this release of onnx knows 1 to {newest}" if newest else ""
            raise ModelError(
                f"opset {version} of {domain or 'ONNX'} is imported{known}",
                node=owner,
            )
        if found.setdefault(domain, version) != version:
            raise ModelError(
                f"opsets {found[domain]} and {version} of {domain or 'ONNX'} are imported",
                node=owner,
            )
    return found


def check_calls(proto: onnx.ModelProto) -> None:
    """See that functions are there once, and that calls of them end.

    Raises:
        ModelError: A function is defined twice, calls itself, or calls amount to too many nodes.
    """
    functions: dict[Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        if key in functions:
            raise ModelError("the function is defined twice", node=function.name)
        functions[key] = function
    if not functions:
        return
    calls = {key: _called(function.node, functions) for key, function in functions.items()}
    sizes: dict[Key, int] = {}
    try:
        for key in graphlib.TopologicalSorter(calls).static_order():
            sizes[key] = len(functions[key].node) + sum(sizes[callee] for callee in calls[key])
    except graphlib.CycleError as error:
        raise ModelError("the function calls itself", node=error.args[1][0][1]) from None
    total = sum(sizes[callee] for callee in _called(proto.graph.node, functions))
    for key, size in sizes.items():
        if size + total > _MOST_NODES:
            reason = f"its calls amount to more than {_MOST_NODES} nodes"
            raise ModelError(reason, node=key[1])


def _called(nodes: Iterable[onnx.NodeProto], functions: dict[Key, onnx.FunctionProto]) -> list[Key]:
    """The functions that nodes call, as often as they do."""
    keys = ((node.domain, node.op_type, node.overload) for node in all_nodes(nodes))
    return [key for key in keys if key in functions]


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(attribute.g.node)
