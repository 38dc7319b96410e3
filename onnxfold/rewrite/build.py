"""Build the nodes and constants of a replacement, and check that its ops are available."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.fold.inference import accepts_dtype, index_of_input, known_domains, schema_of
from onnxfold.fold.operation import Operation
from onnxfold.fold.pool import Buffer, BufferTensor
from onnxfold.ir.editing import add_initializer, constant_node, new_node
from onnxfold.rewrite.matcher import Match
from onnxfold.rewrite.patterns import (
    AllOutputs,
    Expression,
    Literal,
    Op,
    OutputOf,
    Rest,
    Variable,
    any_of,
    anything,
    constant,
    is_on_constants,
    is_optional,
    walk,
)

_NEWEST_OPSETS: Mapping[str, int] = {"": onnx.defs.onnx_opset_version()}


class Refused(Exception):
    """The match cannot be rewritten, or the rewrite would cost more than it saves."""


Operand = ir.Value | Buffer
"""A value of the graph, or a constant that is only in the pool."""


class Builder:
    """Builds the replacement of a match. The new values have no consumers yet.

    Ops whose operands are all constants are computed in the pool, if possible. A result becomes a
    constant of the model if a new node reads it, or if it replaces a root. New nodes are inserted
    into the graph immediately, so that the types of their results can be inferred.

    Args:
        match: The match.
        before: The node before which the new nodes are inserted.
    """

    def __init__(self, match: Match, before: ir.Node) -> None:
        graph = before.graph
        assert graph is not None
        self.match = match
        self._before = before
        self._facts = match.facts
        self._constness = match.facts.constness
        self.graph = graph
        self._names = match.facts.names
        scope = match.facts.scopes.of(graph)
        self._opsets: Mapping[str, int] = scope.opsets
        self._in_function = scope.in_function
        self._name_hint = next((r.name for r in match.roots if r.name), None) or "value"
        self._results: dict[Op, ir.Node | Buffer] = {}
        """The node of each new op, or its result in the pool."""
        self._omitted: dict[Op, bool] = {}
        """Whether each new op is omitted."""
        self._stored: dict[Buffer, ir.Value] = {}
        """The new constants of the model, by their buffers in the pool."""
        self._retained: list[Buffer] = []
        self.nodes: list[ir.Node] = []
        """The new nodes, in order."""
        self.initializers: list[ir.Value] = []
        """The new constants."""

    def values(self) -> list[ir.Value]:
        """Build the replacement, and return the values that replace the roots.

        Raises:
            Refused: The replacement cannot be built.
            NotKnown: A term of the replacement depends on an unknown fact.
        """
        values: list[ir.Value] = []
        for replacement in self.match.rule.pair.replacements:
            if isinstance(replacement, AllOutputs):
                values.extend(self._outputs(replacement.op, len(self.match.roots) - 1))
                continue
            value = self._in_graph(self._operand(replacement))
            if value is None:
                raise Refused("the replacement is an omitted input")
            values.append(value)
        return values

    def _operand(self, expression: Expression) -> Operand | None:
        if self._is_omitted(expression):
            return None
        if isinstance(expression, any_of):
            return next(each for each in map(self._operand, expression.operands) if each)
        if isinstance(expression, OutputOf):
            index = int(self.match.number_of(expression.index))
            return self._outputs(expression.op, index)[index]
        if isinstance(expression, Op):
            node = self._node(expression)
            return node if isinstance(node, Buffer) else node.outputs[0]
        if isinstance(expression, Variable):
            value: ir.Value | None = self.match.bound(expression)
            return value
        if isinstance(expression, constant):
            return self._constant(expression)
        raise Refused(f"{expression!r} has no value in the replacement")

    def _is_omitted(self, expression: Expression) -> bool:
        """Return whether an expression of the replacement is omitted.

        A new op is omitted if its op variable or one of its required inputs is omitted. An `any_of`
        is omitted if each of its alternatives is.
        """
        if isinstance(expression, Variable):
            return self.match.bound(expression) is None
        if isinstance(expression, any_of):
            return all(map(self._is_omitted, expression.operands))
        op = expression.op
        if op is None or self.match.bound(op) is not None:
            return False
        if op not in self._omitted:
            self._omitted[op] = self._lacks_type_or_input(op)
        return self._omitted[op]

    def _lacks_type_or_input(self, op: Op) -> bool:
        if op.variable is not None and self.match.bound(op.variable) is None:
            return True
        missing = [k for k, operand in enumerate(op.operands) if self._is_omitted(operand)]
        if not missing:
            return False
        schema = self._resolve(op)[2]
        return schema is not None and missing[0] < schema.min_input

    def _resolve(self, op: Op) -> tuple[str, Mapping[str, int], onnx.defs.OpSchema | None]:
        """Return the type of a new op, its opsets, and its schema.

        The opsets are those of the graph, or the newest ones if the opsets of the graph lack the
        op. The schema is None if onnx has no schema of the op.
        """
        op_type = op.op_types[0] if op.variable is None else self.match.bound(op.variable).op_type
        opsets = self._opsets if is_available(op, self._opsets.get(op.domain)) else _NEWEST_OPSETS
        version = opsets.get(op.domain)
        return op_type, opsets, None if version is None else schema_of(op_type, version, op.domain)

    def _node(self, op: Op) -> ir.Node | Buffer:
        node: ir.Node | Buffer | None = self.match.bound(op) or self._results.get(op)
        if node is None:
            node = self._create(op)
            self._results[op] = node
        return node

    def _outputs(self, op: Op, index: int) -> Sequence[ir.Value]:
        """Return the outputs of the node of an op, and create those up to this index.

        Raises:
            Refused: The op was computed in the pool.
        """
        node = self._node(op)
        if isinstance(node, Buffer):
            raise Refused(f"{op!r} in the replacement is a constant")
        if index >= len(node.outputs):
            node.resize_outputs(index + 1)
            for value in node.outputs:
                if value.name is None:
                    value.name = self._names.fresh(f"{self._name_hint}/{node.op_type}")
        return node.outputs

    def _create(self, op: Op) -> ir.Node | Buffer:
        """Create the node of an op, or compute its result in the pool if the operands are constant.

        Raises:
            Refused: The opset has no such op, or the result cannot be computed.
        """
        op_type, opsets, schema = self._resolve(op)
        inputs, attributes = self._inputs_and_attributes(op, schema)
        rule = self.match.rule
        # constant propagation does not compute this result, because it is too large
        is_kept = rule.on_constants and op in rule.pair.replacements
        values = [each for each in inputs if isinstance(each, ir.Value)]
        is_constant = self._constness.is_constant
        if not is_kept and op.output_count is None and all(map(is_constant, values)):
            node = ir.Node(op.domain, op_type, [], attributes.values(), num_outputs=1, name=op_type)
            computed = self._compute(op, node, inputs, opsets)
            if computed is not None:
                return computed
        if opsets is not self._opsets:
            raise Refused(f"the opset of the model has no {op_type} with these inputs")
        self._check_dtypes(op_type, op.domain, inputs)
        operands = [self._in_graph(each) for each in inputs]
        count = 1 if op.output_count is None else self.match.number_of(op.output_count)
        node = new_node(
            self._names,
            self._name_hint,
            op_type,
            operands,
            attributes,
            domain=op.domain,
            outputs=count,
        )
        self.insert(node)
        return node

    def _inputs_and_attributes(
        self, op: Op, schema: onnx.defs.OpSchema | None
    ) -> tuple[list[Operand | None], dict[str, ir.Attr]]:
        """Return the inputs of a new op, without omitted inputs at the end, and its attributes.

        Numbers become constants. An attribute in the replacement becomes an input if it is an input
        in the schema.
        """
        matched = None if op.variable is None else self.match.bound(op.variable)
        is_swapped = op.variable is not None and self.match.bound(op.variable.swap)
        inputs: list[Operand | None] = []
        numbers: dict[int, Any] = {}
        for operand in reversed(op.operands) if is_swapped else op.operands:
            if isinstance(operand, Rest):
                inputs.extend(self.match.bound(operand.variable))
                continue
            if isinstance(operand, Literal):
                numbers[len(inputs)] = operand.literal
            inputs.append(None if isinstance(operand, Literal) else self._operand(operand))
        attributes = {} if matched is None else dict(matched.attributes.data)
        for name, term in op.attributes.items():
            content = self.match.number_of(term)
            index = index_of_input(name, schema)
            if index is not None:
                inputs.extend([None] * (index + 1 - len(inputs)))
                numbers[index] = content
                continue
            attributes.pop(name, None)
            if content is not None:
                attributes[name] = _attribute(name, content, schema)
        for index, number in numbers.items():
            dtype = self._dtype_for(inputs, index, schema)
            inputs[index] = self._new_constant(number, dtype)
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs, attributes

    def _check_dtypes(self, op_type: str, domain: str, inputs: Sequence[Operand | None]) -> None:
        """Refuse the rewrite if the op does not support the dtype of an input."""
        version = self._opsets.get(domain)
        if version is None:
            return
        for index, value in enumerate(inputs):
            dtype = None if value is None else self._dtype_of(value)
            if dtype is not None and not accepts_dtype(op_type, version, domain, index, dtype):
                raise Refused(f"{op_type} does not support {dtype.name}")

    def insert(self, node: ir.Node) -> None:
        """Insert a node after the other new nodes."""
        self.nodes.append(node)
        self._before.prepend(node)

    def _compute(
        self, op: Op, node: ir.Node, inputs: Sequence[Operand | None], opsets: Mapping[str, int]
    ) -> Buffer | None:
        """Return the result of a node in the pool; None if an operand has no buffer.

        The elements of a large result may be computed later.

        Raises:
            Refused: The result cannot be computed, or rounding would lose a constant of the model.
        """
        operands = []
        for each in inputs:
            buffer = self._constness.buffer(each) if isinstance(each, ir.Value) else each
            if buffer is None and each is not None:
                return None
            operands.append(self._retain(buffer))
        node.outputs[0].name = self._name_hint
        results = self._constness.results_of(Operation(node, operands, opsets))
        computed = self._retain(results[0] if results else None)
        if computed is None:
            # The node may be invalid, such as a Reshape that copies a size the operand does not
            # have.
            raise Refused(f"{node.op_type} of constants cannot be computed")
        # Constants that the rule creates may be lost in rounding, such as the epsilon of a
        # normalization.
        is_from_model = not any(isinstance(each, constant) for each in op.operands)
        if node.op_type in ("Add", "Sub", "Mul", "Div", "Cast") and is_from_model:
            _check_rounding(node.op_type, *operands, computed)
        return computed

    def _retain(self, buffer: Buffer | None) -> Buffer | None:
        """Retain a buffer until the replacement is built."""
        if buffer is not None:
            buffer.pool.retain(buffer)
            self._retained.append(buffer)
        return buffer

    def _in_graph(self, operand: Operand | None) -> ir.Value | None:
        """Return the value of an operand. A buffer of the pool becomes a constant of the model.

        The result is None for an omitted operand.

        Raises:
            Refused: The buffer cannot be stored.
        """
        if not isinstance(operand, Buffer):
            return operand
        value = self._stored.get(operand)
        if value is None:
            if operand.dtype == ir.DataType.STRING or not self._constness.is_computable(operand):
                raise Refused("a constant has strings, or it cannot be computed")
            name_hint = f"{self._name_hint}/const"
            tensor = BufferTensor(operand, self._names.fresh(name_hint))
            if self._in_function:
                node = constant_node(tensor, self._names.fresh(name_hint, for_node=True))
                self.insert(node)
                value = node.outputs[0]
            else:
                value = add_initializer(self.graph, tensor)
                self.initializers.append(value)
            self._stored[operand] = value
        return value

    def _dtype_of(self, operand: Operand) -> ir.DataType | None:
        if isinstance(operand, Buffer):
            return operand.dtype
        return self._facts.types.of(operand).dtype

    def _dtype_for(
        self, inputs: Sequence[Operand | None], index: int, schema: onnx.defs.OpSchema | None
    ) -> ir.DataType:
        """Return the dtype of a number that is an input.

        The dtype is that of the first other input with the same type variable in the schema. If
        there is none, the dtype is int64 if the schema allows only int64.

        Raises:
            Refused: The dtype is not determined.
        """
        declared = [] if schema is None else schema.inputs
        # the last declared input may be variadic
        formals = [declared[min(k, len(declared) - 1)] for k in range(len(inputs)) if declared]
        type_variables = [formal.type_str for formal in formals] or [""] * len(inputs)
        for type_variable, value in zip(type_variables, inputs, strict=True):
            if value is not None and type_variable == type_variables[index]:
                return self._known_dtype(value)
        if formals and list(formals[index].types) == ["tensor(int64)"]:
            return ir.DataType.INT64
        raise Refused("the dtype of a number in the replacement is not determined")

    def _known_dtype(self, operand: Operand) -> ir.DataType:
        dtype = self._dtype_of(operand)
        if dtype is None:
            raise Refused("the dtype of an operand is not known")
        return dtype

    def _constant(self, pattern: constant) -> Buffer:
        content = self.match.number_of(pattern.content)
        if pattern.like is not None:
            like = self._operand(pattern.like)
            assert like is not None
            return self._new_constant(content, self._known_dtype(like))
        dtype = self.match.number_of(pattern.dtype)
        if dtype is None:
            array = np.asarray(content)
            dtype = ir.DataType.INT64
            if isinstance(content, np.ndarray) or array.dtype.kind == "b":
                dtype = ir.DataType.from_numpy(array.dtype)
            elif array.dtype.kind == "f" and array.size:
                dtype = ir.DataType.FLOAT
        return self._new_constant(content, ir.DataType(dtype))

    def _new_constant(self, content: Any, dtype: ir.DataType) -> Buffer:
        """Return a constant with these elements. Only rounding to a float dtype may change them.

        Elements of an array are not checked.

        Raises:
            Refused: The dtype cannot represent an element.
        """
        exact = np.asarray(content)
        with np.errstate(all="ignore"):
            array = exact.astype(dtype.numpy())
            if array.dtype.kind in "iub":
                is_same_kind = (exact.dtype == bool) == (array.dtype == bool)
                is_representable = is_same_kind and (array == exact).all()
            else:
                are_finite = np.isfinite(array.astype(float))
                is_representable = (are_finite == np.isfinite(exact.astype(float))).all()
        if not isinstance(content, np.ndarray) and not is_representable:
            raise Refused(f"{content!r} cannot be represented as {dtype.name}")
        buffer = self._constness.pool.adopt(array, dtype)
        self._retain(buffer)
        return buffer

    def close(self) -> None:
        """Release the buffers. The new constants of the model retain their own buffers."""
        for buffer in self._retained:
            buffer.pool.release(buffer)

    def discard(self) -> None:
        """Remove the new nodes and constants from the graph."""
        for node in reversed(self.nodes):
            self.graph.remove(node, safe=True)
        for value in self.initializers:
            assert value.name is not None
            del self.graph.initializers[value.name]


@functools.lru_cache(maxsize=4096)
def is_available(op: Op, version: int | None) -> bool:
    """Return whether an opset has a type of an op with the attributes and inputs of the expression.

    Args:
        op: The expression.
        version: The opset of the op's domain; None if the domain is not imported.
    """
    if not op.is_standard:
        return True
    if version is None or op.domain not in known_domains():
        return op.domain != ""  # other domains are imported when a new node needs them
    for op_type in op.op_types:
        schema = schema_of(op_type, version, op.domain)
        if schema is not None and not schema.deprecated and accepts(op, schema):
            return True
    return False


def unavailable_op(replacements: Iterable[Expression], opsets: Mapping[str, int]) -> Op | None:
    """Return the first op of replacements that the opsets do not have, or None.

    Ops on constants are computed before the model runs, so they may belong to newer opsets.
    """
    for expression in walk(replacements):
        if not isinstance(expression, Op) or is_on_constants(expression):
            continue
        if not is_available(expression, opsets.get(expression.domain)):
            return expression
    return None


def accepts(op: Op, schema: onnx.defs.OpSchema) -> bool:
    """Return whether a schema has the attributes and inputs that an expression mentions.

    An attribute of older opsets may be an input in the schema: ``axes=`` stands for both.
    """
    names = [name for name, value in op.attributes.items() if value is not anything]
    inputs_by_name = [name for name in names if name not in schema.attributes]
    if any(index_of_input(name, schema) is None for name in inputs_by_name):
        return False
    required = [o for o in op.operands if not (isinstance(o, Rest) or is_optional(o))]
    if len(required) < len(op.operands):
        return len(required) <= schema.max_input
    return schema.min_input <= len(required) + len(inputs_by_name) <= schema.max_input


def _attribute(name: str, value: Any, schema: onnx.defs.OpSchema | None) -> ir.Attr:
    declared = None if schema is None else schema.attributes.get(name)
    kind = None if declared is None else ir.AttributeType(declared.type.value)  # type: ignore[attr-defined]
    if isinstance(value, np.ndarray) and kind == ir.AttributeType.TENSOR:
        return ir.AttrTensor(name, ir.Tensor(value))
    numbers = np.asarray(value)
    if numbers.dtype.kind != "U":  # an integer of more than 64 bits raises OverflowError
        is_float = numbers.dtype.kind == "f" if kind is None else kind.name in ("FLOAT", "FLOATS")
        value = np.asarray(value, np.float64 if is_float else np.int64)
        with np.errstate(over="ignore"):
            if is_float and not np.isfinite(value.astype(np.float32)).all():
                raise Refused(f"the attribute {name!r} of a new node would not be finite")
        value = value.tolist()
    attribute = ir.convenience.convert_attribute(name, value, kind)
    assert isinstance(attribute, ir.Attr)
    return attribute


_MAX_CHECKED_ELEMENTS = 4096
"""Maximum number of elements of a constant that `_check_rounding` reads."""


def _check_rounding(op_type: str, *buffers: Buffer | None) -> None:
    """Refuse to combine constants if rounding loses one of them or the result is not finite.

    ``x + 12582912 - 12582912`` rounds x to an integer on purpose, and ``x * 1e30 * 1e30`` may be
    finite. Such constants must not be combined.

    Args:
        op_type: The op on the constants.
        buffers: The operands and the result. Nothing is checked if one of them is large, not
            computed yet, or has no float dtype.

    Raises:
        Refused: At each element, an operand or the result of Add or Sub is lost in rounding, or the
            result of Mul or Div underflows. Or an element of the result is not finite, although the
            operands of Add, Sub or Cast are, or the op is Mul or Div.
    """
    arrays = [
        buffer.array()
        for buffer in buffers
        if buffer is not None and buffer.is_known and buffer.size <= _MAX_CHECKED_ELEMENTS
    ]
    if len(arrays) < len(buffers) or arrays[0].dtype.kind not in "fV":
        return
    with np.errstate(all="ignore"):
        *operands, total = (np.abs(array.astype(np.float64, copy=False)) for array in arrays)
    if not np.isfinite(total).all() and (
        op_type in ("Mul", "Div") or all(np.isfinite(array).all() for array in operands)
    ):
        raise Refused("the result of constants would not be finite")
    if len(operands) == 1 or not total.size:
        return
    left, right = operands
    finfo_of: Any = ml_dtypes.finfo  # has no annotations
    finfo = finfo_of(arrays[0].dtype)
    if op_type in ("Add", "Sub"):
        smallest = np.minimum(np.minimum(left, right), total)
        lost = smallest < np.maximum(left, right) * math.sqrt(finfo.eps)
    else:
        lost = total < float(finfo.tiny)
    if lost.all() and left.all() and right.all():
        raise Refused("a constant would be lost in the rounding of another one, maybe on purpose")
