"""Find nodes that may fail at run time for some values of their inputs.

onnxruntime checks the operands of each node at run time and raises an error if they do not fit. A
node is safe only if all this is proved:

- Each size is a number or follows from sizes of the inputs, and is at least 1 if theirs are.
- Sizes that must be equal, according to the shape functions, are equal.
- Indices, lengths, axes and counts are known, or follow from sizes. They are recognized by their
  type in ONNX, 32-bit or 64-bit integers only. Indices are within range.
- Integers are divided by known numbers other than 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.symbolic import Algebra, Expr, Fact, Number
from onnxfold.analysis.symbolic.application import INVALID_NODE_ERRORS, Application, Undecided, find
from onnxfold.analysis.symbolic.fact import of_type
from onnxfold.kernels.inference import is_elementwise, schema_of
from onnxfold.kernels.operation import python_value
from onnxfold.ops import Trait, ops

_READ_AT_FLOATS = ops(Trait.READS_AT_FLOATS)
_SINGLE = ((), (1,))

_Facts = Sequence[Fact | None]


class Failures:
    """Finds nodes that may fail, on inputs of the given sizes with at least one element.

    ``is_fixed`` returns whether a constant has its current value in every run.
    """

    def __init__(
        self,
        facts: ModelFacts,
        sizes: Mapping[ir.Value, Sequence[int | str | None]],
        is_fixed: Callable[[ir.TensorProtocol], bool] = lambda _: True,
    ) -> None:
        self.reason: str | None = None
        """Why no node is safe: an input has no elements."""
        self.unequal: list[tuple[Number, Number]] = []
        """Sizes that must be equal for the last checked node."""
        self.rows: dict[str, int] = {}
        """By names of inputs that are indices, the number of rows that they must be within."""
        self._inputs = sizes.keys()
        self._functions = facts.functions
        self._opset = storage.onnx_opset(facts.model.opset_imports)
        self._is_fixed = is_fixed
        self._analysis = facts.new_types()
        self.algebra = algebra = self._analysis.algebra
        self._names = {d for dims in sizes.values() for d in dims if isinstance(d, str)}
        for value, declared in sizes.items():
            dims = [d if isinstance(d, int) else algebra.symbol(d, low=1) for d in declared]
            if 0 in dims:
                self.reason = f"{value.name!r} has no elements"
            self._analysis.set(value, of_type(value.dtype, dims, algebra))

    def fact(self, value: ir.Value) -> Fact:
        """Return the fact of a value."""
        return self._analysis.of(value)

    def why(self, node: ir.Node) -> str | None:
        """Return the reason why a node may fail; None if it cannot."""
        if node.op_identifier() in self._functions:
            return "it is a function"
        operands = [None if v is None else self._analysis.of(v) for v in node.inputs]
        results = [self._analysis.of(v) for v in node.outputs if v.name]
        facts = [fact for fact in (*operands, *results) if fact is not None]
        is_static = all(fact.static_shape is not None for fact in facts)
        self.unequal = [] if is_static else self._unequal(node, operands)
        return next(self._reasons(node, operands, results), None)

    def _unequal(self, node: ir.Node, operands: _Facts) -> list[tuple[Number, Number]]:
        """Return pairs of sizes that must be equal, but may differ by the op's shape function."""
        op_type, unequal = node.op_type, unequal_sizes(node, operands, self._opset, self.algebra)
        if unequal is not None:
            return unequal
        is_single = all(fact is None or fact.shape in _SINGLE for fact in operands[1:])
        per_element = is_elementwise(op_type, self._opset, (ir.DataType.FLOAT,)) and is_single
        is_certain = per_element or op_type.startswith(("Arg", "Reduce")) or op_type == "If"
        return [] if is_certain and not node.domain else [(0, 1)]

    def _reasons(self, node: ir.Node, operands: _Facts, results: Iterable[Fact]) -> Iterator[str]:
        algebra, schema = self.algebra, schema_of(node.op_type, self._opset, node.domain)
        formals = () if schema is None else schema.inputs
        for k, (value, fact) in enumerate(zip(node.inputs, operands, strict=True)):
            types = formals[min(k, len(formals) - 1)].types if formals else {""}
            if value is None or fact is None or not types <= {"tensor(int32)", "tensor(int64)"}:
                continue  # by its type in ONNX, it may be something else than indices or sizes
            # loading the model checks fixed elements
            tensor, numbers = self._analysis.constness.tensor(value), fact.objects
            is_known = numbers is not None and all(map(self._is_of_sizes, numbers.flat))
            if node.op_type == "Gather":
                if not self._has_rows(node, value, fact):
                    yield f"{value.name!r} says where, and is not known to be within bounds"
            elif not is_known and (tensor is None or not self._is_fixed(tensor)):
                yield f"{value.name!r} says where or how much, and is not known before"
        divisor = operands[1] if node.op_type in ("Div", "Mod") and len(operands) > 1 else None
        if divisor is not None and (divisor.dtype is None or divisor.dtype.is_integer()):
            numbers = divisor.objects
            # the smallest integer divided by -1 overflows, too
            if numbers is None or not all(
                algebra.is_positive(number) or algebra.high(number) < -1 for number in numbers.flat
            ):
                yield "it may divide by 0"
        if node.op_type in _READ_AT_FLOATS:
            yield "it reads at places that floating point numbers say"
        if self.unequal:
            yield "it is not certain that its operands fit"
        for fact in results:
            if fact.other is not None:
                yield "its result is no tensor"
            elif fact.shape is None:
                yield "the shape of its result is not known"
            elif not all(map(self._is_of_sizes, fact.shape)):
                yield "a size of its result depends on values"
            elif not all(map(algebra.is_positive, fact.shape)):
                yield "its result may have no elements"

    def _has_rows(self, node: ir.Node, value: ir.Value, fact: Fact) -> bool:
        """Return whether all indices of a Gather are within its axis, or must be: see `rows`."""
        algebra, places = self.algebra, fact.objects
        tensor = self._analysis.constness.tensor(value)
        if places is None and tensor is not None and tensor.size:
            array = np.asarray(tensor.numpy())
            places = np.array([int(array.min()), int(array.max())], object)
        data = None if node.inputs[0] is None else self._analysis.of(node.inputs[0]).shape
        if not data:
            return False
        size = data[node.attributes.get_int("axis", 0) % len(data)]
        if places is None:
            if value not in self._inputs or not isinstance(size, int):
                return False
            name = value.name or ""
            self.rows[name] = min(size, self.rows.get(name, size))
            return True
        return all(
            algebra.low(algebra.add(size, place)) >= 0 and algebra.low(algebra.sub(size, place)) > 0
            for place in places.flat
        )

    def _is_of_sizes(self, number: Number) -> bool:
        """Return whether a value is determined by sizes of the inputs."""
        if not isinstance(number, Expr):
            return True
        atoms = [self.algebra.atoms[k] for monomial, _ in number.terms for k in monomial]
        return all(
            atom.args[:1] and atom.args[0] in self._names
            if atom.op == "symbol"
            else all(map(self._is_of_sizes, atom.args))  # type: ignore[arg-type]
            for atom in atoms
        )


def unequal_sizes(
    node: ir.Node, operands: _Facts, opset: int, algebra: Algebra
) -> list[tuple[Number, Number]] | None:
    """Return pairs of sizes that must be equal for a node, but may differ by its shape function.

    Returns None where that function cannot tell. The pair (1, 0) stands for any other condition.
    """
    function, unequal = find(node.op_type, node.domain), list[tuple[Number, Number]]()
    if function is None:
        return None
    attributes = {name: python_value(a) for name, a in node.attributes.items()}
    shape = (node.op_type, operands, attributes, opset, len(node.outputs))
    try:
        function(Application(*shape, algebra, unequal))
    except (Undecided, *INVALID_NODE_ERRORS):
        return None
    return unequal
