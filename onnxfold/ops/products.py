"""Definitions of matrix products, Einsum and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.ir.symbolic.expression import Number
from onnxfold.ir.symbolic.fact import Fact, Shape
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.bases import BaseOfResult, OperandBases, OpOnBases, uniform_in_all
from onnxfold.ops.definition import Axis, Op, StaticShape, Work, op
from onnxfold.ops.traits import Trait


def multiply_accumulates(count: int) -> Work:
    """Return the work of a number of multiply-accumulates."""
    return Work(count, 2 * count)


def _transposed(shape: Shape, transpose: int) -> Shape:
    if not transpose:
        return shape
    if len(shape) < 2:
        raise Undecided
    return (*shape[:-2], shape[-1], shape[-2])


class Product(Op):
    """A product of matrices on the last two axes, perhaps transposed. All other axes broadcast."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of the product with the dtype of `result`.

        Raises:
            Undecided: A shape is unknown, or the node has attributes for other layouts.
        """
        attributes = a.attributes
        if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
            raise Undecided
        left = _transposed(a.shape(0), attributes.get("transA", 0))
        right = _transposed(a.shape(1), attributes.get("transB", 0))
        if not left or not right:
            raise Undecided
        a.require_equal(left[-1], right[-2] if len(right) > 1 else right[-1])
        batch = a.broadcast(left[:-2], right[:-2])
        shape = (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
        self.require_other_sizes(a, shape)
        return self.result(a, shape)

    def require_other_sizes(self, a: Application, shape: Shape) -> None:
        """Record that all other operands, such as zero points, are single numbers."""
        if a.equal_size_pairs is not None:
            a.may_fail_unless(all(other in ((), (1,)) for other in a.shapes()[2:]))

    def result(self, a: Application, shape: Shape) -> Sequence[Fact]:
        """Return the fact of the product, by default with the dtype of the first operand."""
        return a.like(shape)

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of a sum of products for each element of the result."""
        transposed = attributes.get("transA")
        axis = 0 if transposed is not None and transposed.as_int() else -1
        return multiply_accumulates(math.prod(outputs[0]) * inputs[0][axis])


@op("MatMul", traits=Trait.MULTIPLIES)
class MatMul(Product):
    """A product of matrices."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to complete matrices.

        Raises:
            Undecided: An operand is a vector, there is a third operand, or an operand is not a
                broadcast of a constant.
        """
        left = a.operand(0)
        right = a.operand(1)
        if left.rank < 2 or right.rank < 2 or len(a.application.inputs) > 2:
            raise Undecided
        matrices = {k: range(v.rank - 2, v.rank) for k, v in enumerate((left, right))}
        full = {0: left.repeated(matrices[0]), 1: right.repeated(matrices[1])}
        rank = len(a.result)
        return OpOnBases(uniform_in_all((left, right), rank) - {rank - 2, rank - 1}, full)

    def summed_axes(self, node: ir.Node) -> tuple[Axis, ...]:
        """Return the axis of the left factor's columns, and that of the right factor's rows."""
        left = -2 if node.attributes.get_int("transA", 0) else -1
        right = -1 if node.attributes.get_int("transB", 0) else -2
        return (0, left), (1, right)

    def source_axis(self, node: ir.Node, axis: int) -> Axis | None:
        """Return the axis of the left factor's rows, or that of the right factor's columns.

        The result is None for all axes of the result except the last two.
        """
        if axis not in (-2, -1):
            return None
        name = "transA" if axis == -2 else "transB"
        is_transposed = node.attributes.get_int(name, 0)
        return (0 if axis == -2 else 1), (-3 - axis if is_transposed else axis)


@op("Gemm", traits=Trait.MULTIPLIES)
class Gemm(MatMul):
    """The sum of a product of two matrices and a third operand."""

    def require_other_sizes(self, a: Application, shape: Shape) -> None:
        """Record that the third operand and the product broadcast."""
        if a.input(2) is not None:
            a.broadcast(shape, a.shape(2))


