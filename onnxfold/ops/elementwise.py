"""Definitions of element-wise ops: arithmetic, logic, selections, casts and activations.

The module also contains CumSum and Dropout.

NumPy computes only ops that IEEE 754, two's complement or logic fully define, such as Add and Cast.
float16 and bfloat16 results are rounded after every op. Integers wrap. NaN payloads are undefined.
The callers disable NumPy's floating-point warnings once for many kernels.

In a few cases, onnxruntime's code for arm64 differs from IEEE 754. On arm64, onnxruntime computes
these cases instead of NumPy. On CPUs other than x86-64 and arm64, onnxruntime computes all
floating-point arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.ir.storage.tensors import stored_tensor
from onnxfold.ir.symbolic.expression import Algebra, Number
from onnxfold.ir.symbolic.fact import MAX_TRACKED_ELEMENTS, SIZE_DTYPES, Fact, is_small, of_items
from onnxfold.ops.application import (
    Application,
    Undecided,
    axis_of,
    constant_array,
    constant_number,
    map_elements,
)
from onnxfold.ops.bases import BaseOfResult, OperandBases, along_axes, elementwise
from onnxfold.ops.definition import NodeProperties, Op, OperandChecks, find, op
from onnxfold.ops.numpy_kernels import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT64,
    INTEGERS,
    NUMBERS,
    ORDERED,
    SIGNED,
    STRING,
    UINT64,
    Array,
    DType,
    Kind,
    NotExact,
    Unfoldable,
    broadcast_shape,
    check_allocatable,
    kind_on,
    require,
)
from onnxfold.ops.results import facts_of_results
from onnxfold.ops.traits import Trait
from onnxfold.support.arrays import distinct
from onnxfold.support.cpu_family import CpuFamily, cpu_family

_LOGICAL = frozenset((BOOL,))
_BROADCASTING_OPSET = 7
"""The first opset with broadcasting by default. onnxruntime does not support earlier ones."""
_EXACT_IN_FLOAT64 = 1 << 53
"""All integers up to this absolute value are exact in float64."""
_MAX_BOUNDARY = 1 << 31
"""Comparisons with a number of at least this absolute value have no boundary values."""
_NUMERALS = ["0", "1", "7"]
"""Strings that a Cast can convert to numbers."""


def _exact_dtypes(
    dtypes: frozenset[DType], inexact_on_arm64: frozenset[DType] = frozenset()
) -> frozenset[DType]:
    """Return the dtypes for which a kernel is exact on the CPU of this process."""
    if cpu_family() is CpuFamily.X86_64:
        return dtypes
    if cpu_family() is CpuFamily.ARM64:
        return dtypes - inexact_on_arm64
    return dtypes - FLOATS


# Ops on one operand


class Unary(Op):
    """An op with one operand that NumPy computes exactly."""

    function: ClassVar[np.ufunc]
    accepted: ClassVar[frozenset[DType]]
    """The dtypes for which the function is exact on x86-64."""
    inexact_on_arm64: ClassVar[frozenset[DType]] = frozenset()
    """Dtypes for which onnxruntime's vector code for arm64 may return other last bits."""

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for operands of these dtypes."""
        return kind_on(_exact_dtypes(self.accepted, self.inexact_on_arm64), dtypes)

    def compute(self, x: Array) -> Array:
        """Return the function of each element. Raises NotExact if the dtype is not accepted."""
        require(x, _exact_dtypes(self.accepted, self.inexact_on_arm64))
        return np.asarray(self.function(x))

    def rounds_by_position(self, node: NodeProperties) -> bool:
        """Return whether vector code for arm64 may return other last bits than scalar code."""
        return node.dtype.numpy() in self.inexact_on_arm64


class _OfSizes(Op):
    """An op with one operand whose elements may be symbolic sizes or booleans."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the type of the operand, and compute elements from known sizes or booleans."""
        algebra = a.algebra
        fact = a.fact(0)
        items = fact.objects if fact.dtype in SIZE_DTYPES else None
        if items is None or fact.dtype is None or not all(map(algebra.is_size, items.flat)):
            return a.like(fact.shape)
        results = map_elements(functools.partial(self.of_size, algebra), items)
        return [of_items(results, fact.dtype, algebra)]

    def of_size(self, algebra: Algebra, a: Number) -> Number:
        """Return the result for a size or a boolean."""
        raise NotImplementedError


