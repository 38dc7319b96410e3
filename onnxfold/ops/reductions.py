"""Definitions of ops that reduce axes, and of searches along axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from onnxfold.ir.symbolic.expression import Algebra, Number
from onnxfold.ir.symbolic.fact import SIZE_DTYPES, Array, Fact, of_items
from onnxfold.ops.application import Application, Undecided, axis_of
from onnxfold.ops.bases import BaseOfResult, OperandBases, OpOnBases
from onnxfold.ops.definition import Op, op
from onnxfold.ops.traits import Trait

_REDUCES = Trait.REDUCES | Trait.REREADS | Trait.ANY_SIZES
# All integers up to this absolute value are exact in float64.
_EXACT_IN_FLOAT64 = 1 << 53


class _Reducing(Op):
    """An op that reduces axes."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base with all elements along the reduced axes."""
        operand = a.operand(0)
        application = a.application
        axes = application.integers("axes", 1)
        if not axes and application.attributes.get("noop_with_empty_axes") == 1:
            raise Undecided
        reduced = {axis_of(axis, operand.rank) for axis in axes or range(operand.rank)}
        uniform = operand.uniform | reduced
        if not application.attributes.get("keepdims", 1):
            kept = [axis for axis in range(operand.rank) if axis not in reduced]
            uniform = frozenset(k for k, axis in enumerate(kept) if axis in operand.uniform)
        return OpOnBases(uniform, {0: operand.repeated(reduced)})


@op("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", traits=_REDUCES)
@op("ReduceMean", "ReduceSumSquare", traits=_REDUCES)
class Reduction(_Reducing):
    """A reduction whose result onnx infers."""


class SizeReduction(_Reducing):
    """A reduction that is also computed for symbolic sizes."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Reduce the elements of a short 1-D operand to one size.

        Raises:
            Undecided: The operand has another rank, or an element that is not a size, or a runtime
                may round a partial result. onnx then infers the result.
        """
        fact = a.fact(0)
        items = fact.objects
        if items is None or items.ndim != 1 or not items.size or fact.dtype not in SIZE_DTYPES:
            raise Undecided
        if not all(map(a.algebra.is_size, items.flat)):
            raise Undecided
        axes = a.integers("axes", 1)
        if [axis_of(axis, 1) for axis in axes or (0,)] != [0]:
            raise Undecided
        if not axes and a.attributes.get("noop_with_empty_axes") == 1:
            raise Undecided
        # runtimes compute in float64 in any order, so every partial result must be exact
        if self.largest_partial_result(items) > _EXACT_IN_FLOAT64:
            raise Undecided
        shape = (1,) if a.attributes.get("keepdims", 1) else ()
        number = functools.reduce(functools.partial(self.of_pair, a.algebra), items)
        return [of_items(np.full(shape, number, object), fact.dtype, a.algebra)]

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the reduction of two sizes."""
        raise NotImplementedError

    def largest_partial_result(self, items: Array) -> int:
        """Return an upper bound of the absolute values of all partial results of known elements."""
        return 0


def _magnitudes(items: Array) -> list[int]:
    """Return the absolute values of the known elements, at least 1."""
    return [max(abs(item), 1) for item in items if isinstance(item, int)]


@op("ReduceSum", traits=_REDUCES)
class ReduceSum(SizeReduction):
    """The sum of elements."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the sum of two sizes."""
        return algebra.add(a, b)

    def largest_partial_result(self, items: Array) -> int:
        """Return the sum of the known absolute values."""
        return sum(_magnitudes(items))


@op("ReduceProd", traits=_REDUCES)
class ReduceProd(SizeReduction):
    """The product of elements."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the product of two sizes."""
        return algebra.mul(a, b)

    def largest_partial_result(self, items: Array) -> int:
        """Return the product of the known absolute values."""
        return math.prod(_magnitudes(items))


@op("ReduceMin", traits=_REDUCES)
class ReduceMin(SizeReduction):
    """The least element."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the lesser size."""
        return algebra.minimum(a, b)


@op("ReduceMax", traits=_REDUCES)
class ReduceMax(SizeReduction):
    """The greatest element."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the greater size."""
        return algebra.maximum(a, b)


@op("ArgMax", "ArgMin", traits=Trait.ANY_SIZES)
@op("TopK", traits=Trait.HEAVY)
@op("Hardmax", traits=Trait.LIKE_FIRST)
class Search(Op):
    """A search for elements along an axis. onnx infers the results, except for Hardmax."""
