"""Facts about a value (dtype, shape, and elements of a small tensor), and texts of sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.ir.graphs import shaped
from onnxfold.ir.symbolic.atoms import INFINITY
from onnxfold.ir.symbolic.expression import Algebra, Expr, Number

Array = npt.NDArray[Any]
Shape = tuple[Number, ...]

MAX_TRACKED_ELEMENTS = 64
"""Maximum number of elements of a tensor whose elements are tracked."""

SIZE_DTYPES = frozenset((ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL))
"""Dtypes of tensors that may contain sizes. Their elements may be expressions."""

# Maximum number of characters of the text of an expression. A dimension's own name may be longer.
_MAX_TEXT_LENGTH = 48
_WORD = re.compile(r"\w+\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(eq=False, slots=True)
class Fact:
    """Immutable facts about a value. None means unknown.

    ``items`` is an array of the elements of a small tensor. If the dtype of the array is
    ``object``, it contains Python integers and at least one expression. Otherwise, the array has
    the dtype of the tensor, and all elements are known.

    Facts are compared by identity: :class:`FactTable` shares one object among equal facts.
    """

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    items: Array | None = None
    type_proto: bytes | None = None
    """The serialized type of a value that is not a dense tensor; None for other values."""

    @property
    def rank(self) -> int | None:
        """The number of axes; None if the shape is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if all sizes are integers, else None."""
        if self.shape is None or not all(isinstance(d, int) for d in self.shape):
            return None
        return self.shape  # type: ignore[return-value]

    @property
    def known(self) -> Array | None:
        """The elements if all of them are known numbers, else None."""
        return None if self.items is None or self.items.dtype.hasobject else self.items

    @property
    def is_symbolic(self) -> bool:
        """Whether the elements include expressions."""
        return self.items is not None and self.items.dtype.hasobject

    @property
    def objects(self) -> Array | None:
        """The integer or boolean elements as Python numbers and expressions.

        The value is None if the elements are unknown or have another dtype.
        """
        if self.items is None or self.items.dtype.hasobject:
            return self.items
        return self.items.astype(object) if self.items.dtype.kind in "iub" else None


UNKNOWN = Fact()


class FactTable:
    """The facts of a model. Equal facts are stored once."""

    def __init__(self) -> None:
        self._facts: dict[tuple[object, ...], Fact] = {(None, None): UNKNOWN}

    def shared(self, fact: Fact) -> Fact:
        """Return the stored fact that equals this one and has the same symbols.

        If no such fact is stored, this fact is stored and returned.
        """
        if fact.type_proto is not None:
            return self._facts.setdefault((fact.type_proto,), fact)
        items = fact.items
        if items is None:
            return self._facts.setdefault((fact.dtype, fact.shape), fact)
        # known elements are compared by their bits: 0.0 differs from -0.0, and NaN equals itself
        content = tuple(items.ravel().tolist()) if items.dtype.hasobject else items.tobytes()
        return self._facts.setdefault((fact.dtype, fact.shape, items.dtype, content), fact)


def of_items(items: Array, dtype: ir.DataType, algebra: Algebra) -> Fact:
    """Return the fact of a tensor whose elements are Python integers or expressions.

    If an element of an int32 tensor is out of range, no element is known; see `of_type`.
    """
    numbers = [item for item in items.flat if isinstance(item, int)]
    if dtype == ir.DataType.INT32 and any(not -(1 << 31) <= n < 1 << 31 for n in numbers):
        return of_type(dtype, items.shape, algebra)
    if len(numbers) == items.size:
        items = items.astype(dtype.numpy())
    return Fact(dtype, items.shape, items)


def of_array(array: Array, dtype: ir.DataType) -> Fact:
    """Return the fact of a constant.

    The fact has elements only for a small array with a boolean, integer or float dtype of NumPy.
    """
    items = array if array.size <= MAX_TRACKED_ELEMENTS and array.dtype.kind in "fiub" else None
    return Fact(dtype, tuple(int(d) for d in array.shape), items)


def of_type(dtype: ir.DataType | None, shape: Sequence[Number] | None, algebra: Algebra) -> Fact:
    """Return the fact of a tensor. An unknown dtype or shape is None.

    Each element of a small scalar or vector is a new symbol if its dtype is one of `SIZE_DTYPES`.
    """
    if shape is None:
        return Fact(dtype)
    shape = tuple(shape)
    count = shape[0] if shape else 1
    if dtype not in SIZE_DTYPES or len(shape) > 1 or not isinstance(count, int):
        return Fact(dtype, shape)
    if not 0 <= count <= MAX_TRACKED_ELEMENTS:
        return Fact(dtype, shape)
    bounds = (0, 1) if dtype == ir.DataType.BOOL else (-INFINITY, INFINITY)
    items = list_of([algebra.unknown(*bounds) for _ in range(count)])
    return of_items(items if shape else items.reshape(()), dtype, algebra)


def is_small(shape: Shape) -> bool:
    """Return whether a shape is static and has at most `MAX_TRACKED_ELEMENTS` elements."""
    count = 1
    for size in shape:
        if not isinstance(size, int):
            return False
        count *= size
    return count <= MAX_TRACKED_ELEMENTS


def common(algebra: Algebra, one: Fact, other: Fact) -> Fact:
    """Return the common part of two facts, with a new symbol for each size that may differ.

    The elements of different facts are not compared; see `of_type` for the elements of the result.
    """
    if one is other:
        return one
    if one.dtype != other.dtype or one.type_proto is not None or other.type_proto is not None:
        return UNKNOWN
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return Fact(one.dtype)
    sizes: list[Number] = [
        a if a == b else algebra.unknown(low=0) for a, b in zip(one.shape, other.shape, strict=True)
    ]
    return of_type(one.dtype, sizes, algebra)


def differ(left: Sequence[object] | None, right: Sequence[object] | None) -> bool:
    """Return whether two shapes are proved to differ; None is an unknown shape."""
    if left is None or right is None:
        return False
    return len(left) != len(right) or any(
        type(a) is type(b) is int and a != b for a, b in zip(left, right, strict=True)
    )


def list_of(numbers: Sequence[Number]) -> Array:
    """Return a one-dimensional array of numbers and expressions."""
    return np.array(numbers, object)


class Texts:
    """The texts of a model's sizes. Two sizes with the same text are equal.

    A name in ``reserved`` is the text of the dimension with this name, but not of an expression.
    """

    def __init__(self, algebra: Algebra, reserved: Iterable[str]) -> None:
        self._algebra = algebra
        self._reserved = {name.replace(" ", "") for name in reserved}
        self._texts: dict[Expr, str | None] = {}
        self._atoms: list[str | None] = []

    def of_fact(self, fact: Fact) -> str:
        """Return a dtype and a shape as text, such as ``float32[n,3]``; see `shaped`."""
        sizes = fact.shape and [d if isinstance(d, int) else self.of(d) for d in fact.shape]
        return shaped(fact.dtype, sizes)

    def of(self, size: Number) -> str | None:
        """Return the name of a dimension, or an expression such as ``2*seq``.

        The result is None for an integer, for a long expression, and for an expression whose text
        is reserved. It is also None for a size without a name, such as the number of nonzero
        elements. An expression has no text if it contains such a size or a name that is not an
        identifier. Its only operations may be sums, products, minima, maxima and floor divisions.
        """
        if isinstance(size, int):
            return None
        if size not in self._texts:
            text = self._algebra.name_of(size)
            if text is None:
                text = self._sum(size) or ""
                if not 0 < len(text) <= _MAX_TEXT_LENGTH or text.replace(" ", "") in self._reserved:
                    text = None
            self._texts[size] = text
        return self._texts[size]

    def _sum(self, size: Number) -> str | None:
        if isinstance(size, int):
            return str(size)
        terms = []
        for monomial, coefficient in size.terms:
            factors = [self._atom(index) for index in monomial]
            if any(f is None for f in factors):
                return None
            texts = sorted(f for f in factors if f is not None)
            if abs(coefficient) != 1 or not texts:
                texts.insert(0, str(abs(coefficient)))
            terms.append((coefficient < 0, not monomial, "*".join(texts)))
        terms.sort()
        text = " ".join(f"{'-' if negative else '+'} {term}" for negative, _, term in terms)
        return text[2:] if text.startswith("+ ") else f"-{text[2:]}"

    def _atom(self, index: int) -> str | None:
        # the operands of an atom have lower indices, so ascending order avoids recursion
        for k in range(len(self._atoms), index + 1):
            text = self._atom_text(k)
            self._atoms.append(text if text is None or len(text) <= _MAX_TEXT_LENGTH else None)
        return self._atoms[index]

    def _atom_text(self, index: int) -> str | None:
        atom = self._algebra.atoms[index]
        if atom.op == "symbol":
            name = str(atom.args[0]) if atom.args else ""
            return name if _NAME.match(name) else None
        if atom.op not in ("min", "max", "floor_div"):
            return None
        operands = [self._sum(a) if isinstance(a, (int, Expr)) else None for a in atom.args]
        if any(o is None for o in operands):
            return None
        if atom.op == "floor_div":
            dividend, divisor = (o if _WORD.match(o or "") else f"({o})" for o in operands)
            return f"({dividend}//{divisor})"
        return f"{atom.op}({', '.join(sorted(o for o in operands if o is not None))})"
