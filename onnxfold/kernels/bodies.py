"""Subgraphs of a node as an engine gets them: every value under a name of ours.

Names in a model are chosen by others. A body that reads an outer value ``c2`` would read whatever
an engine's model calls ``c2``, and one that has a ``c2`` of its own would hide it. So values are
followed as objects, not by name, and all of them are renamed.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import onnx
import onnx_ir as ir


def rename(
    proto: onnx.AttributeProto,
    attribute: ir.Attr,
    names: MutableMapping[ir.Value, str],
    fresh: Iterator[str],
) -> None:
    """Rename all values in the graphs of a serialized attribute.

    Args:
        proto: What ``attribute`` was serialized to; changed in place.
        attribute: An attribute of any type.
        names: What outer values are called; gets the names of the others.
        fresh: Names that nothing else in the engine's model has.
    """
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.GRAPH:
        _rename_graph(proto.g, attribute.as_graph(), names, fresh)
    elif attribute.type == ir.AttributeType.GRAPHS:
        for graph_proto, graph in zip(proto.graphs, attribute.as_graphs(), strict=True):
            _rename_graph(graph_proto, graph, names, fresh)


def _rename_graph(
    proto: onnx.GraphProto,
    graph: ir.Graph,
    names: MutableMapping[ir.Value, str],
    fresh: Iterator[str],
) -> None:
    for value in (*graph.inputs, *graph.initializers.values()):
        names[value] = next(fresh)
    for info, value in zip(proto.input, graph.inputs, strict=True):
        info.name = names[value]
    for tensor in proto.initializer:
        tensor.name = names[graph.initializers[tensor.name]]
    for node_proto, node in zip(proto.node, graph, strict=True):
        node_proto.input[:] = ["" if v is None else names[v] for v in node.inputs]
        for attribute_proto, attribute in zip(
            node_proto.attribute, node.attributes.values(), strict=True
        ):
            rename(attribute_proto, attribute, names, fresh)
        for value in node.outputs:
            names[value] = next(fresh) if value.name else ""
        node_proto.output[:] = [names[value] for value in node.outputs]
    for info, value in zip(proto.output, graph.outputs, strict=True):
        info.name = names[value]
    # what onnx found out about values by their old names the engine finds out itself
    del proto.value_info[:], proto.quantization_annotation[:]
