"""Definitions of ops that move, select or repeat elements, read or change shapes, or fill tensors.

NumPy kernels of `Kind.VIEW` return views if strides can express the result. This includes views of
read-only, memory-mapped and zero-stride inputs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.ir.symbolic.expression import Algebra, Number
from onnxfold.ir.symbolic.fact import Fact, Shape, list_of, of_items, of_type
from onnxfold.ops.application import Application, Undecided, axis_of, constant_array
from onnxfold.ops.bases import (
    BaseOfResult,
    Filled,
    OperandBases,
    OpOnBases,
    ReshapedBase,
    along_axes,
    reshaped,
    uniform_in_all,
)
from onnxfold.ops.definition import (
    Axis,
    AxisBound,
    ElementBound,
    Op,
    OperandChecks,
    definition_of,
    op,
)
from onnxfold.ops.numpy_kernels import (
    INTEGERS,
    Array,
    Integers,
    Kind,
    NotExact,
    Unfoldable,
    broadcast_shape,
    check_allocatable,
    check_representable,
    integers,
    normalized_axis,
    require,
)
from onnxfold.ops.traits import Trait

TO_THE_END = (1 << 31) - 1
"""As the end of a slice, this number means the end of the axis. So does the largest int64."""
_ANY_END = (TO_THE_END, (1 << 63) - 1)
# All integers up to this absolute value are exact in float64.
_EXACT_IN_FLOAT64 = 1 << 53
# Whether this version of NumPy has the argument ``copy`` of ``reshape``.
_RESHAPES_WITHOUT_COPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


@op("Identity", traits=Trait.EXACT | Trait.FREE)
class Identity(Op):
    """The operand itself."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the fact of the operand."""
        return [a.fact(0)]

    def compute(self, x: Array) -> Array:
        """Return the input itself."""
        return x

    def carries(self, index: int) -> bool:
        """Return True for the first operand, whose elements the result contains."""
        return index == 0

    def factor(self, node: ir.Node, index: int) -> float:
        """Return 1."""
        return 1.0


# Axes and shapes


