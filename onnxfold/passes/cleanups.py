"""Short passes for dead code, Constant nodes, functions and metadata."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.facts import facts_of
from onnxfold.api.options import Options
from onnxfold.fold.inference import schema_of
from onnxfold.ir import storage
from onnxfold.ir.editing import Names, remove_nodes, remove_unused
from onnxfold.ir.graphs import all_graphs, tensor_of
from onnxfold.ir.onnx_ir_private import is_unused, is_used, nodes_in, nodes_of
from onnxfold.passes.shapes import fixed_dims
from onnxfold.passes.stored import store


@dataclass(eq=False)
class RemoveDeadCode(ir.passes.InPlacePass):
    """Remove nodes whose results are unused, unused initializers, and uncalled functions.

    Nodes whose results only subgraphs of unused nodes read are removed, too. Inputs and outputs of
    the model, and nodes that the option ``keep`` matches, are not removed. Unused outputs of a used
    node are kept, because the results of a kernel may depend on the set of used outputs.
    """

    options: Options = field(default_factory=Options)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        graphs = facts_of(model).scopes.graphs()
        before = sum(map(len, graphs))
        unused_nodes = [node for graph in graphs for node in nodes_in(graph) if is_unused(node)]
        remove_unused(unused_nodes, self.options.keeps if self.options.keep else None)
        modified = sum(map(len, graphs)) < before
        for graph in graphs:
            unused = [
                name
                for name, value in graph.initializers.data.items()
                if not (is_used(value) or value.is_graph_input())
            ]
            for name in unused:
                del graph.initializers[name]
            modified = modified or bool(unused)
        if model.functions:
            modified = common.RemoveUnusedFunctionsPass()(model).modified or modified  # type: ignore[no-untyped-call]
        return ir.passes.PassResult(model, modified=modified)


class LiftConstants(ir.passes.InPlacePass):
    """Turn Constant nodes into initializers.

    A node is not changed if it produces a graph output or refers to an attribute of its function.
    Nodes of a function's own graph are not changed either, because functions cannot have
    initializers.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        facts = facts_of(model)
        lifted = []
        for graph in facts.scopes.graphs():
            scope = facts.scopes.of(graph)
            if scope.in_function and scope.parent is None:
                continue
            for node in nodes_of(graph):
                if node.op_type != "Constant" or node.domain or node.outputs[0].is_graph_output():
                    continue
                value = node.outputs[0]
                (attribute,) = node.attributes.data.values()
                tensor = tensor_of(attribute, value.name)
                if tensor is not None:
                    store((value,), tensor, facts)
                    lifted.append(node)
        remove_nodes(lifted)
        return ir.passes.PassResult(model, modified=bool(lifted))


@dataclass(eq=False)
class InlineFunctions(ir.passes.InPlacePass):
    """Inline calls of functions whose opsets are compatible with those of the model.

    A function is not inlined if the option ``keep`` matches one of its calls. It is not inlined
    either if ONNX defines an op with the same name.
    """

    options: Options = field(default_factory=Options)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        names = Names(all_graphs(model))
        kept = set()
        for node in (node for graph in all_graphs(model) for node in graph):
            function = model.functions.get(node.op_identifier())
            if function is None:
                continue
            node.resize_outputs(len(function.outputs))
            if any(map(self.options.keeps, node.outputs)):
                kept.add(node.op_identifier())
            for value in node.outputs:
                # a node of the function may read the value, so the value requires a name
                value.name = value.name or names.fresh("unread")
        opsets = dict(model.opset_imports)
        if opsets:
            opsets.setdefault("", storage.onnx_opset(opsets))
        not_inlined = set(kept)
        for name, function in model.functions.items():
            domain, op_type, _ = name
            imports = function.opset_imports
            is_compatible = all(opsets.get(d, version) == version for d, version in imports.items())
            # onnxruntime runs its own op instead of a function with the same name
            is_op = schema_of(op_type, opsets.get(domain, 1), domain) is not None
            if name in kept or is_op or not is_compatible:
                not_inlined.add(name)
            else:
                opsets.update(imports)  # inlining adds the imports of the function to the model
        return common.InlinePass(lambda function: function.identifier() not in not_inlined)(model)


class ClearMetadata(common.ClearMetadataAndDocStringPass):
    """Remove metadata and doc strings of graphs and nodes, and the record of fixed dimensions.

    All other metadata of the model is not removed, because applications read it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        removed = model.metadata_props.pop(fixed_dims.KEY, None)
        return ir.passes.PassResult(model, super().call(model).modified or removed is not None)