@op("Abs", since=6, traits=Trait.EXACT)
class Abs(_OfSizes, Unary):
    """The absolute value."""

    function = np.absolute
    accepted = NUMBERS

    def of_size(self, algebra: Algebra, a: Number) -> Number:
        """Return the result for a size."""
        return algebra.maximum(a, algebra.mul(a, -1))


@op("Neg", since=6, traits=Trait.EXACT)
class Neg(_OfSizes, Unary):
    """The negated number."""

    function = np.negative
    accepted = SIGNED | FLOATS

    def of_size(self, algebra: Algebra, a: Number) -> Number:
        """Return the result for a size."""
        return algebra.mul(a, -1)


@op("Not", traits=Trait.EXACT)
class Not(_OfSizes, Unary):
    """The negated boolean."""

    function = np.logical_not
    accepted = _LOGICAL

    def of_size(self, algebra: Algebra, a: Number) -> Number:
        """Return the result for a boolean."""
        return algebra.sub(1, a)


@op("Sign", traits=Trait.EXACT | Trait.ORDERS)
class Sign(_OfSizes):
    """The sign: -1, 0 or 1."""

    def of_size(self, algebra: Algebra, a: Number) -> Number:
        """Return the result for a size."""
        return algebra.sub(algebra.less(0, a), algebra.less(a, 0))


@op("Ceil", since=6, traits=Trait.EXACT | Trait.LIKE_FIRST)
class Ceil(Unary):
    """The number rounded up."""

    function = np.ceil
    accepted = FLOATS


@op("Floor", since=6, traits=Trait.EXACT | Trait.LIKE_FIRST)
class Floor(Unary):
    """The number rounded down."""

    function = np.floor
    accepted = FLOATS


@op("Reciprocal", since=6, traits=Trait.EXACT | Trait.LIKE_FIRST)
class Reciprocal(Unary):
    """The reciprocal. On arm64, Eigen's vector code computes float32 from an estimate."""

    function = np.reciprocal
    accepted = FLOATS
    inexact_on_arm64 = frozenset((FLOAT32,))


@op("Sqrt", since=6, traits=Trait.EXACT | Trait.LIKE_FIRST)
class Sqrt(Unary):
    """The square root."""

    function = np.sqrt
    accepted = FLOATS


@op("IsInf", "IsNaN", traits=Trait.EXACT)
class Classification(Op):
    """A test of each element, with a boolean result."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of the operand with the dtype bool."""
        return a.tensor(a.shape(0), ir.DataType.BOOL)


# Ops with broadcasting


class Broadcasting(Op):
    """An op with broadcasting. By default, the result has the dtype of the first operand."""

    is_exact: ClassVar[bool] = True
    """Whether onnxruntime computes each element in the same way at each position."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the broadcast shape. Compute the elements if those of all operands are known."""
        if a.opset < _BROADCASTING_OPSET or not a.inputs:
            raise Undecided
        shape = a.broadcast(*a.shapes())
        dtype = self.operand_dtype(a)
        result = self.result_dtype(dtype)
        items = self._items(a) if dtype in SIZE_DTYPES and is_small(shape) else None
        if items is None or result is None:
            return a.tensor(shape, result)
        return [of_items(items, result, a.algebra)]

    def _items(self, a: Application) -> Array | None:
        """Return the elements of the result; None if they are unknown or an operand is large."""
        objects = [a.objects(k) for k in range(len(a.inputs))]
        arrays = [array for array in objects if array is not None]
        if len(arrays) < len(a.inputs) or any(
            array.size > MAX_TRACKED_ELEMENTS for array in arrays
        ):
            return None
        are_sizes = all(a.algebra.is_size(item) for array in arrays for item in array.flat)
        return self.of_arrays(a.algebra, arrays, are_sizes)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the bases."""
        return elementwise(a)

    def is_exact_on_bases(self, node: NodeProperties) -> bool:
        """Return whether onnxruntime computes each element in the same way at each position."""
        return self.is_exact and self.is_independent_of_position(node)

    def broadcasts(self, index: int, opset: int) -> bool:
        """Return whether the opset has broadcasting without attributes."""
        return opset >= _BROADCASTING_OPSET

    def operand_dtype(self, a: Application) -> ir.DataType | None:
        """Return the dtype of the operand that determines the dtype of the result."""
        return a.fact(0).dtype

    def result_dtype(self, dtype: ir.DataType | None) -> ir.DataType | None:
        """Return the dtype of the result for operands of a dtype."""
        return dtype

    def of_arrays(self, algebra: Algebra, arrays: Sequence[Array], are_sizes: bool) -> Array | None:
        """Return the result for arrays of integers and expressions; None if it is unknown.

        ``are_sizes`` is True if all elements are sizes, whose sums and products do not wrap.
        """
        return None


class _OfPairs(Broadcasting):
    """An op that combines symbolic sizes or booleans of all operands from left to right."""

    is_linear: ClassVar[bool] = False
    """Whether results that are 0 for all integers (x * 0, x - x) are also 0 after wrapping."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes or booleans."""
        raise NotImplementedError

    def of_arrays(self, algebra: Algebra, arrays: Sequence[Array], are_sizes: bool) -> Array | None:
        """Apply `of_pair` to the elements.

        If not all elements are sizes, the result is known only if the op is linear and all elements
        of the result are 0.
        """
        if not (are_sizes or self.is_linear):
            return None
        of_pair = functools.partial(self.of_pair, algebra)
        items = functools.reduce(lambda a, b: map_elements(of_pair, a, b), arrays)
        return items if are_sizes or all(item == 0 for item in items.flat) else None


