"""Edits of a model that also update the facts: constants, replacements and removals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts
from onnxfold.fold.inference import may_be_constant
from onnxfold.ir.editing import (
    can_take_name,
    constant_node,
    insert_constant,
    remove_unused,
    replace,
    set_input,
    take_over,
)
from onnxfold.ir.onnx_ir_private import is_used
from onnxfold.ir.symbolic.fact import Array, of_array


class Edit:
    """An editor of a model that also updates the facts. ``changes`` is the number of edits.

    ``keeps`` is a function that returns whether the producer of a value must not be removed.
    """

    def __init__(self, facts: ModelFacts, keeps: Callable[[ir.Value], bool]) -> None:
        self.facts = facts
        analysis = facts.types
        self._analysis = analysis
        self._scopes = analysis.scopes
        self.keeps = keeps
        self._constants: dict[object, ir.Value] = {}
        self.changes = 0

    def constant(self, array: Array, like: ir.Value, before: ir.Node) -> ir.Value:
        """Return a constant that ``before`` can read.

        A new constant is named after the value ``like``. An equal constant that this object
        inserted into the same graph is reused, except in functions.
        """
        graph = before.graph
        assert graph is not None
        in_function = self._scopes.of(graph).in_function
        key = (graph, array.dtype, array.shape, array.tobytes())
        value = self._constants.get(key)
        if value is None:
            names = self.facts.names
            value = insert_constant(
                before, names, array, name_hint=like.name, in_function=in_function
            )
            self._analysis.set(value, of_array(array, ir.DataType.from_numpy(array.dtype)))
            if not in_function:  # all nodes of the graph can read an initializer
                self._constants[key] = value
        return value

    def store(self, value: ir.Value, array: Array) -> bool:
        """Replace a value by a constant, and return whether it was replaced.

        A graph output keeps its name.
        """
        node = value.producer()
        if node is None or self._must_keep(node, value) or not self._may_be_constant(value):
            return False
        if not value.is_graph_output():
            return self._substitute(node, value, self.constant(array, value, node))
        if value.graph is not self._analysis.model.graph and len(node.inputs) < 2:
            return False  # a Constant node would take more bytes than the node
        constant = constant_node(ir.Tensor(np.array(array), name=value.name), node.name)
        return self._substitute(node, value, self._insert_before(node, constant, value))

    def replace(self, value: ir.Value, other: ir.Value) -> bool:
        """Replace a value by ``other``, and return whether it was replaced.

        A graph output keeps its name.
        """
        node = value.producer()
        if node is None or self._must_keep(node, value):
            return False
        if not self._analysis.may_replace(value, other):
            return False
        if self._analysis.constness.tensor(other) is not None and not self._may_be_constant(value):
            return False
        if value.is_graph_output() and not can_take_name(value, other, self.keeps):
            # onnxruntime returns empty strings if a Loop body only forwards a captured string
            is_emptied = value.dtype == ir.DataType.STRING and other.graph is not value.graph
            if len(node.inputs) < 2 or is_emptied:
                return False
            # the node is replaced by an Identity, which has fewer operands
            other = self._insert_before(node, ir.node("Identity", [other], name=node.name), value)
        return self._substitute(node, value, other)

    def set_input(self, node: ir.Node, position: int, value: ir.Value) -> None:
        """Replace an input of a node, and remove nodes whose results only this input used."""
        previous = node.inputs[position]
        set_input(node, position, value)
        self.changes += 1
        if previous is not None:
            remove_unused([previous.producer()], self.keeps)

    def _may_be_constant(self, value: ir.Value) -> bool:
        fact = self._analysis.of(value)
        return may_be_constant(value, fact.dtype, fact.known)

    def _must_keep(self, node: ir.Node, value: ir.Value) -> bool:
        """Return whether the node that computes a value must be kept if the value is replaced."""
        if self.keeps(value):
            return True
        if not value.is_graph_output():
            return False
        return any(is_used(v) or self.keeps(v) for v in node.outputs if v is not value)

    def _insert_before(self, node: ir.Node, new: ir.Node, value: ir.Value) -> ir.Value:
        """Insert ``new``, whose result equals ``value``, before a node, and return the result."""
        node.prepend(new)
        self._analysis.set(new.outputs[0], self._analysis.of(value))
        return new.outputs[0]

    def _substitute(self, node: ir.Node, value: ir.Value, other: ir.Value) -> bool:
        if value.is_graph_output():
            take_over(value, other, declared=True)
        else:
            replace(value, other)
        self.changes += 1
        remove_unused([node], self.keeps)
        return True