@op("Transpose", traits=Trait.MOVES | Trait.REREADS)
class Transpose(Op):
    """A permutation of the axes."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the reordered sizes."""
        sizes = a.shape(0)
        order = a.attributes.get("perm", tuple(reversed(range(len(sizes)))))
        a.require(len(order) == len(sizes))
        if sorted(order) != list(range(len(sizes))):
            raise Undecided
        return a.like([sizes[k] for k in order])

    def compute(self, x: Array, *, perm: Sequence[int] | None = None) -> Array:
        """Return ``x`` with axis ``perm[k]`` as axis ``k``. The default reverses the axes."""
        if perm is None:
            return np.asarray(x.T)
        if sorted(perm) != list(range(x.ndim)):
            raise Unfoldable(f"perm {list(perm)} is not a permutation of {x.ndim} axes")
        return np.transpose(x, perm)

    def implied_default(
        self, name: str, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return the axes in reverse order for ``perm``; None if the rank is unknown."""
        operand = node.inputs[0] if node.inputs else None
        shape = None if operand is None else shape_of(operand)
        if name != "perm" or shape is None:
            return None
        return tuple(reversed(range(len(shape))))

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base."""
        operand = a.operand(0)
        order = a.application.attributes.get("perm", range(operand.rank)[::-1])
        return OpOnBases(frozenset(k for k, axis in enumerate(order) if axis in operand.uniform))

    def source_axis(self, node: ir.Node, axis: int) -> Axis | None:
        """Return the axis before the permutation; None without the attribute ``perm``."""
        perm = node.attributes.get_ints("perm")
        return None if perm is None else (0, perm[axis] - len(perm))


class _Reshaping(Op):
    """An op that preserves the elements and their order."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Reshape the base of the operand."""
        return reshaped(a)


def _reshaped_fact(a: Application, sizes: Shape) -> Sequence[Fact]:
    """Return the first operand's fact with other sizes.

    Record that the products of the old and the new sizes must be equal.
    """
    if a.equal_size_pairs is not None:
        product = a.algebra.product
        a.require_equal(product(a.shape(0)), product(sizes))
    return a.like(sizes)


def _reshaped_array(x: Array, shape: Sequence[int]) -> Array:
    """Return an array with another shape: a view, or a copy if strides cannot express it."""
    check_representable(shape, x.dtype)
    if x.flags.c_contiguous:
        return np.reshape(x, shape)
    if _RESHAPES_WITHOUT_COPY:
        with contextlib.suppress(ValueError):
            return np.reshape(x, shape, copy=False)
    else:
        view = np.asarray(x.view())
        with contextlib.suppress(AttributeError):
            view.shape = tuple(shape)
            return view
    check_allocatable(shape, x.dtype)
    return np.reshape(x, shape)


@op("Reshape", since=5, traits=Trait.MOVES | Trait.FREE)
class Reshape(_Reshaping):
    """A change of the shape. A 0 copies a size of the operand, and a -1 is inferred."""

    kind = Kind.VIEW
    restricted_constants = (1,)

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the elements of the second operand, with copied and inferred sizes."""
        target = a.numbers(1)
        allow_zero = a.attributes.get("allowzero") == 1
        sizes = a.fact(0).shape
        if sizes is None:
            algebra = a.algebra
            positive = [n if algebra.is_positive(n) else algebra.unknown(low=0) for n in target]
            return a.like(positive)
        result = reshaped_sizes(a.algebra, sizes, tuple(target), allow_zero=allow_zero)
        return _reshaped_fact(a, result)

    def compute(self, x: Array, shape: Array, *, allowzero: int = 0) -> Array:
        """Return the elements of ``x`` in the same order with another shape.

        A 0 is replaced by the size of ``x`` at the same index, except with ``allowzero=1``. One -1
        is inferred. The result is a copy if strides cannot express it.
        """
        declared = integers(shape, "shape")
        target = [size if size or allowzero == 1 else x.shape[k] for k, size in enumerate(declared)]
        product = -math.prod(target)
        if -1 in target and product:
            target[target.index(-1)] = math.prod(x.shape) // product
        if min(target, default=0) < 0 or math.prod(target) != math.prod(x.shape):
            raise Unfoldable(f"{math.prod(x.shape)} elements cannot have the shape {declared}")
        return _reshaped_array(x, target)

    def accepts_constant(
        self, node: ir.Node, index: int, dtype: ir.DataType | None, elements: Array
    ) -> bool:
        """Return False for a shape with both 0 and -1 if ``allowzero`` is set.

        Runtimes reject a model with such a constant. If the node computes the shape at run time,
        they accept it for an empty operand.
        """
        attribute = node.attributes.get("allowzero")
        allows_zero = attribute is not None and (attribute.is_ref() or attribute.value)
        return not (allows_zero and {0, -1} <= set(elements.ravel().tolist()))


def reshaped_sizes(
    algebra: Algebra, sizes: Shape, target: tuple[Number, ...], *, allow_zero: bool
) -> Shape:
    """Return the shape of the result of a Reshape.

    An element of the shape operand that is 0 at run time copies the size at its index. So an
    expression is the size in the result only if one of these conditions is proved:

    - The expression cannot be 0.
    - The copied size is 0 whenever the expression is 0.
    - The number of elements is 0 whenever the expression is 0 (see ``ASSUMPTIONS``).

    Args:
        algebra: The algebra of the sizes. Conditions of a valid model are added to its
            requirements.
        sizes: The shape of the operand.
        target: The elements of the shape operand.
        allow_zero: Whether a 0 is a size instead of a reference to the operand's size.

    Raises:
        Undecided: The target has several -1, or a 0 that refers to a missing axis.
    """
    if list(target).count(-1) > 1:
        raise Undecided
    inferred = target.index(-1) if -1 in target else None
    proved = [_size_at(algebra, sizes, k, n, allow_zero) for k, n in enumerate(target)]
    if inferred is None and proved == list(target):
        return target
    total = algebra.product(sizes)
    if inferred is not None:
        other_sizes = [d for k, d in enumerate(proved) if k != inferred]
        if not allow_zero:  # a -1 together with a size of 0 is undefined, and the run fails
            algebra.required += [algebra.sub(size, 1) for size in other_sizes]
        product = algebra.product(tuple(other_sizes))  # not 0 in valid models
        if product == 0 or (allow_zero and not _zeros_are_copied(algebra, sizes, other_sizes)):
            proved[inferred] = algebra.unknown(low=0)
        else:
            proved[inferred] = algebra.floor_div(total, product)
        return tuple(proved)
    # the elements of the shape operand, without copied sizes for expressions that may be 0
    literal = [n if n != 0 or allow_zero else d for n, d in zip(target, proved, strict=True)]
    are_sizes = all(algebra.low(n) >= 0 for n in literal)
    return tuple(literal if are_sizes and algebra.product(tuple(literal)) == total else proved)


def _zeros_are_copied(algebra: Algebra, sizes: Shape, other_sizes: Sequence[Number]) -> bool:
    """Return whether sizes that may be 0 are copied from the operand, and do not imply other zeros.

    With ``allowzero``, onnxruntime infers a -1 from the non-zero sizes if another size is 0.
    """
    remaining = list(sizes)
    copied = set[int]()
    for size in other_sizes:
        if not algebra.is_positive(size):
            if size not in remaining:
                return False
            remaining.remove(size)
            copied |= algebra.atoms_in(size)
    not_copied = set[int]()
    for size in remaining:
        if not algebra.is_positive(size):
            not_copied |= algebra.atoms_in(size)
    if not copied or not not_copied:
        return True
    are_dims = all(algebra.atoms[k].is_dim for k in copied | not_copied)
    return are_dims and copied.isdisjoint(not_copied)


def _size_at(
    algebra: Algebra, sizes: Shape, index: int, number: Number, allow_zero: bool
) -> Number:
    """Return the size in the result for an element of the shape operand of a Reshape.

    A -1 is returned unchanged. The result is a new symbol if the size is unknown.

    Raises:
        Undecided: A 0 refers to an axis that the operand does not have.
    """
    if isinstance(number, int) and (number == -1 or number > 0):
        return number
    if allow_zero:
        return number if algebra.low(number) >= 0 else algebra.unknown(low=0)
    if index >= len(sizes):  # not 0 in valid models
        if number == 0:
            raise Undecided
        return number if algebra.low(number) >= 0 else algebra.unknown(low=0)
    if algebra.low(number) < 0:  # it may be -1
        return algebra.unknown(low=0)
    if number == 0:
        return sizes[index]
    is_certain = algebra.is_positive(number) or algebra.is_zero_with(sizes[index], number)
    return number if is_certain else algebra.unknown(low=0)


@op("Flatten", traits=Trait.MOVES | Trait.FREE)
class Flatten(_Reshaping):
    """A reshape to two axes."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the product of the sizes before the axis, and the product of the other sizes."""
        sizes = a.shape(0)
        axis = a.attributes.get("axis", 1)
        product = a.algebra.product
        return _reshaped_fact(a, (product(sizes[:axis]), product(sizes[axis:])))

    def compute(self, x: Array, *, axis: int = 1) -> Array:
        """Return a matrix with the axes before ``axis`` as rows and the others as columns."""
        if not -x.ndim <= axis <= x.ndim:
            raise Unfoldable(f"axis {axis} is out of range for rank {x.ndim}")
        return _reshaped_array(x, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])])