class Binary(_OfPairs):
    """An op with two operands that NumPy computes exactly."""

    function: ClassVar[np.ufunc]
    accepted: ClassVar[frozenset[DType]] = NUMBERS
    """The dtypes for which the function is exact on x86-64 and arm64."""

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for operands of these dtypes."""
        return kind_on(_exact_dtypes(self.accepted), dtypes)

    def compute(self, a: Array, b: Array) -> Array:
        """Return the function of each pair of elements. Raises NotExact for other dtypes."""
        require(a, _exact_dtypes(self.accepted))
        return np.asarray(self.function(a, b))


@op("Add", since=_BROADCASTING_OPSET, traits=Trait.COMMUTES)
class Add(Binary):
    """The sum, which is -0.0 only if both terms are -0.0."""

    function = np.add
    is_linear = True
    excludes_negative_zero = (0, 1)

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.add(a, b)

    def added_constant(self, node: ir.Node, index: int) -> int | None:
        """Return the largest element of the other operand if it is a constant of integers."""
        constant = _constant_integers(node.inputs[1 - index])
        return None if constant is None else int(constant.max())


@op("Sub", since=_BROADCASTING_OPSET)
class Sub(Binary):
    """The difference."""

    function = np.subtract
    is_linear = True

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.sub(a, b)

    def added_constant(self, node: ir.Node, index: int) -> int | None:
        """Return the largest negated element of the subtrahend if it is a constant of integers."""
        constant = _constant_integers(node.inputs[1]) if index == 0 else None
        return None if constant is None else -int(constant.min())


def _constant_integers(value: ir.Value | None) -> Array | None:
    """Return the elements of a non-empty constant of integers; None for other values."""
    constant = constant_array(value)
    if constant is None or constant.size == 0 or constant.dtype.kind not in "iu":
        return None
    return constant


@op("Mul", since=_BROADCASTING_OPSET, traits=Trait.COMMUTES)
class Mul(Binary):
    """The product."""

    function = np.multiply
    is_linear = True

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.mul(a, b)

    def factor(self, node: ir.Node, index: int) -> float | None:
        """Return the other operand if it is a constant with one element."""
        return constant_number(node.inputs[1 - index])


class Predicate(Binary):
    """An op with two operands and a boolean result."""

    def result_dtype(self, dtype: ir.DataType | None) -> ir.DataType | None:
        """Return bool."""
        return ir.DataType.BOOL


@op("And", since=_BROADCASTING_OPSET, traits=Trait.COMMUTES)
class And(Predicate):
    """The logical conjunction."""

    function = np.logical_and
    accepted = _LOGICAL

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two booleans."""
        return algebra.minimum(a, b)


