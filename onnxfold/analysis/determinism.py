"""An analysis that finds nodes whose results are equal in every run and in every runtime.

It uses onnx's schemas and the op definitions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from onnxfold.fold.inference import schema_of
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs, op_name, subgraphs_of
from onnxfold.ops import find

_NON_DETERMINISTIC = onnx.defs.OpSchema.NodeDeterminism.NonDeterministic


class Determinism:
    """The nodes of a model that may be evaluated, because their results are equal in every run.

    The results for functions are cached.
    """

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._imports = dict(model.opset_imports)
        if self._functions and self._imports:
            self._imports.setdefault("", storage.onnx_opset(self._imports))
        self._function_reasons: dict[ir.OperatorIdentifier, str | None] = {}

    def reason_not_to_fold(self, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
        """Return the reason why a node must not be evaluated; None if it may be evaluated.

        ``opsets`` contains the version of each domain in the scope of the node.
        """
        if self._functions:
            identifier = node.op_identifier()
            function = self._functions.get(identifier)
            if function is not None:
                if identifier not in self._function_reasons:
                    self._function_reasons[identifier] = f"function {function.name} calls itself"
                    self._function_reasons[identifier] = self._reason_in(
                        function, function.opset_imports
                    )
                return self._function_reasons[identifier]
        op_type = node.op_type
        domain = node.domain
        version = opsets.get(domain)
        schema = schema_of(op_type, version, domain) if version is not None else None
        definition = find(op_type, domain, version)
        if schema is None and not definition.deterministic:
            return f"{op_name(node)} is not an op that ONNX defines at this opset"
        if self._functions and schema is not None:
            model_version = self._imports.get(domain, version)
            model_schema = schema_of(op_type, model_version, domain)
            if model_schema is None or model_schema.since_version != schema.since_version:
                # ONNX specifies the opset of the function, but onnxruntime uses that of the model
                return (
                    f"{op_type} differs between opset {version} of its function and "
                    f"opset {model_version} of the model"
                )
        if definition.overwritten and definition.overwrites(node):
            return "onnxruntime overwrites its operand"
        is_deterministic = definition.is_deterministic(node, version or 1)
        if is_deterministic:
            return None
        if is_deterministic is not None:
            in_training = " in training mode" if definition.may_be_random else ""
            return f"{op_type}{in_training} is random"
        subgraphs = subgraphs_of(node)
        if subgraphs:
            return self._reason_in((inner for graph in subgraphs for inner in graph), opsets)
        if is_random(op_type, version or 1, domain):
            return f"{op_type} returns a different result in each run"
        return None

    def _reason_in(self, nodes: Iterable[ir.Node], opsets: Mapping[str, int]) -> str | None:
        for node in nodes:
            reason = self.reason_not_to_fold(node, opsets)
            if reason is not None:
                return f"contains {node.op_type}: {reason}"
        return None


@functools.lru_cache(maxsize=4096)
def is_random(op_type: str, version: int, domain: str) -> bool:
    """Return whether the result of an op differs between runs, according to onnx's schema.

    The result is False for an op without a schema. onnx also marks all ops with subgraphs as
    non-deterministic, and ops whose function body contains such an op. For an op with subgraphs,
    the result is False: the caller must check the nodes in the subgraphs. For an op with a function
    body, the ops in the body decide.
    """
    schema = schema_of(op_type, version, domain)
    determinism = getattr(schema, "node_determinism", None)  # missing in onnx's type stubs
    if schema is None or determinism != _NON_DETERMINISTIC:
        return False
    if any(a.type == onnx.defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values()):
        return False
    body = schema.function_body.node
    return not body or any(is_random(node.op_type, version, node.domain) for node in body)


def draws_numbers(model: ir.Model) -> bool:
    """Return whether a node of a model, its subgraphs or functions may have random results."""
    ops = {node.op_identifier()[:2] for graph in all_graphs(model) for node in graph}
    opsets = model.opset_imports
    return any(
        find(op_type, domain).may_be_random or is_random(op_type, opsets.get(domain, 1), domain)
        for domain, op_type in ops
    )
