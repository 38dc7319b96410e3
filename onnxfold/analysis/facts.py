"""The analyses of a model, which passes share and update."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.analysis.broadcasts import BroadcastAnalysis
from onnxfold.analysis.constness import (
    Constness,
    ConstnessAnalysis,
    select_runtime_constants,
)
from onnxfold.analysis.determinism import Determinism
from onnxfold.analysis.elements import is_exactly
from onnxfold.analysis.scopes import Scopes
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.fold.evaluator import Evaluator
from onnxfold.fold.inference import schema_of
from onnxfold.ir.editing import Names, remove_foreign_users, values_of
from onnxfold.ir.graphs import root_graphs
from onnxfold.ops import definition_of
from onnxfold.support.forks import cached_property

_KEY = "onnxfold.facts"


class ModelFacts:
    """The analyses of one model: scopes, determinism, constness, types and broadcasts.

    Only this class creates these analyses. Constness, types and broadcasts are created at their
    first use. Types and broadcasts require sorted nodes; see `put_in_order`.
    """

    def __init__(
        self,
        model: ir.Model,
        evaluator: Evaluator | None = None,
        *,
        runtime_constants: Iterable[ir.Value] | None = None,
    ) -> None:
        """Create the facts of a model.

        Args:
            model: The model.
            evaluator: The evaluator that computes small constants; None for a new one.
            runtime_constants: The inputs that are runtime constants; None for the inputs that are
                recorded in the metadata of the model.
        """
        self.scopes = Scopes(model)
        self.determinism = Determinism(model)
        self.model = model
        self.functions = model.functions
        self._evaluator = evaluator
        self._runtime_constants = runtime_constants
        self._types: SymbolicAnalysis | None = None
        self._has_old_types = False

    def rename_shadowing(self) -> None:
        """Rename values of subgraphs that shadow outer values.

        A subgraph cannot read an outer value with the name of one of its own values. Subgraphs of
        ops outside the ONNX domain are not changed.
        """
        if not self.scopes.parents:
            return
        graphs = self.scopes.graphs()
        path = self.scopes.path
        value_names = {graph: {value.name for value in values_of(graph)} for graph in graphs}
        for graph in graphs:
            parent = self.scopes.of(graph).parent
            if parent is None or parent.domain not in ("", "ai.onnx"):
                continue  # BeamSearch and other contrib ops require certain names in their bodies
            for value in values_of(graph):
                if any(value.name in value_names[outer] for outer in path(graph)[1:]):
                    self.names.make_unique(value)

    @cached_property
    def names(self) -> Names:
        """The names that are in use in all graphs, including names of removed values."""
        return Names(self.scopes.graphs())

    @property
    def types(self) -> SymbolicAnalysis:
        """The dtypes, shapes and small values, updated if `note_change` was called."""
        if self._types is None:
            self._types = self.new_types()
        elif self._has_old_types:
            self._types.update()
        self._has_old_types = False
        return self._types

    def new_types(self) -> SymbolicAnalysis:
        """Return a separate analysis of types, for inputs whose facts the caller sets.

        The analysis uses the same scopes and constness as this object. `note_change` does not
        update the facts of the analysis.
        """
        return SymbolicAnalysis(self.scopes, self.constness)

    def new_broadcasts(self) -> BroadcastAnalysis:
        """Return an analysis of the values that are constant up to a broadcast."""
        return BroadcastAnalysis(self.scopes, self.determinism, self.constness, self.types)

    def level_of(self, node: ir.Node) -> Constness:
        """Return the minimum constness of a node's results.

        The level is `Constness.BROADCAST` if they are constant only up to a broadcast. The model
        must not change between calls, because the broadcasts are not updated.
        """
        level = self.constness.of_node(node)
        if level is Constness.VARIABLE and node in self._broadcasts.nodes:
            return Constness.BROADCAST
        return level

    @cached_property
    def _broadcasts(self) -> BroadcastAnalysis:
        """The values of all graphs that are constant up to a broadcast."""
        broadcasts = self.new_broadcasts()
        for graph in self.scopes.graphs():
            broadcasts.visit(graph, lambda node: True)
        return broadcasts

    def note_change(self) -> None:
        """Update the scopes, and update the types at their next use.

        The caller must do this after a pass changed the model.
        """
        self.scopes.refresh()
        self._has_old_types = True

    @cached_property
    def constness(self) -> ConstnessAnalysis:
        """The constness of values, and the elements of compile-time constants."""
        inputs = self._runtime_constants
        if inputs is None:
            inputs = select_runtime_constants(self.model)
        return ConstnessAnalysis(self.scopes, self.determinism, inputs, self._evaluator)

    def opset(self, node: ir.Node) -> int:
        """Return the version of the node's domain.

        The result is 0 if the domain is not imported, or the node is not in the model.
        """
        scope = self.scopes.find(node.graph)
        return 0 if scope is None else scope.opsets.get(node.domain, 0)

    def schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        """Return the schema of the node's op at its opset; None if onnx has no such schema."""
        return schema_of(node.op_type, self.opset(node) or 1, node.domain)

    def is_op(self, node: ir.Node, domain: str) -> bool:
        """Return whether a node is an op of the domain, and not a call of a function."""
        if node.domain != domain or node.overload:
            return False
        return not self.functions or node.op_identifier() not in self.functions

    def attribute(self, node: ir.Node, name: str) -> Any:
        """Return the value or default of an attribute as int, float, str or tuple.

        The result is None for tensors, graphs, references to an attribute of a function, and for
        attributes without a value and a default.
        """
        attr = node.attributes.data.get(name)
        return self.default(node, name) if attr is None else _python_value(attr)

    def default(self, node: ir.Node, name: str) -> Any:
        """Return the default value of an attribute; None if it has no default.

        The default is in the schema, or ONNX defines it outside of the schema
        (`Op.implied_default`).
        """
        value = _schema_default(node.op_type, self.opset(node) or 1, node.domain, name)
        if value is None and not node.domain:
            types = self.types
            return definition_of(node).implied_default(name, node, lambda v: types.of(v).shape)
        return value

    def has_only_defaults(self, node: ir.Node, ignored: Container[str]) -> bool:
        """Return whether each attribute of the node that is not ignored has its default value."""
        for name, attribute in node.attributes.data.items():
            if name in ignored:
                continue
            value = _python_value(attribute)
            if value is None or not identical(value, self.default(node, name)):
                return False
        return True

    def is_number(self, value: ir.Value, number: float) -> bool:
        """Return True for a constant with a single element that is exactly ``number``."""
        array = self.constness.array(value)
        return array is not None and array.size == 1 and is_exactly(array, number)

    def same(self, one: ir.Value, other: ir.Value) -> bool:
        """Return whether two values are identical, or small constants with equal bits.

        Constants with different dtypes or shapes are not the same.
        """
        if one is other:
            return True
        left = self.constness.array(one)
        right = self.constness.array(other)
        if left is None or right is None or left.shape != right.shape or left.dtype != right.dtype:
            return False
        if left.dtype.kind == "O":
            return bool((left == right).all())
        return left.tobytes() == right.tobytes()