@op("Or", since=_BROADCASTING_OPSET, traits=Trait.COMMUTES)
class Or(Predicate):
    """The logical disjunction."""

    function = np.logical_or
    accepted = _LOGICAL

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two booleans."""
        return algebra.maximum(a, b)


@op("Equal", since=_BROADCASTING_OPSET, traits=Trait.COMMUTES)
class Equal(Predicate):
    """A test for equality."""

    function = np.equal
    accepted = NUMBERS | _LOGICAL

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.equal(a, b)

    def boundary_values(self, node: ir.Node, index: int) -> tuple[int, ...]:
        """Return the number with which the operand is compared, if it is a small constant."""
        number = _compared_number(node, index)
        return () if number is None else (number,)

    def words(self, node: ir.Node, index: int) -> list[str]:
        """Return the elements of the other operand if it is constant."""
        constant = constant_array(node.inputs[1 - index])
        return [] if constant is None else decoded_words(constant)


class Comparison(Predicate):
    """An op that orders numbers."""

    def boundary_values(self, node: ir.Node, index: int) -> tuple[int, ...]:
        """Return the neighbors of the number in the other operand, if it is a small constant."""
        number = _compared_number(node, index)
        return () if number is None else (number + 1, number - 1)


@op("Less", since=_BROADCASTING_OPSET)
class Less(Comparison):
    """A test whether the first operand is less."""

    function = np.less

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.less(a, b)


@op("Greater", since=_BROADCASTING_OPSET)
class Greater(Comparison):
    """A test whether the first operand is greater."""

    function = np.greater

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.less(b, a)


@op("LessOrEqual", since=12)
class LessOrEqual(Comparison):
    """A test whether the first operand is less or equal."""

    function = np.less_equal

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.sub(1, algebra.less(b, a))


@op("GreaterOrEqual", since=12)
class GreaterOrEqual(Comparison):
    """A test whether the first operand is greater or equal."""

    function = np.greater_equal

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.sub(1, algebra.less(a, b))


def _compared_number(node: ir.Node, index: int) -> int | None:
    """Return the number with which an operand is compared, truncated to an integer.

    The result is None unless the other operand is a constant with one small number.
    """
    constant = constant_array(node.inputs[1 - index])
    if constant is None or constant.size != 1 or constant.dtype.kind not in "iuf":
        return None
    number = constant.reshape(-1)[0]
    return int(number) if abs(number) < _MAX_BOUNDARY else None


def decoded_words(array: Array) -> list[str]:
    """Return the elements of an array as strings."""
    words = array.reshape(-1).tolist()
    return [word.decode() if isinstance(word, bytes) else str(word) for word in words]


@op("Xor", traits=Trait.COMMUTES)
class Xor(_OfPairs):
    """A test whether booleans differ."""

    def result_dtype(self, dtype: ir.DataType | None) -> ir.DataType | None:
        """Return bool."""
        return ir.DataType.BOOL

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two booleans."""
        return algebra.sub(1, algebra.equal(a, b))


class _Extremum(_OfPairs):
    """The least or the greatest element of any number of operands."""

    def is_exact_on_bases(self, node: NodeProperties) -> bool:
        """Return whether the elements are integers, and the result does not depend on the position.

        For floating-point zeros with different signs, the result of onnxruntime depends on the axes
        along which the operands repeat.
        """
        return not node.dtype.is_floating_point() and super().is_exact_on_bases(node)

    def carries(self, index: int) -> bool:
        """Return True, because the results are elements of the operands."""
        return True


@op("Min", traits=Trait.COMMUTES | Trait.ORDERS)
class Min(_Extremum):
    """The least element of any number of operands."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.minimum(a, b)


@op("Max", traits=Trait.COMMUTES | Trait.ORDERS)
class Max(_Extremum):
    """The greatest element of any number of operands."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.maximum(a, b)


@op("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mean", "Sum", traits=Trait.COMMUTES)
@op("PRelu")
@op("Pow", traits=Trait.HEAVY)
class OnlyBroadcasting(Broadcasting):
    """An op with broadcasting that only onnxruntime computes."""

    is_exact = False


def _check_division(a: Array, b: Array) -> None:
    """Raise Unfoldable if an integer division of these operands traps on some processors.

    If the result is too large, raise the exceptions of `check_allocatable`.
    """
    check_allocatable(broadcast_shape(a.shape, b.shape), a.dtype)
    a = distinct(a)
    b = distinct(b)
    if not np.all(b):
        raise Unfoldable("integer division by zero")
    if a.dtype in SIGNED and (b == -1).any() and (a == np.iinfo(a.dtype).min).any():
        raise Unfoldable("integer division overflows")


