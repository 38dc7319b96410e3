"""Properties of ops that analyses, passes and rules ask for."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """A property of an op."""

    COMMUTES = enum.auto()
    """The two operands may be exchanged."""
    EXACT = enum.auto()
    """Element-wise, with a result in onnxruntime independent of the position; but see ORDERS."""
    VECTORIZED = enum.auto()
    """EXACT in float32 only. Log, Sin, Cos, Softplus, Elu and others are not: the last elements,
    which do not fill a vector register, are computed by other code."""
    ORDERS = enum.auto()
    """Compares numbers. onnxruntime's SIMD code compares the lower halves of int64 as signed
    numbers, so that the result depends on an element's position."""
    LIKE_FIRST = enum.auto()
    """The result has the dtype and the shape of the first operand."""
    REDUCES = enum.auto()
    """Reduces the axes in `axes`, to size 1 or none."""
    MULTIPLIES = enum.auto()
    """A matrix product: an element of one operand is multiplied by at most all of the other."""
    ATTENDS = enum.auto()
    """An attention: a product of queries and keys, and one of the result and values."""
    CONVOLVES = enum.auto()
    """A window with weights slides over all axes except the first two."""
    POOLS = enum.auto()
    """A window without weights slides over them."""
    MOVES = enum.auto()
    """The results are elements of the first operand; for Concat, of all operands."""
    REPEATS = enum.auto()
    """Copies elements to more places."""
    SELECTS = enum.auto()
    """Copies elements to more or fewer places."""
    FREE = enum.auto()
    """Runtimes execute it without reading elements."""
    PLACES = enum.auto()
    """Moves, selects or converts elements in another way, without arithmetic."""
    CONVERTS = enum.auto()
    """Converts elements to another dtype."""
    ALONG_AXES = enum.auto()
    """Reads each element once or twice; attributes other than tensors are axes or types."""
    HEAVY = enum.auto()
    """Many operations per element."""
    UNBOUNDED = enum.auto()
    """The number of operations is unknown."""
    REREADS = enum.auto()
    """A compiled kernel that contains it reads the operand again, or stores the result."""
    ENDS_WITH_SUM = enum.auto()
    """onnxruntime adds a constant at the end, so that the rounding error is absolute."""
    SIZED_BY_FLOATS = enum.auto()
    """Elements of floating-point operands determine the shape of the result."""
    SCALES = enum.auto()
    """Multiplies sizes by floating-point scales, which onnx and onnxruntime round differently."""
    READS_AT_FLOATS = enum.auto()
    """Reads at positions given by floating-point numbers."""
    ANY_SIZES = enum.auto()
    """Accepts operands of any sizes."""
    QUANTIZES = enum.auto()
    """Converts between numbers and quantized numbers."""
    USES_BITS = enum.auto()
    """The result depends on the number of bits of the dtype."""
    TEXT = enum.auto()
    """Changes or splits strings, so that results consist of the same words."""


COPIES = Trait.MOVES | Trait.REPEATS | Trait.SELECTS | Trait.FREE
"""Ops with one of these traits compute no elements."""

WITHOUT_ARITHMETIC = COPIES | Trait.PLACES
"""Ops with one of these traits perform no arithmetic operation on elements."""

ELEMENTWISE = Trait.EXACT | Trait.VECTORIZED
"""An op with one of these traits computes each element of its result from one of its operand."""