@op("Squeeze", traits=Trait.MOVES | Trait.FREE)
class Squeeze(_Reshaping):
    """The removal of axes of size 1. Valid models remove no other axes."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes of the axes that are not removed."""
        sizes = a.shape(0)
        axes = a.integers("axes", 1)
        if axes:
            removed = {axis_of(axis, len(sizes)) for axis in axes}
        else:  # onnxruntime treats an empty list as all axes
            if any(not isinstance(d, int) for d in sizes):
                if axes is None:
                    raise Undecided
                return [Fact(a.fact(0).dtype)]
            removed = {k for k, d in enumerate(sizes) if d == 1}
        return _reshaped_fact(a, tuple(d for k, d in enumerate(sizes) if k not in removed))

    def compute(self, x: Array, axes: Integers | None = None) -> Array:
        """Return ``x`` without ``axes``, by default without all axes of size 1."""
        axis_list = integers(() if axes is None else axes, "axes")
        removed = {normalized_axis(axis, x.ndim) for axis in axis_list}
        if not removed:
            return x.squeeze()
        return x.squeeze(tuple(removed))


@op("Unsqueeze", traits=Trait.MOVES | Trait.FREE)
class Unsqueeze(_Reshaping):
    """The insertion of axes of size 1."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes with 1 at each new axis."""
        sizes = list(a.shape(0))
        axes = a.integers("axes", 1)
        if axes is None:
            raise Undecided
        rank = len(sizes) + len(axes)
        for axis in sorted(axis_of(axis, rank) for axis in axes):
            sizes.insert(axis, 1)
        return _reshaped_fact(a, tuple(sizes))

    def compute(self, x: Array, axes: Integers) -> Array:
        """Return ``x`` with axes of size 1 at ``axes``, which are indices in the result."""
        return np.expand_dims(x, tuple(integers(axes, "axes")))


@op("Shape", traits=Trait.FREE)
class ShapeOf(Op):
    """The sizes of the axes from ``start`` up to, but not including, ``end``."""

    kind = Kind.SHAPE
    clamps_attributes = True

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes as known elements."""
        sizes = a.shape(0)
        if a.opset >= 15:
            sizes = sizes[a.attributes.get("start", 0) : a.attributes.get("end")]
        return [of_items(list_of(sizes), ir.DataType.INT64, a.algebra)]

    def compute(self, x: Array, *, start: int = 0, end: int | None = None) -> Array:
        """Return ``x.shape[start:end]`` as int64, without reading the elements of ``x``."""
        return np.array(x.shape[start:end], np.int64)


@op("Size", traits=Trait.FREE)
class Size(Op):
    """The number of elements."""

    kind = Kind.SHAPE

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the product of the sizes as a known element."""
        items = np.array(a.algebra.product(a.shape(0)), object)
        return [of_items(items, ir.DataType.INT64, a.algebra)]

    def compute(self, x: Array) -> Array:
        """Return the number of elements as an int64 scalar, without reading the elements."""
        return np.array(math.prod(x.shape), np.int64)


# Parts and joins