def _reason_division_can_fail(operands: OperandChecks) -> str | None:
    return "it may divide by 0" if operands.may_divide_by_zero(1) else None


@op("Div", since=_BROADCASTING_OPSET)
class Div(_OfPairs):
    """The quotient. For integers, it is truncated toward zero."""

    def of_pair(self, algebra: Algebra, a: Number, b: Number) -> Number:
        """Return the result for two sizes."""
        return algebra.trunc_div(a, b)

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for operands of these dtypes. A division of integers can fail."""
        return kind_on(_exact_dtypes(NUMBERS) & FLOATS, dtypes)

    def compute(self, a: Array, b: Array) -> Array:
        """Return ``a / b``. Raises Unfoldable if a division of integers traps."""
        require(a, _exact_dtypes(NUMBERS))
        if a.dtype in FLOATS:
            return np.asarray(np.divide(a, b))
        _check_division(a, b)
        if a.dtype in SIGNED:
            # NumPy rounds down. Without the remainder, the quotient is exact.
            a = np.subtract(a, np.fmod(a, b))
        return np.asarray(np.floor_divide(a, b))

    def can_fail(self, operands: OperandChecks) -> str | None:
        """Return the reason if the division may fail, for example for a divisor of 0, or None."""
        return super().can_fail(operands) or _reason_division_can_fail(operands)

    def factor(self, node: ir.Node, index: int) -> float | None:
        """Return the reciprocal of the divisor if it is a constant with one non-zero element."""
        divisor = constant_number(node.inputs[1]) if index == 0 else None
        return 1 / divisor if divisor else None


@op("Mod", since=10)
class Mod(Broadcasting):
    """The remainder."""

    def compute(self, a: Array, b: Array, *, fmod: int = 0) -> Array:
        """Return the remainder of integers with the sign of ``b``.

        Raises:
            NotExact: The operands are not integers, or ``fmod`` is set.
            Unfoldable: The division traps.
        """
        require(a, INTEGERS)
        if fmod:
            raise NotExact("onnxruntime computes integer fmod in float64")
        _check_division(a, b)
        return np.asarray(np.mod(a, b))

    def can_fail(self, operands: OperandChecks) -> str | None:
        """Return the reason if the division may fail, for example for a divisor of 0, or None."""
        return super().can_fail(operands) or _reason_division_can_fail(operands)


# Selections


_BY_VALUE = frozenset((FLOAT16, FLOAT32, FLOAT64))
"""Dtypes whose selected elements onnxruntime merges by tests for non-zero elements."""


@op("Where", since=9, traits=Trait.PLACES)
class Where(Broadcasting):
    """A selection of elements of two operands by a condition."""

    def operand_dtype(self, a: Application) -> ir.DataType | None:
        """Return the dtype of the second operand, whose elements may be selected."""
        return a.fact(1).dtype

    def of_arrays(self, algebra: Algebra, arrays: Sequence[Array], are_sizes: bool) -> Array | None:
        """Select elements by the condition; None if not all elements are sizes."""
        return map_elements(algebra.where, *arrays) if are_sizes else None

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for operands of these dtypes."""
        return Kind.GENERAL if dtypes[1] in _BY_VALUE else Kind.ELEMENTWISE

    def compute(self, condition: Array, x: Array, y: Array) -> Array:
        """Return ``x`` where the condition is true, and ``y`` elsewhere, with broadcasting.

        onnxruntime changes some elements from -0.0 to 0.0. This depends on the axes along which the
        condition and the branches repeat. So a result with -0.0 raises NotExact.
        """
        if x.dtype in _BY_VALUE:
            check_allocatable(broadcast_shape(condition.shape, x.shape, y.shape), x.dtype)
        selected = np.asarray(np.where(condition, x, y))
        if x.dtype in _BY_VALUE and ((selected == 0) & np.signbit(selected)).any():
            raise NotExact("the sign of a zero depends on the axes along which operands repeat")
        return selected

    def rounds_by_position(self, node: NodeProperties) -> bool:
        """Return whether a branch may contain -0.0, for which the result may be 0.0."""
        if not node.dtype.is_floating_point():
            return False
        return not (node.has_no_negative_zero(1) and node.has_no_negative_zero(2))

    def carries(self, index: int) -> bool:
        """Return True. The results are elements of the branches, and depend on the condition."""
        return True