def facts_of(model: ir.Model) -> ModelFacts:
    """Return the facts of a model.

    In the context of :func:`shared_facts`, every call returns the shared facts. Otherwise, a call
    sorts the nodes (`put_in_order`), renames shadowing values, and creates new facts.
    """
    shared: ModelFacts | None = model.meta.get(_KEY)
    if shared is None or shared.model is not model:  # a clone has the ``meta`` of its original
        put_in_order(model)
        facts = ModelFacts(model)
        facts.rename_shadowing()
        return facts
    return shared


def put_in_order(model: ir.Model) -> None:
    """Sort the nodes, and remove uses of values by nodes outside the model."""
    for graph in root_graphs(model):
        graph.sort()
    remove_foreign_users(model)


@contextlib.contextmanager
def shared_facts(model: ir.Model, evaluator: Evaluator) -> Iterator[ModelFacts]:
    """Share the facts of a model among all passes in the context.

    The caller must sort the nodes with `put_in_order` before, and call `ModelFacts.note_change`
    after each pass that changed the model. Passes must change the model with functions of
    `onnxfold.ir.editing`.
    """
    facts = ModelFacts(model, evaluator)
    facts.rename_shadowing()
    model.meta[_KEY] = facts
    try:
        yield facts
    finally:
        del model.meta[_KEY]


_PLAIN = frozenset(
    (
        ir.AttributeType.INT,
        ir.AttributeType.FLOAT,
        ir.AttributeType.STRING,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRINGS,
    )
)


def _python_value(attribute: ir.Attr) -> Any:
    if attribute.is_ref() or attribute.type not in _PLAIN:
        return None
    value = attribute.value
    return value if isinstance(value, (int, float, str)) else tuple(value)


@lru_cache(maxsize=4096)
def _schema_default(op_type: str, opset: int, domain: str, name: str) -> Any:
    schema = schema_of(op_type, opset, domain)
    declared = None if schema is None else schema.attributes.get(name)
    if declared is None or not declared.default_value.name:
        return None
    return _python_value(ir.serde.deserialize_attribute(declared.default_value))


_NUMBERS = (bool, int, float)


def identical(left: Any, right: Any) -> bool:
    """Return whether two numbers, strings or tuples of them are equal.

    0.0 and -0.0 differ, except in a comparison with a NumPy scalar.
    """
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    if left != right:
        return False
    if left == 0 and type(left) in _NUMBERS and type(right) in _NUMBERS:
        return math.copysign(1, left) == math.copysign(1, right)
    return True