@op("Slice", traits=Trait.MOVES)
class Slice(Op):
    """A slice of some axes."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of the slice."""
        if any(fact and fact.shape is None for fact in a.inputs[3:]):
            return [Fact(a.fact(0).dtype)]  # onnx treats such an operand as omitted
        sizes = list(a.shape(0))
        for axis, (start, end, step) in slice_ranges(a, len(sizes)).items():
            sizes[axis] = sliced_size(a.algebra, sizes[axis], start, end, step)
        return a.like(sizes)

    def compute(
        self,
        x: Array,
        starts: Integers,
        ends: Integers,
        axes: Integers | None = None,
        steps: Array | None = None,
    ) -> Array:
        """Return ``x[start:end:step]`` along ``axes``, by default along the first axes.

        Negative bounds count from the end. Then bounds are clamped. Unlike in Python, a start
        before the first element is clamped to the first element also for a negative step.
        """
        starts = integers(starts, "starts")
        ends = integers(ends, "ends")
        axes = integers(range(len(starts)) if axes is None else axes, "axes")
        step_list = [1] * len(starts) if steps is None else integers(steps, "steps")
        index = [slice(None)] * x.ndim
        sliced_axes = set()
        for start, end, axis, step in zip(starts, ends, axes, step_list, strict=True):
            axis = normalized_axis(axis, x.ndim)
            if axis in sliced_axes or step == 0:
                raise Unfoldable("a slice requires distinct axes and steps other than 0")
            sliced_axes.add(axis)
            if step < 0 and end in _ANY_END:
                raise NotExact("onnxruntime slices to the first element, but ONNX does not")
            index[axis] = _python_slice(start, end, step, x.shape[axis])
        return x[tuple(index)]

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base on the axes that are not uniform.

        All slices along a uniform axis are equal.
        """
        operand = a.operand(0)
        ranges = slice_ranges(a.application, operand.rank)
        varying = {axis: bounds for axis, bounds in ranges.items() if axis not in operand.uniform}
        if not varying:
            return ReshapedBase(operand.uniform)
        starts, ends, steps = (np.array(bounds) for bounds in zip(*varying.values(), strict=True))
        if "starts" in a.application.attributes or starts.dtype.hasobject or ends.dtype.hasobject:
            raise Undecided
        return OpOnBases(
            operand.uniform, replaced={1: starts, 2: ends, 3: np.array(list(varying)), 4: steps}
        )


def slice_ranges(a: Application, rank: int) -> dict[int, tuple[Number, Number, int]]:
    """Return start, end and step of each sliced axis of a Slice, by axis.

    Raises:
        Undecided: The starts, ends, axes or steps are unknown or invalid.
    """
    if "starts" in a.attributes:
        starts = list(a.attributes["starts"])
        ends = list(a.attributes["ends"])
    else:
        starts = a.numbers(1)
        ends = a.numbers(2)
    axes = a.integers("axes", 3)
    steps = a.integers("steps", 4)
    axes = list(range(len(starts))) if axes is None else [axis_of(axis, rank) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(axes) == len(starts) == len(ends) == len(steps) or len(axes) > rank or 0 in steps:
        raise Undecided
    return dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))


def sliced_size(algebra: Algebra, size: Number, start: Number, end: Number, step: int) -> Number:
    """Return the size of an axis in a slice; a new symbol if the size is unknown."""
    if step < 0 and end in _ANY_END:  # see `Slice.compute`
        return algebra.unknown(low=0)
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        # for a negative step, Python clamps a start before the first element to -1, and ONNX to 0
        stop = None if step < 0 and end < -size else end
        return len(range(size)[max(start, -size) : stop : step])
    if step < 0:
        return algebra.unknown(low=0)
    # a start after the end of the axis is also after the end of the range, so it needs no clamp
    first = start if algebra.low(start) >= 0 else _clamped(algebra, start, size)
    last = _clamped(algebra, end, size)
    if first is None or last is None:
        return algebra.unknown(low=0)
    length = algebra.maximum(algebra.sub(last, first), 0)
    return length if step == 1 else algebra.ceil_div(length, step)


def _clamped(algebra: Algebra, index: Number, size: Number) -> Number | None:
    """Return the index from the start of the axis, clamped to the axis.

    The result is None if the sign of ``index`` is unknown.
    """
    if isinstance(index, int) and index >= TO_THE_END:
        return size
    if algebra.high(index) < 0:
        return algebra.maximum(algebra.add(index, size), 0)
    if algebra.low(index) < 0:
        return None
    return algebra.minimum(index, size)


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """Return the equivalent Python slice without negative bounds."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start = min(max(start, 0), size - 1)
    end = min(max(end, -1), size - 1)
    if start <= end:
        return slice(0, 0)
    return slice(start, None if end < 0 else end, step)