def _sign_of_zero_depends_on_position(node: NodeProperties, limits: Sequence[float | None]) -> bool:
    """Return whether the sign of a zero in the result depends on the position.

    ``limits`` has None for an unknown limit.

    On arm64, onnxruntime's vector code returns 0.0 for max(-0.0, 0.0), but its scalar code -0.0.
    """
    if not node.dtype.is_floating_point():
        return False
    if all(limit is not None and limit != 0 for limit in limits):
        return False
    return not node.has_no_negative_zero(0) or any(
        limit is None or (limit == 0 and math.copysign(1, limit) < 0) for limit in limits
    )


@op("Relu", traits=Trait.EXACT | Trait.LIKE_FIRST | Trait.ORDERS)
class Relu(Op):
    """The maximum of each element and 0."""

    def rounds_by_position(self, node: NodeProperties) -> bool:
        """Return whether the sign of a zero depends on the position on a supported CPU."""
        return _sign_of_zero_depends_on_position(node, [0.0])


@op("Clip", traits=Trait.LIKE_FIRST | Trait.ORDERS)
class ClipByAttributes(Op):
    """The limitation of elements to an interval, for opsets before 12."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the bases. The bounds are single numbers."""
        return elementwise(a)

    def is_exact_on_bases(self, node: NodeProperties) -> bool:
        """Return whether the result does not depend on the position of an element."""
        return self.is_independent_of_position(node)

    def rounds_by_position(self, node: NodeProperties) -> bool:
        """Return whether the sign of a zero depends on the position on a supported CPU."""
        is_float = node.dtype.is_floating_point()
        return is_float and _sign_of_zero_depends_on_position(node, node.limits)

    def carries(self, index: int) -> bool:
        """Return True for the first operand, whose elements the result contains."""
        return index == 0


