"""Tensors that are broadcasts of smaller tensors, and ops applied to them.

A tensor is *uniform* along an axis if all its slices along this axis are equal. The tensor is then
a broadcast of its *base*. The base has size 1 on the uniform axes, and equals the tensor on the
others. `Op.on_bases` describes how the base of a result is computed from the bases of the operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxfold.ir.symbolic.expression import Algebra
from onnxfold.ir.symbolic.fact import Array, Shape
from onnxfold.ops.application import Application, Undecided

Axes = frozenset[int]

NO_AXES: Axes = frozenset()


@dataclass(frozen=True)
class Broadcast:
    """The shape of a tensor, and the axes on which its base has size 1."""

    shape: Shape
    uniform: Axes

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def base_shape(self) -> Shape:
        """The shape of the base."""
        return self.base_shape_with(NO_AXES)

    def base_shape_with(self, full_axes: Axes) -> Shape:
        """Return the shape of the base after an expansion to the full size on some axes."""
        repeated = self.uniform - full_axes
        return tuple(1 if k in repeated else size for k, size in enumerate(self.shape))

    @property
    def has_static_base(self) -> bool:
        """Whether all sizes of the base are numbers."""
        return all(isinstance(size, int) for size in self.base_shape)

    def repeated(self, axes: Iterable[int]) -> Axes:
        """Return the axes among ``axes`` on which the sizes of the tensor and its base differ.

        Raises:
            Undecided: The size of the tensor on such an axis is not a number.
        """
        repeated = {axis for axis in axes if axis in self.uniform and self.shape[axis] != 1}
        if not all(isinstance(self.shape[axis], int) for axis in repeated):
            raise Undecided
        return frozenset(repeated)


@dataclass(frozen=True)
class OpOnBases:
    """Results whose bases are the results of the same op on the bases of the operands."""

    uniform: Axes
    """The uniform axes of every result."""
    full_axes: Mapping[int, Axes] = field(default_factory=dict)
    """The axes on which the base of an operand is expanded to the operand's size, by the index of
    the operand."""
    replaced: Mapping[int, Array] = field(default_factory=dict)
    """The constants that replace operands, by the index of the operand."""


@dataclass(frozen=True)
class ReshapedBase:
    """Results whose bases have the elements of an operand's base, with another shape."""

    uniform: Axes
    """The uniform axes of every result."""
    operand: int = 0
    full_axes: Axes = NO_AXES
    """The axes on which the base is expanded to the operand's size before the reshape."""


@dataclass(frozen=True)
class Filled:
    """A result whose elements are all equal."""

    uniform: Axes
    """All axes of the result."""
    element: Array
    """The element, as an array with one element."""


BaseOfResult = OpOnBases | ReshapedBase | Filled


@dataclass(frozen=True)
class OperandBases:
    """The argument of `Op.on_bases`: the operands of a node as broadcasts of constants."""

    application: Application
    """The facts of the operands, and the attributes."""
    operands: Sequence[Broadcast | None]
    """The operands; None if an operand is omitted, or is not a broadcast of a constant."""
    result: Shape
    """The shape of the first result."""

    def operand(self, k: int) -> Broadcast:
        """Return an operand.

        Raises:
            Undecided: The operand is omitted, or is not a broadcast of a constant.
        """
        operand = self.operands[k] if k < len(self.operands) else None
        if operand is None:
            raise Undecided
        return operand

    def all_operands(self) -> dict[int, Broadcast]:
        """Return all operands that are not omitted, by index.

        Raises:
            Undecided: An operand is not a broadcast of a constant.
        """
        present = [k for k, fact in enumerate(self.application.inputs) if fact is not None]
        return {k: self.operand(k) for k in present}


def elementwise(a: OperandBases) -> OpOnBases:
    """Return the base of the result of an element-wise op with broadcasting.

    Raises:
        Undecided: An operand is not a broadcast of a constant.
    """
    return OpOnBases(uniform_in_all(a.all_operands().values(), len(a.result)))


def uniform_in_all(operands: Iterable[Broadcast], rank: int) -> Axes:
    """Return the axes of a result that are uniform in all operands after broadcasting."""
    varying = set[int]()
    for operand in operands:
        offset = rank - operand.rank
        varying.update(offset + k for k in range(operand.rank) if k not in operand.uniform)
    return frozenset(range(rank)) - varying


def along_axes(a: OperandBases, axes: Iterable[int]) -> OpOnBases:
    """Return the base of the result of an op that combines elements along some axes.

    The result has the shape of the first operand. The other operands are not expanded.

    Raises:
        Undecided: An operand is not a broadcast of a constant, or the size of an expanded axis is
            not a number.
    """
    a.all_operands()
    first = a.operand(0)
    full = first.repeated(axes)
    return OpOnBases(first.uniform - full, {0: full})


def reshaped(a: OperandBases) -> ReshapedBase:
    """Return the base of a result with the elements of the first operand in the same order.

    The axes of both shapes are grouped so that corresponding groups have equal numbers of elements.
    A group is uniform in the result if all its axes are uniform in the operand. If only some axes
    of a group are uniform, the base is expanded on these axes.

    Raises:
        Undecided: The first operand is not a broadcast of a constant, or the axes cannot be
            grouped. Also if the size of an expanded axis is not a number.
    """
    operand = a.operand(0)
    algebra = a.application.algebra
    uniform = set[int]()
    full = set[int]()
    for before, after in _groups(algebra, operand.shape, a.result):
        if operand.uniform.issuperset(before):
            uniform.update(after)
        elif len(before) > 1 or len(after) > 1:
            full |= operand.repeated(before)
    uniform |= {axis for axis, size in enumerate(a.result) if size == 1}
    return ReshapedBase(frozenset(uniform), full_axes=frozenset(full))


def _groups(algebra: Algebra, shape: Shape, result: Shape) -> list[tuple[range, range]]:
    """Return the smallest consecutive groups of axes with equal numbers of elements.

    Each group is a range of axes of ``shape`` and a range of axes of ``result``.

    Raises:
        Undecided: A size is 0, or not all axes can be grouped.
    """
    if 0 in shape or 0 in result:
        raise Undecided
    groups = []
    start = 0
    result_start = 0
    while start < len(shape) or result_start < len(result):
        ends = [
            (end, result_end)
            for end in range(start, len(shape) + 1)
            for result_end in range(result_start, len(result) + 1)
            if end > start or result_end > result_start
        ]
        ends.sort(key=sum)
        for end, result_end in ends:
            sizes = shape[start:end]
            result_sizes = result[result_start:result_end]
            if algebra.product(sizes) == algebra.product(result_sizes):
                groups.append((range(start, end), range(result_start, result_end)))
                start = end
                result_start = result_end
                break
        else:
            raise Undecided
    return groups