@op("MatMulInteger", traits=Trait.MULTIPLIES)
class MatMulInteger(Product):
    """A product of matrices of 8-bit integers."""

    def result(self, a: Application, shape: Shape) -> Sequence[Fact]:
        """Return the fact of the product with the dtype int32."""
        return a.tensor(shape, ir.DataType.INT32)


@op("QLinearMatMul", traits=Trait.MULTIPLIES)
class QLinearMatMul(Product):
    """A product of quantized matrices. onnx infers the result."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Raise Undecided, so that onnx infers the result."""
        raise Undecided


@op("Einsum", traits=Trait.UNBOUNDED)
class Einsum(Op):
    """A sum of products of elements of any number of operands."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes of the letters in the result.

        The sizes of each letter are broadcast, as in onnxruntime. onnx uses the first size instead.
        """
        terms, arrow, result = a.attributes["equation"].replace(" ", "").partition("->")
        if not arrow:
            letters = sorted(terms.replace("...", "").replace(",", ""))
            result = "".join(["...", *(letter for letter in letters if letters.count(letter) == 1)])
        sizes: dict[str | int, Number] = {}
        for term, shape in zip(terms.split(","), a.shapes(), strict=True):
            labels = _labels(term, len(shape) - len(term.replace("...", "")))
            for label, size in zip(labels, shape, strict=True):
                (sizes[label],) = a.broadcast((sizes.get(label, 1),), (size,))
        ellipsis_rank = sum(isinstance(label, int) for label in sizes)
        return a.like([sizes[label] for label in _labels(result, ellipsis_rank)])

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of one multiply-accumulate for each combination of indices.

        The work is 0 for one operand, whose elements are only moved or summed.
        """
        equation = attributes["equation"].as_string().replace(" ", "")
        terms = equation.partition("->")[0].split(",")
        sizes: dict[str, int] = {}
        for term, shape in zip(terms, inputs, strict=True):
            sizes.update(zip(term, shape, strict=True))
        return multiply_accumulates(math.prod(sizes.values()) if len(terms) > 1 else 0)


def _labels(term: str, ellipsis_rank: int) -> list[str | int]:
    """Return the letters of a term, with negative numbers for the axes of an ellipsis."""
    before, dots, after = term.partition("...")
    return [*before, *(range(-ellipsis_rank, 0) if dots else ()), *after]


# The index of the operand with the keys of the cache.
_PAST_KEYS = 4


@op("Attention", traits=Trait.UNBOUNDED | Trait.ATTENDS)
class Attention(Op):
    """Scaled dot product attention."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the fact of the first output, and only the dtypes of the others.

        onnx's shape inference is not used, because it treats unknown sizes as 0. Operands are
        [batch, heads, sequence, head size], or [batch, sequence, heads * head size] with the
        numbers of heads as attributes. For other ranks, the shape of the first output is unknown.
        """
        a.may_fail_unless(False)
        query = a.fact(0)
        value = a.fact(2)
        shape: Shape | None = None
        if query.shape and value.shape and query.rank == value.rank == 4:
            shape = (*query.shape[:3], value.shape[3])
        elif query.shape and value.shape and query.rank == value.rank == 3:
            size = a.algebra.floor_div(value.shape[2], a.attributes["kv_num_heads"])
            shape = (*query.shape[:2], a.algebra.mul(size, a.attributes["q_num_heads"]))
        # the present keys, the present values, and the product of queries and keys
        other_outputs = [Fact(a.fact(k).dtype) for k in (1, 2, 0)]
        return [*a.like(shape), *other_outputs][: a.n_outputs]

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of multiplying queries by all keys, and the results by all values."""
        has_past = len(inputs) > _PAST_KEYS and len(inputs[_PAST_KEYS]) > 1
        past = inputs[_PAST_KEYS][-2] if has_past else 0
        elements = math.prod(inputs[0]) + math.prod(outputs[0])
        return multiply_accumulates(elements * (inputs[1][-2] + past))