@op("Clip", since=12, traits=Trait.LIKE_FIRST | Trait.ORDERS)
class Clip(ClipByAttributes):
    """The limitation of elements to an interval that operands define, with a NumPy kernel."""

    # Whether the kernel is exact for a bound of zero. For arm64, this is False: see
    # `_sign_of_zero_depends_on_position`.
    _is_exact_at_zero = cpu_family() is CpuFamily.X86_64

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for operands of these dtypes."""
        accepted = _exact_dtypes(ORDERED)
        return kind_on(accepted if self._is_exact_at_zero else accepted - FLOATS, dtypes)

    def compute(self, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
        """Return ``min(max(x, low), high)``. NaN in ``x`` is preserved, and a NaN bound is ignored.

        The default bounds are the least and greatest *finite* numbers of the dtype, so infinities
        are clipped. For bfloat16, the default bounds are the infinities.
        """
        require(x, _exact_dtypes(ORDERED))
        finfo: Any = ml_dtypes.finfo
        info = np.iinfo(x.dtype) if x.dtype in INTEGERS else finfo(x.dtype)
        least = info.min
        greatest = info.max
        if x.dtype == BFLOAT16:
            least = -np.inf
            greatest = np.inf
        low = np.asarray(least, x.dtype) if low is None else low.reshape(())
        high = np.asarray(greatest, x.dtype) if high is None else high.reshape(())
        if not self._is_exact_at_zero and x.dtype in FLOATS and (low == 0 or high == 0):
            raise NotExact("on this CPU, the sign of a zero depends on its position")
        # np.maximum would propagate a NaN bound, and select 0.0 or -0.0
        x = np.asarray(np.where(x < low, low, x))
        return np.asarray(np.where(high < x, high, x))


# Casts


_CASTABLE = NUMBERS | {BOOL}
_ROUNDS_ONCE = cpu_family() is CpuFamily.X86_64
"""Whether onnxruntime rounds once in a cast of 64-bit integers to float32. On arm64, vector code
converts the integers through float64. This rounds twice unless an integer is exact in float64."""
_CAST_BY_POSITION = frozenset(
    (ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32)
)
"""Dtypes for which a Cast of a float out of range has a result that depends on the position. These
are uint32 on x86-64, and on arm64 uint8, uint16, and int32 from float64."""


@op("Cast", since=6, traits=Trait.EXACT | Trait.ALONG_AXES | Trait.PLACES | Trait.CONVERTS)
class Cast(Op):
    """A conversion to another dtype."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of the operand with the dtype ``to``, and convert known sizes.

        By `onnxfold.analysis.symbolic_analysis.ASSUMPTIONS`, sizes do not overflow 32 bits.
        """
        algebra = a.algebra
        fact = a.fact(0)
        to = ir.DataType(a.attributes["to"])
        items = fact.objects if fact.dtype in SIZE_DTYPES else None
        if items is None or to not in SIZE_DTYPES:
            return a.tensor(fact.shape, to)
        if to != fact.dtype and not all(map(algebra.is_size, items.flat)):
            return a.tensor(fact.shape, to)
        if to == ir.DataType.BOOL and fact.dtype != ir.DataType.BOOL:
            items = map_elements(lambda n: algebra.sub(1, algebra.equal(n, 0)), items)
        elif fact.dtype == ir.DataType.BOOL:
            items = map_elements(lambda n: int(n) if isinstance(n, int) else n, items)
        return [of_items(items, to, algebra)]

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for the dtype of the operand and the target dtype."""
        source = dtypes[0]
        target = _numpy_dtype(attributes["to"])
        if source == target:
            can_fail = source == STRING
        else:
            castable = _exact_dtypes(_CASTABLE)
            can_fail = source not in castable or target not in castable
            can_fail = can_fail or (source in FLOATS and target in INTEGERS)
            can_fail = can_fail or _may_round_twice(source, target)
        return Kind.GENERAL if can_fail else Kind.ELEMENTWISE

    def compute(self, x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
        """Return the elements of ``x`` in the dtype with the ONNX number ``to``.

        Floats are truncated toward zero to integers. Integers wrap. All numbers except 0 are true.
        Like onnxruntime, the kernel converts float64 to 16-bit floats through float32, so these
        results are rounded twice. Raises NotExact for other dtypes, and for floats out of range.
        """
        return _cast(x, _numpy_dtype(to))

    def depends_on_position(self, node: NodeProperties) -> bool:
        """Return whether the result for a float out of range depends on the position.

        Vector code and scalar code convert floats out of the range of integers differently.
        """
        if node.dtype not in _CAST_BY_POSITION:
            return False
        if node.dtype == ir.DataType.INT32:
            return node.input_dtype == ir.DataType.DOUBLE
        return node.input_dtype.is_floating_point()

    def carries(self, index: int) -> bool:
        """Return True for the first operand, whose elements the result contains."""
        return index == 0

    def words(self, node: ir.Node, index: int) -> list[str]:
        """Return numerals, which the node can convert to numbers, unless it converts to strings."""
        is_text = node.attributes.get_int("to", 0) == ir.DataType.STRING
        return [] if is_text else _NUMERALS

    def factor(self, node: ir.Node, index: int) -> float:
        """Return 1."""
        return 1.0


@op("CastLike", since=15, traits=Trait.ALONG_AXES | Trait.PLACES | Trait.CONVERTS)
class CastLike(Op):
    """A conversion to the dtype of another operand."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the facts of a Cast to the dtype of the second operand.

        The elements of the second operand may be unknown.
        """
        dtype = a.fact(1).dtype
        if dtype is None:
            raise Undecided
        attributes = {**a.attributes, "to": dtype}
        cast = dataclasses.replace(
            a, op_type="Cast", inputs=a.inputs[:1], attributes=attributes, infer=None
        )
        return facts_of_results(find("Cast", "", a.opset), cast)

    def compute(self, x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
        """Return the elements of ``x`` in the dtype of ``like``; see `Cast`."""
        return _cast(x, like.dtype)

    def carries(self, index: int) -> bool:
        """Return True for the first operand, whose elements the result contains."""
        return index == 0


def _cast(x: Array, target: DType) -> Array:
    """Return the elements in another dtype. Raises NotExact if the cast is not exact."""
    if x.dtype == target:
        return x
    castable = _exact_dtypes(_CASTABLE)
    if x.dtype not in castable or target not in castable:
        raise NotExact(f"no exact cast from {x.dtype.name} to {target.name}")
    if x.dtype in FLOATS and target in INTEGERS:
        _check_range(x, target)
    if _may_round_twice(x.dtype, target):
        _check_exact_in_float64(x)
    if x.dtype == FLOAT64 and target in (FLOAT16, BFLOAT16):
        x = x.astype(FLOAT32)  # onnxruntime rounds twice
    return np.asarray(x.astype(target))


@functools.cache
def _numpy_dtype(number: int) -> DType:
    return ir.DataType(number).numpy()


def _may_round_twice(source: DType | None, target: DType) -> bool:
    """Return whether a cast in onnxruntime may round an integer twice on this CPU."""
    return not _ROUNDS_ONCE and source in (INT64, UINT64) and target == FLOAT32


def _check_exact_in_float64(x: Array) -> None:
    if x.size and (int(x.max()) > _EXACT_IN_FLOAT64 or int(x.min()) < -_EXACT_IN_FLOAT64):
        raise NotExact("on this CPU, onnxruntime rounds large integers twice")


def _check_range(x: Array, target: DType) -> None:
    check_allocatable(x.shape, target)
    if not x.size:
        return
    x = distinct(x)
    # Numbers between min - 1 and max + 1, both exclusive, are truncated to numbers in the range.
    # float64 cannot represent min - 1 of int64, so the lower bound for int64 is min, inclusive.
    info = np.iinfo(target)
    low = float(info.min)
    high = float(int(info.max) + 1)
    least = float(x.min())
    greatest = float(x.max())
    if not (low - 1 < least and greatest < high) or (low - 1 == low and least < low):
        raise NotExact(f"a value is NaN or out of range for {target.name}")


# Activations and other functions that onnxruntime computes


@op("Sigmoid", traits=Trait.VECTORIZED | Trait.LIKE_FIRST | Trait.HEAVY | Trait.ENDS_WITH_SUM)
@op("HardSwish", "LeakyRelu", "Round", traits=Trait.EXACT | Trait.LIKE_FIRST)
@op("Erf", "Exp", "Gelu", "Tanh", traits=Trait.VECTORIZED | Trait.LIKE_FIRST | Trait.HEAVY)
@op("Cos", "Log", "Mish", "Sin", "Softplus", traits=Trait.LIKE_FIRST | Trait.HEAVY)
@op("Celu", "Elu", "Selu", "Softsign", traits=Trait.LIKE_FIRST)
@op("ThresholdedRelu", traits=Trait.LIKE_FIRST)
class Function(Op):
    """A function of each element. The result has the type of the operand."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base."""
        return elementwise(a)


@op("CumSum", traits=Trait.LIKE_FIRST | Trait.HEAVY)
class CumSum(Op):
    """The cumulative sum along an axis."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base with all elements along the axis."""
        axis = a.application.fact(1).known
        if axis is None or axis.size != 1:
            raise Undecided
        return along_axes(a, [axis_of(int(axis.item()), a.operand(0).rank)])

    def is_exact_on_bases(self, node: NodeProperties) -> bool:
        """Return True, because onnxruntime adds complete slices one after the other."""
        return True


@op("HardSigmoid", traits=Trait.EXACT | Trait.LIKE_FIRST)
class HardSigmoid(Op):
    """The function max(0, min(1, alpha * x + beta))."""

    def rounds_by_position(self, node: NodeProperties) -> bool:
        """Return whether beta is 0, so that the sum may be a negative number that underflows."""
        return bool(node.attribute("beta") == 0)


@op("Dropout", traits=Trait.LIKE_FIRST)
class Dropout(Op):
    """The random removal of elements in training."""

    may_be_random = True

    def is_deterministic(self, node: ir.Node, opset: int) -> bool:
        """Return whether the node certainly copies its operand.

        This is the case if the node is not in training mode, or if the ratio is 0.
        """
        inputs = [*node.inputs, None, None, None]  # an invalid node may have no inputs
        if _is_constant_zero(inputs[1]):
            return True
        if inputs[2] is not None:
            return _is_constant_zero(inputs[2])
        is_test = node.attributes.get("is_test")
        return opset >= 7 if is_test is None else bool(is_test.as_int())


def _is_constant_zero(value: ir.Value | None) -> bool:
    tensor = None if value is None else stored_tensor(value)
    return tensor is not None and not np.asarray(tensor.numpy()).any()


@op("BitShift", traits=Trait.USES_BITS)
class BitShift(Op):
    """A shift of the bits of integers."""
