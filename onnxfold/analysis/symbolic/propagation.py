"""Shapes and small values of a whole model, in one walk forward through its graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constants import is_constant_node
from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.scopes import Scopes
from onnxfold.analysis.symbolic import control_flow, table
from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import (
    MOST_ELEMENTS,
    UNKNOWN,
    Array,
    Fact,
    of_array,
    of_type,
)
from onnxfold.analysis.symbolic.inference import Inference
from onnxfold.analysis.symbolic.table import Application, Undecided
from onnxfold.kernels.operation import subgraphs_of
from onnxfold.kernels.registry import AllocationBound, NotExact, Postpone, Unfoldable
from onnxfold.kernels.registry import find as find_kernel

_MOST_BYTES = 1 << 12


class SymbolicAnalysis:
    """What is known of every value of a model.

    Args:
        model: The model, its nodes in an order in which they can run.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.algebra = Algebra()
        self.scopes = Scopes(model)
        self.known = KnownValues(self.scopes)
        self._facts: dict[ir.Value, Fact] = {}
        self._inference = Inference(self.algebra)
        self._calls = control_flow.Calls(self)
        self._main()
        for function in model.functions.values():
            self._facts.update((v, UNKNOWN) for v in function.graph.inputs)
            self.run_graph(function.graph, function.graph.opset_imports)

    def of(self, value: ir.Value) -> Fact:
        """What is known of a value."""
        found = self._facts.get(value)
        if found is None:
            found = self._facts[value] = self._source(value)
        return found

    def set(self, value: ir.Value, fact: Fact) -> None:
        """Remember what is known of a value."""
        self._facts[value] = fact

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is found meanwhile holds for one call of a function only and is forgotten."""
        facts, self._facts = self._facts, {}
        yield
        self._facts = facts

    # ---------------------------------------------------------------- graphs

    def _main(self) -> None:
        graph = self.model.graph
        for value in graph.inputs:
            self._facts[value] = self._declared(value)
        self.run_graph(graph, graph.opset_imports)

    def run_graph(self, graph: ir.Graph, opsets: Mapping[str, int]) -> None:
        """Visit the nodes of a graph whose inputs have facts."""
        for node in graph:
            self._facts.update(zip(node.outputs, self._visit(node, opsets), strict=True))

    def _declared(self, value: ir.Value) -> Fact:
        """The type of a model input: the runtime holds callers to it."""
        if not isinstance(value.type, ir.TensorType):
            return UNKNOWN
        if value.shape is None:
            return Fact(value.dtype)
        # some exporters write 0 or -1 for a size that they do not know
        sizes: list[Number] = [
            (dim if dim > 0 else self.algebra.symbol())
            if isinstance(dim, int)
            else self.algebra.symbol(dim.value or None)
            for dim in value.shape
        ]
        return of_type(value.dtype, sizes, self.algebra)

    def _source(self, value: ir.Value) -> Fact:
        """A value that no visited node made: an initializer."""
        tensor = self.known.tensor(value)
        if tensor is None:
            return UNKNOWN
        shape = tuple(int(d) for d in tensor.shape.numpy())
        if tensor.size > MOST_ELEMENTS:
            return Fact(tensor.dtype, shape)
        array = self.known.array(value)
        return Fact(tensor.dtype, shape) if array is None else of_array(array, tensor.dtype)

    # ---------------------------------------------------------------- nodes

    def _visit(self, node: ir.Node, opsets: Mapping[str, int]) -> Sequence[Fact]:
        if is_constant_node(node):
            return [self._source(node.outputs[0])]
        inputs = [None if v is None else self.of(v) for v in node.inputs]
        results = self._results(node, inputs, opsets)
        missing = len(node.outputs) - len(results)
        return [*results[: len(node.outputs)], *[UNKNOWN] * missing]

    def _results(
        self, node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int]
    ) -> Sequence[Fact]:
        function = self.model.functions.get(node.op_identifier()) if self.model.functions else None
        if function is not None:
            return self._calls.results(node, function, inputs)
        if node.attributes and any(True for _ in subgraphs_of(node)):
            return control_flow.results(self, node, inputs, opsets)
        if node.domain != "":
            return self._inference.infer(node, inputs, opsets)
        attributes = self._attributes(node)
        if attributes is None:
            return []
        version = opsets.get("", 1)
        application = Application(
            node.op_type, inputs, attributes, version, len(node.outputs), self.algebra
        )
        computed = _computed(application)
        if computed is not None:
            return computed
        return self._by_rule(node, application, opsets)

    def _by_rule(
        self, node: ir.Node, application: Application, opsets: Mapping[str, int]
    ) -> Sequence[Fact]:
        rule = table.find(node.op_type)
        if rule is not None:
            try:
                return rule(application)
            except Undecided:
                pass
        return self._inference.infer(node, application.inputs, opsets)

    def _attributes(self, node: ir.Node) -> dict[str, Any] | None:
        """Attributes as Python values; None if a function's caller gives one that is not known."""
        found: dict[str, Any] = {}
        for name, written in node.attributes.items():
            attribute = self._calls.argument(written) if written.is_ref() else written
            if attribute is None:
                return None
            value = attribute.value
            found[name] = value.numpy() if attribute.type == ir.AttributeType.TENSOR else value
        return found


def _computed_cast(application: Application) -> Sequence[Fact] | None:
    """A known value cast to the dtype of another one, which need not be known."""
    value, like = application.input(0), application.input(1)
    if value is None or like is None or like.dtype is None:
        return None
    attributes = {**application.attributes, "to": like.dtype.value}
    return _computed(
        Application("Cast", [value], attributes, application.opset, 1, application.algebra)
    )


def _computed(application: Application) -> Sequence[Fact] | None:
    """The results if all operands are known and small: what the op's kernel computes."""
    if application.op_type == "CastLike":
        return _computed_cast(application)
    arrays: list[Array | None] = []
    for fact in application.inputs:
        known = None if fact is None else fact.known
        if fact is not None and known is None:
            return None
        arrays.append(known)
    kernel = find_kernel(application.op_type, application.opset) if arrays else None
    if kernel is None:
        return None
    try:
        with AllocationBound(_MOST_BYTES), np.errstate(all="ignore"):
            results = kernel(
                arrays,
                dict(application.attributes),
                n_outputs=application.n_outputs,
                opset=application.opset,
            )
    except (NotExact, Unfoldable, Postpone):
        return None
    if any(r.size > MOST_ELEMENTS or r.dtype.kind not in "fiub" for r in results):
        return None
    return [of_array(r, ir.DataType.from_numpy(r.dtype)) for r in results]
