"""Changing a graph by what the symbolic analysis knows: constants, substitutions, removal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.symbolic import Fact
from onnxfold.analysis.symbolic.fact import Array, of_array
from onnxfold.editing import (
    constant_node,
    insert,
    insert_constant,
    is_used,
    remove_unused,
    replace,
    set_input,
    take_over,
)
from onnxfold.kernels.inference import may_be_constant


class Edit:
    """Edits one model and keeps the analysis true.

    Args:
        facts: What is known of the model; new values get facts.
        keeps: Says of a value whether the node that makes it must stay.
    """

    def __init__(self, facts: ModelFacts, keeps: Callable[[ir.Value], bool]) -> None:
        self._facts = facts
        self._analysis = analysis = facts.types
        self._scopes = analysis.scopes
        self.keeps = keeps
        self._constants: dict[object, ir.Value] = {}
        self.changes = 0

    # ---------------------------------------------------------------- new values

    def constant(self, array: Array, like: ir.Value, before: ir.Node) -> ir.Value:
        """Return a value with these elements that ``before`` can read, named after
        another value.
        """
        graph = before.graph
        assert graph is not None
        in_function = self._scopes.of(graph).in_function
        key = (graph, array.dtype, array.shape, array.tobytes())
        value = self._constants.get(key)
        if value is None:
            names, stem = self._facts.names, like.name
            value = insert_constant(before, names, array, stem=stem, in_function=in_function)
            self._analysis.set(value, of_array(array, ir.DataType.from_numpy(array.dtype)))
            if not in_function:  # all nodes of the graph can read an initializer
                self._constants[key] = value
        return value

    def node(
        self,
        op_type: str,
        inputs: list[ir.Value],
        attributes: Mapping[str, int],
        before: ir.Node,
        fact: Fact,
        like: ir.Value,
    ) -> ir.Value:
        """Return the result of a new node of ONNX's own domain, of which ``fact`` is known."""
        value = insert(before, self._facts.names, op_type, inputs, attributes, stem=like.name)
        self._analysis.set(value, fact)
        return value

    # ---------------------------------------------------------------- substitution

    def store(self, value: ir.Value, array: Array) -> bool:
        """Make the value a constant, under its own name where that is one of the interface."""
        node = value.producer()
        if node is None or self.keeps(value) or not self._may_be_constant(value):
            return False
        if not value.is_graph_output():
            replace(value, self.constant(array, value, node))
        elif self._stays_for_others(node, value):
            return False
        elif value.graph is not self._analysis.model.graph and len(node.inputs) < 2:
            return False  # a node would take its place, and hold the elements
        else:
            constant = constant_node(ir.Tensor(np.array(array), name=value.name), node.name)
            node.prepend(constant)
            (made,) = constant.outputs
            self._analysis.set(made, self._analysis.of(value))
            take_over(value, made, declared=True)
        self._done(node)
        return True

    def replace(self, value: ir.Value, other: ir.Value) -> bool:
        """Let everybody read ``other`` instead; a result of the graph keeps its name."""
        node = value.producer()
        if node is None or self.keeps(value):
            return False
        if self._analysis.known.tensor(other) is not None and not self._may_be_constant(value):
            return False
        if not value.is_graph_output():
            replace(value, other)
        elif self._stays_for_others(node, value):
            return False
        elif self._can_take_name(value, other):
            take_over(value, other, declared=True)
        elif len(node.inputs) > 1:
            self._copy(value, other, node)
        else:
            return False
        self._done(node)
        return True

    def _may_be_constant(self, value: ir.Value) -> bool:
        assert value.graph is not None
        fact = self._analysis.of(value)
        opsets = self._scopes.of(value.graph).opsets
        return may_be_constant(value, fact.dtype, fact.known, opsets)

    def _stays_for_others(self, node: ir.Node, value: ir.Value) -> bool:
        """Return True if a node makes a result of the graph, and would have to without it, too."""
        return any(v is not value and (is_used(v) or self.keeps(v)) for v in node.outputs)

    def _can_take_name(self, value: ir.Value, other: ir.Value) -> bool:
        producer, own = other.producer(), value.producer()
        return (
            producer is not None
            and own is not None
            and producer.graph is own.graph
            and not other.is_graph_output()
            and not self.keeps(other)
        )

    def _copy(self, value: ir.Value, other: ir.Value, node: ir.Node) -> None:
        """A result of the graph that is a value of another name: its operands are not needed."""
        copy = ir.node("Identity", [other], name=node.name)
        node.prepend(copy)
        self._analysis.set(copy.outputs[0], self._analysis.of(value))
        take_over(value, copy.outputs[0], declared=True)

    def set_input(self, node: ir.Node, position: int, value: ir.Value) -> bool:
        """Let the node read another value; remove what only it read."""
        before = node.inputs[position]
        set_input(node, position, value)
        self.changes += 1
        if before is not None:
            self.remove_unused([before.producer()])
        return True

    def _done(self, node: ir.Node) -> None:
        self.changes += 1
        self.remove_unused([node])

    # ---------------------------------------------------------------- removal

    def remove_unused(self, nodes: Iterable[ir.Node | None]) -> None:
        """Take nodes out that nobody reads, and then those before them."""
        remove_unused(nodes, self.keeps)
