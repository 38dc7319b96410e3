"""Remove the metadata that exporters write for debugging."""

from __future__ import annotations

from collections.abc import MutableMapping

import onnx
import onnx_ir as ir

from onnxfold.ir.graphs import all_graphs
from onnxfold.ir.onnx_ir_private import metadata_of, nodes_of
from onnxfold.passes.context import RunContext

# Metadata that describes the source from which an exporter created a node, value or graph. No
# runtime reads it. Names of modules (``name_scopes``) are not listed, because `inspect --tree`, the
# report page and the matching of adapters use them.
_DEBUGGING_KEYS = frozenset(
    {
        # PyTorch's exporter: nodes
        "pkg.torch.onnx.class_hierarchy",
        "pkg.torch.onnx.fx_node",
        "pkg.torch.onnx.stack_trace",
        # PyTorch's exporter: weights and the graph
        "pkg.torch.export.ExportedProgram.graph_signature",
        "pkg.torch.export.graph_signature.InputSpec.kind",
        "pkg.torch.export.graph_signature.InputSpec.persistent",
        "pkg.torch.onnx.original_node_name",
        # onnxscript: its builder, optimizer and rewriter
        "pkg.onnxscript.class_hierarchy",
        "pkg.onnxscript.optimizer.folded_from",
        "pkg.onnxscript.rewriter.rule_name",
        "pkg.onnxscript.shape_inference_error",
    }
)
# Any tool may write this key. PyTorch's exporter and onnxscript repeat the names and classes of
# modules in its entry. The entry is removed only if a key of one of these two tools is present.
_NAMESPACE = "namespace"
_NAME_SCOPES = frozenset({"pkg.torch.onnx.name_scopes", "pkg.onnxscript.name_scopes"})


class RemoveDebuggingMetadata(ir.passes.InPlacePass):
    """Remove stack traces, FX nodes, class names and signatures that exporters record.

    Names of modules and entries of other tools are not removed. Metadata of the model itself, of
    its inputs and of its outputs is not removed either.
    """

    def __init__(self, run: RunContext | None = None) -> None:
        self._run = run

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        removed = remove_debugging_metadata(model)
        if self._run is not None:
            self._run.result.removed_metadata_bytes += removed
        return ir.passes.PassResult(model, modified=removed > 0)


def remove_debugging_metadata(model: ir.Model) -> int:
    """Remove the metadata that exporters write for debugging.

    Returns:
        The number of bytes that the removed entries take in a file.
    """
    interface = {*model.graph.inputs, *model.graph.outputs}
    removed = 0
    for graph in all_graphs(model):
        removed += _remove(graph.metadata_props)
        values = [*graph.inputs, *graph.initializers.data.values()]
        for node in nodes_of(graph):
            if entries := metadata_of(node):
                removed += _remove(entries)
            values += node.outputs
        for value in values:
            entries = metadata_of(value)
            if entries and value not in interface:
                removed += _remove(entries)
    for function in model.functions.values():
        removed += _remove(function.metadata_props)
    return removed


def _remove(entries: MutableMapping[str, str]) -> int:
    """Remove the entries for debugging, and return the bytes that they take in a file."""
    keys = _DEBUGGING_KEYS.intersection(entries)
    if _NAMESPACE in entries and not _NAME_SCOPES.isdisjoint(entries):
        keys |= {_NAMESPACE}
    removed = 0
    for key in keys:
        removed += _bytes_in_file(key, entries.pop(key))
    return removed


def _bytes_in_file(key: str, text: str) -> int:
    """Return the bytes of a metadata entry in a file, with the entry's tag and length."""
    owner = onnx.GraphProto()
    owner.metadata_props.add(key=key, value=text)
    return int(owner.ByteSize())
