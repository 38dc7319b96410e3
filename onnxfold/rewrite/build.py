"""Making the nodes of a replacement."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.editing import constant_node, insert_constant, new_node
from onnxfold.kernels.inference import schema_of, takes
from onnxfold.onnx_ir_private import read_nothing
from onnxfold.rewrite.check import is_available
from onnxfold.rewrite.matcher import Match
from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    Expression,
    Literal,
    MadeConstant,
    Omitted,
    Op,
    OutputOf,
    Rest,
    Variable,
    result,
)


class Refused(Exception):
    """The match cannot, or should not, be rewritten: it would cost more than it saves."""


class Builder:
    """Builds one match's replacement; nobody reads the new values yet.

    New nodes are in the graph at once, so that their types can be inferred.

    Args:
        match: The match.
        before: The node in front of which the new nodes go.
    """

    def __init__(self, match: Match, before: ir.Node) -> None:
        graph = before.graph
        assert graph is not None
        self._match = match
        self._before = before
        self._facts = match.facts
        self._graph = graph
        self._names = match.facts.names
        scope = match.facts.scopes.of(graph)
        self._opsets: Mapping[str, int] = scope.opsets
        self._in_function = scope.in_function
        self._stem = next((r.name for r in match.roots if r.name), None) or "value"
        self._made: dict[Op, ir.Node] = {}
        self.nodes: list[ir.Node] = []
        """The new nodes, in order."""
        self.initializers: list[ir.Value] = []
        """The new constants."""

    def value(self, expression: Expression) -> ir.Value | None:
        """Return the value of an expression; None for an omitted input."""
        if self._is_omitted(expression):
            return None
        if isinstance(expression, AnyOf):
            return next(filter(None, map(self.value, expression.operands)))
        if isinstance(expression, OutputOf):
            index = int(self._match.value_of(expression.index))
            return self._node(expression.op, index).outputs[index]
        if isinstance(expression, Op):
            return self._node(expression, 0).outputs[0]
        if isinstance(expression, Variable):
            found: ir.Value | None = self._match.bound(expression)
            return found
        if isinstance(expression, MadeConstant):
            return self._constant(expression)
        raise Refused(f"{expression!r} has no value here")

    def outputs(self, outputs: AllOutputs, count: int) -> Sequence[ir.Value]:
        """Return all outputs of an op that has so many."""
        return self._node(outputs.op, count - 1).outputs

    def _is_omitted(self, expression: Expression) -> bool:
        """Return True for an input that is omitted, and for an op that cannot do without such a
        one.
        """
        if isinstance(expression, Variable):
            return self._match.bound(expression) is None
        if isinstance(expression, AnyOf):
            return all(map(self._is_omitted, expression.operands))
        if isinstance(expression, OutputOf):
            expression = expression.op
        if isinstance(expression, Op) and self._match.bound(expression) is None:
            schema = self._resolve(expression)[2]
            required = 0 if schema is None else schema.min_input
            return any(map(self._is_omitted, expression.operands[:required]))
        return isinstance(expression, Omitted)

    def _resolve(self, op: Op) -> tuple[str, Mapping[str, int], onnx.defs.OpSchema | None]:
        """Return the type of a new op, its opsets, and its schema.

        The opsets are the model's, or for an op that these do not have the newest ones.
        """
        op_type = op.op_types[0] if op.variable is None else self._match.bound(op.variable).op_type
        opsets = self._opsets if is_available(op, self._opsets) else _newest_opsets()
        version = opsets.get(op.domain)
        return op_type, opsets, None if version is None else schema_of(op_type, version, op.domain)

    def _node(self, op: Op, index: int) -> ir.Node:
        made: ir.Node | None = self._match.bound(op) or self._made.get(op)
        if made is None:
            made = self._made[op] = self._make(op)
        if index >= len(made.outputs):
            made.resize_outputs(index + 1)
            for value in made.outputs:
                if value.name is None:
                    value.name = self._names.fresh(f"{self._stem}/{made.op_type}")
        return made

    def _make(self, op: Op) -> ir.Node:
        op_type, opsets, schema = self._resolve(op)
        matched = None if op.variable is None else self._match.bound(op.variable)
        swapped = op.variable is not None and self._match.bound(op.variable.swap)
        inputs: list[ir.Value | None] = []
        numbers: dict[int, Any] = {}
        for operand in reversed(op.operands) if swapped else op.operands:
            if isinstance(operand, Rest):
                inputs.extend(self._match.bound(operand.variable))
                continue
            if isinstance(operand, Literal):
                numbers[len(inputs)] = operand.number
            inputs.append(None if isinstance(operand, Literal) else self.value(operand))
        attributes = {} if matched is None else dict(matched.attributes.data)
        for name, thing in op.attributes.items():
            content = self._match.value_of(thing)
            place = _place_of_input(name, schema)
            if place is not None:
                inputs.extend([None] * (place + 1 - len(inputs)))
                numbers[place] = content
                continue
            attributes.pop(name, None)
            if content is not None:
                attributes[name] = _attribute(name, content, schema)
        for place, number in numbers.items():
            dtype = self._dtype_for(op_type, schema, inputs, place)
            inputs[place] = self._new_constant(number, dtype)
        while inputs and inputs[-1] is None:
            inputs.pop()
        version = opsets.get(op.domain)
        for k, value in enumerate(inputs if version is not None else ()):
            taken = None if value is None else self._facts.types.of(value).dtype
            if taken is not None and not takes(op_type, version or 1, op.domain, k, taken):
                raise Refused(f"{op_type} takes no {taken.name}")
        node = new_node(
            self._names,
            self._stem,
            op_type,
            inputs,
            attributes,
            domain=op.domain,
            outputs=1 if op.output_count is None else self._match.value_of(op.output_count),
        )
        if opsets is not self._opsets:
            node = self._computed(node, opsets)
        self.insert(node)
        return node

    def _computed(self, node: ir.Node, opsets: Mapping[str, int]) -> ir.Node:
        """Return a Constant node in the place of an op on constants that the model's opset does
        not have.

        What is computed before the model runs is not limited by its opset.
        """
        tensor = self._facts.known.result_of(node, opsets)
        read_nothing(node)
        if tensor is None:
            raise Refused(f"{node.op_type} is not of the model's opset, and its result not small")
        tensor.name = node.outputs[0].name
        return constant_node(tensor, node.name)

    def insert(self, node: ir.Node) -> None:
        """Put a node behind the new ones so far."""
        self.nodes.append(node)
        self._before.prepend(node)

    # ---------------------------------------------------------------- constants

    def _dtype_for(
        self,
        op_type: str,
        schema: onnx.defs.OpSchema | None,
        inputs: list[ir.Value | None],
        position: int,
    ) -> ir.DataType:
        """Return the dtype that a number takes as an input: that of one it must agree with."""
        formals = [] if schema is None else schema.inputs
        formal = [formals[min(k, len(formals) - 1)] for k in range(len(inputs)) if formals]
        for k, value in enumerate(inputs):
            if value is not None and (
                not formal or formal[k].type_str == formal[position].type_str
            ):
                return self._known_dtype(value)
        if formal and list(formal[position].types) == ["tensor(int64)"]:
            return ir.DataType.INT64
        raise Refused(f"the dtype of a number in {op_type} is open")

    def _known_dtype(self, value: ir.Value) -> ir.DataType:
        dtype = self._facts.types.of(value).dtype
        if dtype is None:
            raise Refused(f"the dtype of {value.name} is not known")
        return dtype

    def _constant(self, made: MadeConstant) -> ir.Value:
        content = self._match.value_of(made.content)
        if made.like is not None:
            like = self._match.roots[0] if made.like is result else self.value(made.like)
            assert like is not None
            return self._new_constant(content, self._known_dtype(like))
        dtype = self._match.value_of(made.dtype)
        if dtype is None:
            array = np.asarray(content)
            if isinstance(content, np.ndarray) or array.dtype.kind == "b":
                dtype = ir.DataType.from_numpy(array.dtype)
            else:
                dtype = ir.DataType.FLOAT if array.dtype.kind == "f" else ir.DataType.INT64
                dtype = ir.DataType.INT64 if array.size == 0 else dtype
        return self._new_constant(content, ir.DataType(dtype))

    def _new_constant(self, content: Any, dtype: ir.DataType) -> ir.Value:
        exact = np.asarray(content)
        with np.errstate(all="ignore"):
            array = exact.astype(dtype.numpy())
        if not isinstance(content, np.ndarray) and not _are_same_numbers(exact, array):
            raise Refused(f"{content!r}: not of {dtype.name}")
        value = insert_constant(
            self._before, self._names, array, stem=self._stem, in_function=self._in_function
        )
        node = value.producer()
        if node is None:
            self.initializers.append(value)
        else:
            self.nodes.append(node)
        return value

    # ---------------------------------------------------------------- taking it back

    def discard(self) -> None:
        """Take the new nodes and constants out again."""
        for node in reversed(self.nodes):
            self._graph.remove(node, safe=True)
        for value in self.initializers:
            assert value.name is not None
            del self._graph.initializers[value.name]
        self.nodes.clear()
        self.initializers.clear()


@functools.cache
def _newest_opsets() -> Mapping[str, int]:
    return {"": onnx.defs.onnx_opset_version()}


def _place_of_input(name: str, schema: onnx.defs.OpSchema | None) -> int | None:
    """Return the place of the input that an attribute has become by this opset: ``axes``, say."""
    if schema is None or name in schema.attributes:
        return None
    return next((k for k, formal in enumerate(schema.inputs) if formal.name == name), None)


def _attribute(name: str, value: Any, schema: onnx.defs.OpSchema | None) -> ir.Attr:
    declared = None if schema is None else schema.attributes.get(name)
    kind = None if declared is None else ir.AttributeType(declared.type.value)  # type: ignore[attr-defined]
    if isinstance(value, np.ndarray) and kind == ir.AttributeType.TENSOR:
        return ir.AttrTensor(name, ir.Tensor(value))
    numbers = np.asarray(value)
    if numbers.dtype.kind != "U":  # an integer of more than 64 bits is an OverflowError
        is_float = kind in _FLOATS or (kind is None and numbers.dtype.kind == "f")
        value = np.asarray(value, np.float64 if is_float else np.int64).tolist()
    made = ir.convenience.convert_attribute(name, value, kind)
    assert isinstance(made, ir.Attr)
    return made


_FLOATS = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)


def _are_same_numbers(exact: np.ndarray[Any, Any], array: np.ndarray[Any, Any]) -> bool:
    """Return True unless the dtype cannot hold the numbers; rounding to a float dtype is their
    meaning.
    """
    if array.dtype.kind in "iub":
        return bool((array == exact).all()) and (exact.dtype == bool) == (array.dtype == bool)
    return bool((np.isfinite(array.astype(float)) == np.isfinite(exact.astype(float))).all())