@op("Split", since=2, traits=Trait.MOVES)
class Split(Op):
    """A division into parts with certain sizes, or into equal parts."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of each part."""
        algebra = a.algebra
        sizes = a.shape(0)
        axis = axis_of(a.attributes.get("axis", 0), len(sizes))
        count = a.n_outputs
        parts: Sequence[Number]
        declared = a.objects(1)
        if "split" in a.attributes:
            parts = list(a.attributes["split"])
        elif a.input(1) is not None:
            if declared is None or declared.shape != (count,):
                raise Undecided
            parts = list(declared)
        else:
            part = algebra.ceil_div(sizes[axis], count)
            last = algebra.sub(sizes[axis], algebra.mul(part, count - 1))
            parts = [part] * (count - 1) + [last]
        a.require_equal(sizes[axis], functools.reduce(algebra.add, parts))
        dtype = a.fact(0).dtype
        return [of_type(dtype, (*sizes[:axis], p, *sizes[axis + 1 :]), algebra) for p in parts]

    def compute(
        self,
        x: Array,
        split: Integers | None = None,
        *,
        n_outputs: int,
        axis: int = 0,
        num_outputs: int | None = None,
    ) -> list[Array]:
        """Return parts of ``x`` along ``axis`` with sizes ``split``, or equal parts.

        With ``num_outputs``, which opset 18 added, the last part may be smaller if the parts cannot
        be equal. Without it, this is an error.
        """
        axis = normalized_axis(axis, x.ndim)
        parts = num_outputs or n_outputs
        size = x.shape[axis]
        sizes = integers(() if split is None else split, "split")
        if not sizes:
            if num_outputs is None and size % parts:
                raise Unfoldable(f"an axis of size {size} cannot be split into {parts} equal parts")
            part = -(-size // parts)
            if size and part * (parts - 1) >= size:
                raise NotExact(
                    f"an axis of size {size} cannot be split into {parts} parts of {part}"
                )
            sizes = [min(part, size - k * part) for k in range(parts)]
        if min(sizes, default=0) < 0 or sum(sizes) != size or len(sizes) != parts:
            raise Unfoldable(f"an axis of size {size} cannot be split into {parts} parts: {sizes}")
        return np.split(x, [*itertools.accumulate(sizes[:-1])], axis)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base, or return the base if the axis is uniform."""
        operand = a.operand(0)
        if axis_of(a.application.attributes.get("axis", 0), operand.rank) in operand.uniform:
            return ReshapedBase(operand.uniform)
        return OpOnBases(operand.uniform)


@op("Concat", since=4, traits=Trait.MOVES)
class Concat(Op):
    """A concatenation of the operands along an axis."""

    kind = Kind.ASSEMBLED

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sum of the sizes along the axis. All other sizes are equal."""
        shapes = a.shapes()
        if not shapes or any(len(s) != len(shapes[0]) for s in shapes):
            raise Undecided
        axis = axis_of(a.attributes.get("axis", 1), len(shapes[0]))
        result: list[Number] = []
        for k, sizes in enumerate(zip(*shapes, strict=True)):
            if k == axis:
                result.append(functools.reduce(a.algebra.add, sizes))
            else:  # all sizes are equal, so an integer is selected if there is one
                result.append(next((d for d in sizes if isinstance(d, int)), sizes[0]))
                for size in sizes:
                    a.require_equal(result[-1], size)
        return a.like(result)

    def compute(self, *operands: Array, axis: int) -> Array:
        """Return the concatenation of the operands along ``axis``."""
        first = operands[0]
        if len(operands) == 1:
            return first
        axis = normalized_axis(axis, first.ndim)
        total = sum(x.shape[axis] for x in operands)
        check_allocatable((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)
        return np.concatenate(operands, axis=axis)

    def moved_inputs(self, count: int) -> range:
        """Return the indices of all operands."""
        return range(count)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to bases with all elements along the axis.

        The bases also have all elements along the axes that are not uniform in all operands.
        """
        operands = a.all_operands()
        rank = len(a.result)
        axis = axis_of(a.application.attributes.get("axis", 1), rank)
        uniform = uniform_in_all(operands.values(), rank) - {axis}
        full = frozenset(range(rank)) - uniform
        return OpOnBases(uniform, {k: operand.repeated(full) for k, operand in operands.items()})

    def columns_after(
        self, node: ir.Node, index: int, columns: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Shift the columns by the widths of the previous operands if the axis is the last one.

        The columns are unchanged if a width is unknown.
        """
        operand = node.inputs[index]
        rank = 0 if operand is None or operand.shape is None else len(operand.shape)
        if rank < 2 or node.attributes.get_int("axis", 0) not in (-1, rank - 1):
            return columns
        previous = node.inputs[:index]
        sizes = [v.shape[-1] if v is not None and v.shape else None for v in previous]
        widths = [width for width in sizes if isinstance(width, int)]
        if len(widths) < len(previous):
            return columns
        return {k + sum(widths): column for k, column in columns.items()}


@op("Gather", traits=Trait.MOVES | Trait.SELECTS)
class Gather(Op):
    """A selection of slices along an axis."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes with the axis replaced by the axes of the indices."""
        data = a.shape(0)
        indices = a.shape(1)
        axis = axis_of(a.attributes.get("axis", 0), len(data))
        return a.like((*data[:axis], *indices, *data[axis + 1 :]))

    def compute(self, x: Array, indices: Array, *, axis: int = 0) -> Array:
        """Return ``x`` at ``indices`` along ``axis``, which is replaced by the axes of ``indices``.

        Negative indices count from the end. The result for a scalar index is a view.
        """
        axis = normalized_axis(axis, x.ndim)
        if x.dtype.kind in "OSU" and math.prod(x.shape[axis + 1 :]) > 1:
            raise Unfoldable("onnxruntime copies only the first string of each slice")
        if indices.dtype.kind not in "iu":
            raise Unfoldable(f"indices cannot have dtype {indices.dtype.name}")
        before = (slice(None),) * axis
        index: tuple[Any, ...]
        if indices.ndim == 0:
            index = (*before, int(indices), ...)
            return np.asarray(x[index])
        check_allocatable(x.shape[:axis] + indices.shape + x.shape[axis + 1 :], x.dtype)
        if x.flags.c_contiguous:
            return np.take(x, indices, axis=axis)
        # np.take would copy a complete strided or zero-stride operand first
        index = (*before, indices)
        return np.ascontiguousarray(x[index])

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the bases, or reshape the base if the axis is uniform."""
        data = a.operand(0)
        indices = a.operand(1)
        axis = axis_of(a.application.attributes.get("axis", 0), data.rank)
        last = axis + indices.rank
        shift = indices.rank - 1
        other_axes = data.uniform - {axis}
        moved = {k + shift if k > axis else k for k in other_axes}
        if axis in data.uniform:
            return ReshapedBase(frozenset(moved.union(range(axis, last))))
        return OpOnBases(frozenset(moved.union(axis + k for k in indices.uniform)))

    def can_fail(self, operands: OperandChecks) -> str | None:
        """Return the reason if an index may be out of range, or None."""
        data = operands.shape(0)
        if data:
            size = data[operands.attributes.get("axis", 0) % len(data)]
            if operands.are_indices(1, size):
                return None
        return f"the indices in {operands.name(1)!r} may be out of range"

    def index_bound(self, index: int, node: ir.Node) -> AxisBound | None:
        """Return the size of the axis."""
        return _bound_by_axis(index, node)

    def columns_after(
        self, node: ir.Node, index: int, columns: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the selected columns if the axis is the last one, and otherwise all columns."""
        data = node.inputs[index]
        rank = 0 if data is None or data.shape is None else len(data.shape)
        is_last = rank > 1 and node.attributes.get_int("axis", 0) in (-1, rank - 1)
        return selected_columns(node, index, columns) if is_last else columns

    def source_axis(self, node: ir.Node, axis: int) -> Axis | None:
        """Return the last axis of the first operand if rows of a matrix are selected, or None."""
        table = node.inputs[0]
        if table is None or axis != -1 or node.attributes.get_int("axis", 0) != 0:
            return None
        producer = table.producer()
        if producer is not None and isinstance(definition_of(producer), Transpose):
            table = producer.inputs[0]
        is_matrix = table is not None and table.shape is not None and len(table.shape) == 2
        return (0, axis) if is_matrix else None


def _bound_by_axis(index: int, node: ir.Node) -> AxisBound | None:
    """Return the size of the axis in ``axis`` as the bound of the second operand, the indices."""
    axis = node.attributes.get_int("axis", 0)
    return AxisBound(0, axis) if index == 1 else None


def selected_columns(node: ir.Node, index: int, columns: Mapping[int, int]) -> Mapping[int, int]:
    """Return the columns of the first operand that constant indices select, by new position.

    If the indices are not constant, or if ``index`` is not the first operand, return ``columns``.
    """
    indices = constant_array(node.inputs[1])
    if indices is None or index != 0:
        return columns
    selected = enumerate(int(k) for k in indices.reshape(-1))
    return {k: columns[column] for k, column in selected if column in columns}


@op("GatherElements", traits=Trait.MOVES | Trait.SELECTS)
class GatherElements(Op):
    """A selection of elements along an axis."""

    def index_bound(self, index: int, node: ir.Node) -> AxisBound | None:
        """Return the size of the axis."""
        return _bound_by_axis(index, node)


@op("GatherND", traits=Trait.SELECTS)
class GatherND(Op):
    """A selection of slices at indices of several axes."""

    def carries(self, index: int) -> bool:
        """Return True for the first operand, whose elements the result contains."""
        return index == 0

    def index_bound(self, index: int, node: ir.Node) -> AxisBound | None:
        """Return the size of the first axis."""
        return AxisBound(0, 0) if index == 1 else None


@op("ScatterElements", traits=Trait.LIKE_FIRST | Trait.PLACES)
class ScatterElements(Op):
    """A replacement of elements at indices along an axis."""

    def index_bound(self, index: int, node: ir.Node) -> AxisBound | None:
        """Return the size of the axis."""
        return _bound_by_axis(index, node)


@op("ScatterND", traits=Trait.LIKE_FIRST | Trait.PLACES)
class ScatterND(Op):
    """A replacement of slices at indices of several axes."""

    def index_bound(self, index: int, node: ir.Node) -> AxisBound | None:
        """Return the size of the first axis."""
        return AxisBound(0, 0) if index == 1 else None


@op("Scatter", traits=Trait.LIKE_FIRST | Trait.PLACES)
@op("Compress", "DepthToSpace", "ReverseSequence", "SpaceToDepth", traits=Trait.PLACES)
class Placement(Op):
    """An op that moves or selects elements. onnx infers the results, except for Scatter."""


@op("Trilu", traits=Trait.LIKE_FIRST | Trait.PLACES)
class Trilu(Op):
    """The elements of matrices on one side of a diagonal."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to complete matrices."""
        rank = a.operand(0).rank
        return along_axes(a, [rank - 2, rank - 1])


@op("NonZero", since=9, traits=Trait.PLACES)
class NonZero(Op):
    """The indices of the elements that are not zero."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return a row for each axis, and an unknown number of columns.

        For a scalar, onnxruntime returns one row, but ONNX none.
        """
        rank = len(a.shape(0))
        rows = rank or a.algebra.unknown(low=0)
        return a.tensor([rows, a.algebra.unknown(low=0)], ir.DataType.INT64)

    def compute(self, x: Array) -> Array:
        """Return the indices of the elements that are not zero, with a row for each axis."""
        if not x.ndim:
            raise NotExact("onnxruntime and ONNX differ for NonZero of a scalar")
        check_allocatable((x.ndim, int(np.count_nonzero(x))), np.dtype(np.int64))
        return np.array(np.nonzero(x), np.int64)


# Repetitions and fills


def _as_sizes(a: Application, numbers: Sequence[Number]) -> list[Number]:
    """Return the elements of a shape operand as sizes, with new symbols for unbounded elements.

    In valid models, the elements are not negative.
    """
    algebra = a.algebra
    return [n if algebra.low(n) >= 0 else algebra.unknown(low=0) for n in numbers]


def _broadcast(x: Array, shape: Sequence[int]) -> Array:
    check_representable(shape, x.dtype)
    return np.broadcast_to(x, tuple(shape))


@op("Expand", since=8, traits=Trait.MOVES | Trait.REPEATS)
class Expand(Op):
    """A broadcast to a shape."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the broadcast shape of the operand and the shape in the second operand."""
        sizes = tuple(_as_sizes(a, a.numbers(1)))
        return a.like(a.broadcast(sizes, a.shape(0)))

    def compute(self, x: Array, shape: Array) -> Array:
        """Return ``x`` broadcast to ``shape``. A 1 in ``shape`` keeps the size of ``x``."""
        return _broadcast(x, broadcast_shape(x.shape, integers(shape, "shape")))

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Return the base of the operand. New axes are uniform."""
        return ReshapedBase(uniform_in_all([a.operand(0)], len(a.result)))


@op("Tile", since=6, traits=Trait.MOVES | Trait.REPEATS)
class Tile(Op):
    """A repetition along each axis."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes multiplied by the repetitions."""
        sizes = a.shape(0)
        repeats = a.numbers(1)
        if len(repeats) != len(sizes):
            raise Undecided
        return a.like(list(map(a.algebra.mul, sizes, repeats)))

    def compute(self, x: Array, repeats: Array) -> Array:
        """Return ``x`` repeated along every axis, as a view if only axes of size 1 are repeated."""
        counts = integers(repeats, "repeats")
        if len(counts) != x.ndim or min(counts, default=0) < 0:
            raise Unfoldable(f"repeats {counts} are invalid for rank {x.ndim}")
        shape = [n * d for n, d in zip(counts, x.shape, strict=True)]
        if all(n == 1 or d == 1 for n, d in zip(counts, x.shape, strict=True)):
            return _broadcast(x, shape)
        check_allocatable(shape, x.dtype)
        return np.tile(x, counts)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base, without repetitions along uniform axes."""
        operand = a.operand(0)
        repeats = a.application.numbers(1)
        counts = [1 if k in operand.uniform else n for k, n in enumerate(repeats)]
        if not all(isinstance(count, int) for count in counts):
            raise Undecided
        if set(counts) <= {1}:
            return ReshapedBase(operand.uniform)
        return OpOnBases(operand.uniform, replaced={1: np.array(counts, np.int64)})


@op("ConstantOfShape", since=9, traits=Trait.REPEATS)
class ConstantOfShape(Op):
    """A tensor of equal elements."""

    kind = Kind.VIEW

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the elements of the operand as the shape, and the dtype of ``value``."""
        value = a.attributes.get("value")
        dtype = ir.DataType.FLOAT if value is None else ir.DataType.from_numpy(value.dtype)
        return a.tensor(_as_sizes(a, a.numbers(0)), dtype)

    def compute(self, shape: Array, *, value: Array | None = None) -> Array:
        """Return a zero-stride array that repeats ``value``, by default a float32 zero."""
        fill = np.zeros((), np.float32) if value is None else value.reshape(())
        sizes = integers(shape, "shape")
        check_representable(sizes, fill.dtype)
        return np.broadcast_to(fill, sizes)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Return the element with which the tensor is filled."""
        value = a.application.attributes.get("value")
        element = np.zeros(1, np.float32) if value is None else value
        return Filled(frozenset(range(len(a.result))), element)


@op("com.microsoft::Range", traits=Trait.REPEATS | Trait.SIZED_BY_FLOATS)
class ContribRange(Op):
    """The numbers from start to limit in steps of delta."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the number of steps; a new symbol if it is unknown, as for floats."""
        algebra = a.algebra
        start, limit, delta = (a.objects(k) for k in range(3))
        dtype = a.fact(0).dtype
        if dtype is None or not dtype.is_integer():  # onnx and onnxruntime round floats differently
            return a.tensor([algebra.unknown(low=0)], dtype)
        if start is None or limit is None or delta is None:
            raise Undecided
        step = delta.item()
        if not isinstance(step, int) or step == 0:
            return a.tensor([algebra.unknown(low=0)], dtype)
        distance = algebra.sub(limit.item(), start.item())
        if step < 0:
            distance = algebra.mul(distance, -1)
            step = -step
        count = algebra.maximum(algebra.ceil_div(distance, step), 0)
        return a.tensor([count], dtype)


@op("Range", since=11, traits=Trait.REPEATS | Trait.SIZED_BY_FLOATS)
class Range(ContribRange):
    """The numbers from start to limit in steps of delta."""

    def compute(self, start: Array, limit: Array, delta: Array) -> Array:
        """Return the integers ``start, start + delta, ...`` before ``limit``."""
        for x in (start, limit, delta):
            require(x, INTEGERS)
            if x.size != 1:
                raise Unfoldable("the bounds of a range are scalars")
        first = start.reshape(())
        step = delta.reshape(())
        if not step:
            raise Unfoldable("a range requires a delta other than 0")
        span = int(limit.reshape(())) - int(first)
        count = max(0, -(-span // int(step)))
        # onnxruntime may treat a count that overflows as an empty range
        check_allocatable([count], start.dtype)
        if abs(span) > min(_EXACT_IN_FLOAT64, int(np.iinfo(start.dtype).max)):
            raise Unfoldable("the length of the range is not exact in float64")
        return np.asarray(first + np.arange(count, dtype=start.dtype) * step)


@op("OneHot", traits=Trait.REPEATS)
class OneHot(Op):
    """One-hot vectors of indices."""

    def index_bound(self, index: int, node: ir.Node) -> ElementBound | None:
        """Return the depth, the element of the second operand, as the bound of the first."""
        return ElementBound(1) if index == 0 else None


@op("EyeLike", traits=Trait.REPEATS)
@op("Constant", traits=Trait.FREE)
class Fill(Op):
    """An op that returns constant elements. onnx infers the results."""


# Padding


@op("Pad", "com.microsoft::Pad", traits=Trait.SELECTS)
class Pad(Op):
    """The addition of elements at the beginning and end of axes."""

    restricted_constants = (3,)

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return each size plus the padding on both sides."""
        algebra = a.algebra
        sizes = a.shape(0)
        pads = a.objects(1)
        if pads is None or pads.shape != (2 * len(sizes),) or a.input(3) is not None:
            raise Undecided
        is_constant = a.attributes.get("mode", "constant") in ("constant", b"constant")
        a.may_fail_unless(is_constant)  # other modes limit the padding to the size
        before = pads[: len(sizes)]
        after = pads[len(sizes) :]
        padding = map(algebra.add, before, after)
        return a.like(list(map(algebra.add, sizes, padding)))

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base with all elements along the padded axes.

        Only constant padding is supported.
        """
        a.all_operands()
        operand = a.operand(0)
        pads = a.application.fact(1).known
        mode = a.application.attributes.get("mode", "constant")
        if pads is None or pads.size != 2 * operand.rank or a.application.input(3) is not None:
            raise Undecided
        if mode not in ("constant", b"constant"):
            raise Undecided
        padded = [k for k in range(operand.rank) if pads[k] or pads[k + operand.rank]]
        full = operand.repeated(padded)
        return OpOnBases(operand.uniform.difference(padded), {0: full})

    def accepts_constant(
        self, node: ir.Node, index: int, dtype: ir.DataType | None, elements: Array
    ) -> bool:
        """Return False for int32, because shape inference reads constant axes only as int64."""
        return dtype != ir.DataType.INT32
