"""An analysis of nodes that may fail at run time for some values of their inputs.

onnxruntime checks the operands of each node at run time, and raises an error for invalid ones. A
node is safe only if all these conditions are proved:

- The node does not call a function, and all its results are tensors.
- Each size of a result is a number or depends only on sizes of the model's inputs. The size is at
  least 1 if all sizes of the inputs are at least 1.
- Sizes that must be equal according to the op's shape function are equal.
- Operands that may be indices, lengths, axes or counts are constant or depend only on sizes of the
  inputs. The schema of the op allows only 32-bit and 64-bit integers for these operands.
- The indices of a Gather are within range. `Failures.rows` lists the inputs whose elements are
  assumed to be within range.
- The op does not read at positions that floating-point numbers determine.
- Integers are divided only by integers that are neither 0 nor -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts
from onnxfold.fold.inference import is_elementwise, schema_of
from onnxfold.ir import storage
from onnxfold.ir.symbolic import Algebra, Expr, Fact, Number
from onnxfold.ir.symbolic.fact import Shape, of_type
from onnxfold.ops import Trait, definition_of
from onnxfold.ops.application import INVALID_NODE_ERRORS, Application, Undecided, python_value

_SINGLE_ELEMENT_SHAPES = ((), (1,))
_INDEX_TYPES = {"tensor(int32)", "tensor(int64)"}

_Facts = Sequence[Fact | None]


class Failures:
    """The nodes that may fail on inputs with certain sizes and at least one element.

    Args:
        facts: The analyses of the model.
        sizes: The sizes of each input: numbers, names or None. A name or None is any size of at
            least 1. Sizes with the same name are equal.
        is_fixed: A function that returns whether a stored tensor has the same elements in every
            run.
    """

    def __init__(
        self,
        facts: ModelFacts,
        sizes: Mapping[ir.Value, Sequence[int | str | None]],
        is_fixed: Callable[[ir.TensorProtocol], bool] = lambda _: True,
    ) -> None:
        self.reason: str | None = None
        """The reason why no node is safe; None if all inputs have elements."""
        self.unequal: list[tuple[Number, Number]] = []
        """Pairs of sizes that must be equal, but that may differ, for the last node in `why`."""
        self.rows: dict[str, int] = {}
        """The smallest size of an axis that the elements of an input index, by the input's name."""
        self._inputs = sizes.keys()
        self._functions = facts.functions
        self._opset = storage.onnx_opset(facts.model.opset_imports)
        self._is_fixed = is_fixed
        self._analysis = facts.new_types()
        algebra = self._analysis.algebra
        self.algebra = algebra
        self._names = {d for dims in sizes.values() for d in dims if isinstance(d, str)}
        for value, declared in sizes.items():
            dims = [d if isinstance(d, int) else algebra.symbol(d, low=1) for d in declared]
            if 0 in dims:
                self.reason = f"{value.name!r} has no elements"
            self._analysis.set(value, of_type(value.dtype, dims, algebra))

    def fact(self, value: ir.Value) -> Fact:
        """Return the fact of a value for the sizes of the inputs."""
        return self._analysis.of(value)

    def why(self, node: ir.Node) -> str | None:
        """Return the reason why a node may fail; None if it cannot fail.

        The result assumes that `reason` is None and that the indices in inputs are within `rows`.
        The call sets `unequal`, and may add inputs to `rows`.
        """
        if node.op_identifier() in self._functions:
            return "it is a function"
        operands = [None if v is None else self._analysis.of(v) for v in node.inputs]
        results = [self._analysis.of(v) for v in node.outputs if v.name]
        facts = [fact for fact in (*operands, *results) if fact is not None]
        is_static = all(fact.static_shape is not None for fact in facts)
        self.unequal = [] if is_static else self._unequal(node, operands)
        return next(self._reasons(node, operands, results), None)

    def _unequal(self, node: ir.Node, operands: _Facts) -> list[tuple[Number, Number]]:
        """Return pairs of sizes that must be equal, but that may differ.

        A pair of the numbers 0 and 1 stands for any other condition, or for unknown conditions.
        """
        unequal = unequal_sizes(node, operands, self._opset, self.algebra)
        if unequal is not None:
            return unequal
        if Trait.ANY_SIZES in definition_of(node).traits:
            return []
        is_single = all(
            fact is None or fact.shape in _SINGLE_ELEMENT_SHAPES for fact in operands[1:]
        )
        is_elementwise_op = node.domain == "" and is_elementwise(
            node.op_type, self._opset, (ir.DataType.FLOAT,)
        )
        return [] if is_elementwise_op and is_single else [(0, 1)]

    def _reasons(self, node: ir.Node, operands: _Facts, results: Iterable[Fact]) -> Iterator[str]:
        reason = definition_of(node).can_fail(_Operands(self, node, operands))
        if reason is not None:
            yield reason
        if self.unequal:
            yield "the operand shapes may not be compatible"
        for fact in results:
            if fact.type_proto is not None:
                yield "its result is not a tensor"
            elif fact.shape is None:
                yield "the shape of its result is not known"
            elif not all(map(self.is_of_sizes, fact.shape)):
                yield "a size of its result depends on values"
            elif not all(map(self.algebra.is_positive, fact.shape)):
                yield "its result may have no elements"

    def formals(self, node: ir.Node) -> Sequence[onnx.defs.OpSchema.FormalParameter]:
        """Return the formal inputs in the schema of a node's op, or () if it has no schema."""
        schema = schema_of(node.op_type, self._opset, node.domain)
        return () if schema is None else schema.inputs

    def is_fixed_constant(self, value: ir.Value) -> bool:
        """Return whether a value is a stored constant with the same elements in every run."""
        tensor = self.tensor(value)
        return tensor is not None and self._is_fixed(tensor)

    def tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the tensor of a stored constant; None for any other value."""
        return self._analysis.constness.tensor(value)

    def limit_rows(self, value: ir.Value, size: Number) -> bool:
        """Record in `rows` that the elements of an input must be valid indices for this size.

        Returns False if the value is not an input or the size is not a number. Nothing is recorded
        then.
        """
        if value not in self._inputs or not isinstance(size, int):
            return False
        name = value.name or ""
        self.rows[name] = min(size, self.rows.get(name, size))
        return True

    def is_of_sizes(self, number: Number) -> bool:
        """Return whether a number is constant or depends only on sizes of the inputs."""
        if not isinstance(number, Expr):
            return True
        atoms = [self.algebra.atoms[k] for monomial, _ in number.terms for k in monomial]
        for atom in atoms:
            if atom.op == "symbol":
                if not atom.args or atom.args[0] not in self._names:
                    return False
            elif not all(map(self.is_of_sizes, atom.args)):  # type: ignore[arg-type]
                return False
        return True


class _Operands:
    """The operands of a node, an implementation of `OperandChecks`."""

    def __init__(self, failures: Failures, node: ir.Node, facts: _Facts) -> None:
        self._failures = failures
        self._node = node
        self._facts = facts
        self.attributes = {name: python_value(a) for name, a in node.attributes.items()}

    def name(self, k: int) -> str:
        """Return the name of an operand; "" if it is omitted."""
        value = self._node.inputs[k] if k < len(self._node.inputs) else None
        return "" if value is None else value.name or ""

    def shape(self, k: int) -> Shape | None:
        """Return the shape of an operand; None if it is unknown."""
        fact = self._facts[k] if k < len(self._facts) else None
        return None if fact is None else fact.shape

    def integer_operands(self) -> Iterator[int]:
        """Yield the indices of operands for which the op's schema allows only int32 and int64.

        ONNX allows no other dtypes for indices and sizes.
        """
        formals = self._failures.formals(self._node)
        for k, fact in enumerate(self._facts):
            types = formals[min(k, len(formals) - 1)].types if formals else {""}
            if fact is not None and types <= _INDEX_TYPES:
                yield k

    def is_determined(self, k: int) -> bool:
        """Return whether an operand's elements are constant or depend only on sizes of inputs."""
        fact = self._facts[k]
        value = self._node.inputs[k]
        numbers = None if fact is None else fact.objects
        if numbers is not None and all(map(self._failures.is_of_sizes, numbers.flat)):
            return True
        return value is not None and self._failures.is_fixed_constant(value)

    def are_indices(self, k: int, size: Number) -> bool:
        """Return whether all elements of an operand are valid indices of an axis with this size.

        The elements of an input are assumed to be valid if the size is a number. The size is then
        recorded in `Failures.rows`.
        """
        fact = self._facts[k]
        value = self._node.inputs[k]
        if fact is None or value is None:
            return False
        indices = fact.objects
        tensor = self._failures.tensor(value)
        if indices is None and tensor is not None and tensor.size:
            array = np.asarray(tensor.numpy())
            indices = np.array([int(array.min()), int(array.max())], object)
        if indices is None:
            return self._failures.limit_rows(value, size)
        algebra = self._failures.algebra
        return all(
            algebra.low(algebra.add(size, index)) >= 0 and algebra.low(algebra.sub(size, index)) > 0
            for index in indices.flat
        )

    def may_divide_by_zero(self, k: int) -> bool:
        """Return whether an operand contains integers that may be 0 or -1.

        Some processors trap at a division by 0, and at the overflow of the smallest integer
        divided by -1.
        """
        fact = self._facts[k] if k < len(self._facts) else None
        if fact is None or (fact.dtype is not None and not fact.dtype.is_integer()):
            return False
        algebra = self._failures.algebra
        numbers = fact.objects
        return numbers is None or not all(
            algebra.is_positive(number) or algebra.high(number) < -1 for number in numbers.flat
        )


def unequal_sizes(
    node: ir.Node, operands: _Facts, opset: int, algebra: Algebra
) -> list[tuple[Number, Number]] | None:
    """Return pairs of sizes that must be equal by a node's shape function, but that may differ.

    The pair (1, 0) stands for a condition other than the equality of two sizes. The result is None
    if the shape function is undecided, or the node is invalid.
    """
    unequal: list[tuple[Number, Number]] = []
    attributes = {name: python_value(a) for name, a in node.attributes.items()}
    application = Application(
        node.op_type,
        operands,
        attributes,
        opset,
        len(node.outputs),
        algebra,
        equal_size_pairs=unequal,
    )
    try:
        definition_of(node).shape(application)
    except (Undecided, *INVALID_NODE_ERRORS):
        return None
    return unequal
